#include "cli/program/man_page.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "attnsmith/version.hpp"
#include "cli/program/general_help.hpp"
#include "cli/program/help.hpp"

namespace attnsmith::cli {
namespace {

// Text that troff takes as it is: no escapes, no requests, hyphens that stay hyphens when they are copied.
std::string escaped(std::string_view text) {
    std::string result;
    for (const char c : text) {
        if (c == '\\') {
            result += "\\e";
        } else if (c == '-') {
            result += "\\-";
        } else {
            result += c;
        }
    }
    if (result.starts_with('.') || result.starts_with('\'')) result.insert(0, "\\&");
    return result;
}

// A quotation mark within a macro's argument is written twice.
std::string argument(std::string_view text) {
    std::string result;
    for (const char c : escaped(text)) result += c == '"' ? std::string("\"\"") : std::string(1, c);
    return "\"" + result + "\"";
}

constexpr std::size_t kExampleWidth = 72;  // beside the indent of a page of 80 columns

std::string upper_case(std::string text) {
    std::ranges::transform(text, text.begin(), [](char c) {
        return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
    });
    return text;
}

std::string section(const std::string& title) { return fmt::format(".SH {}\n", argument(upper_case(title))); }

std::string entry(const std::string& label, const std::string& text) {
    return fmt::format(".TP\n\\fB{}\\fR\n{}\n", escaped(label), escaped(text));
}

std::string flags_text(const Command& command) {
    std::string text;
    for (const FlagGroup& group : grouped_flags(command)) {
        text += section(group.name);
        for (const Flag* flag : group.flags) text += entry(label_of(*flag), flag->full_help());
    }
    return text;
}

std::string details_text(const Command& command) {
    std::string running = section("description") + escaped(command.summary()) + ".\n", examples;
    for (const auto& [text, lines] : paragraphs_of(command.details())) {
        if (lines.empty()) {
            running += ".PP\n" + escaped(text) + "\n";
            continue;
        }
        examples += section("examples") + ".nf\n";
        for (const std::string& example : lines) {
            for (const std::string& line : wrapped_example(example, kExampleWidth))
                examples += escaped(line) + "\n";
        }
        examples += ".fi\n";
    }
    return running + flags_text(command) + examples;
}

std::string commands_text(const Command& command) {
    std::string text;
    for (const Command* one : command.commands())
        text +=
            fmt::format(".TP\n\\fB{}\\fR(1)\n{}\n", escaped(man_page_name(*one)), escaped(one->summary()));
    return text.empty() ? text : section("commands") + text;
}

std::string explained_text(const std::string& title, std::span<const Explained> all) {
    std::string text = section(title);
    for (const auto& [name, what] : all) text += entry(std::string(name), std::string(what));
    return text;
}

// The command that holds this one, and the others in it.
std::string see_also_text(const Command& command) {
    const Command* const parent = command.parent();
    if (parent == nullptr) return {};
    std::string text = section("see also") + fmt::format("\\fB{}\\fR(1)", escaped(man_page_name(*parent)));
    for (const Command* one : parent->commands()) {
        if (one != &command) text += fmt::format(",\n\\fB{}\\fR(1)", escaped(man_page_name(*one)));
    }
    return text + "\n";
}

}  // namespace

std::string man_page_name(const Command& command) {
    std::string name = command.path();
    std::ranges::replace(name, ' ', '-');
    return name;
}

std::string man_page(const Command& command) {
    const std::string name = man_page_name(command);
    return fmt::format(".TH {} 1 \"\" {}\n", argument(upper_case(name)),
                       argument("attnsmith " ATTNSMITH_VERSION)) +
           section("name") + fmt::format("{} \\- {}\n", escaped(name), escaped(command.summary())) +
           section("synopsis") + fmt::format("\\fB{}\\fR\n", escaped(usage_of(command))) +
           commands_text(command) + details_text(command) + explained_text("exit status", kExitCodes) +
           explained_text("environment", kVariables) + see_also_text(command);
}

}  // namespace attnsmith::cli
