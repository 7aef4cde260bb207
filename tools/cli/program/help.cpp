#include "cli/program/help.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "cli/program/general_help.hpp"
#include "cli/program/terminal.hpp"

namespace attnsmith::cli {
namespace {

constexpr std::size_t kLabelColumn = 28;  // where the helps of flags begin
constexpr int kNarrow = 64;               // below it they stand under their flags
constexpr int kWidest = 110;              // longer lines are hard to read

std::vector<std::string> lines_of(std::string_view text) {
    std::vector<std::string> lines;
    while (!text.empty()) {
        const std::size_t end = std::min(text.find('\n'), text.size());
        lines.emplace_back(text.substr(0, end));
        text.remove_prefix(std::min(end + 1, text.size()));
    }
    return lines;
}

// Words, between which a line may break.
std::vector<std::string> words_of(std::string_view text) {
    std::vector<std::string> words(1);
    for (const char c : text) {
        if (c == ' ') {
            if (!words.back().empty()) words.emplace_back();
        } else {
            words.back() += c;
        }
    }
    if (words.back().empty()) words.pop_back();
    return words;
}

// The text from column `begin` on, the cursor standing in `at`; ends with a newline.
std::string wrapped(std::string_view text, std::size_t begin, std::size_t at, std::size_t width) {
    std::string result(begin > at ? begin - at : 0, ' ');
    std::size_t column = std::max(begin, at);
    for (const std::string& word : words_of(text)) {
        const std::size_t length = display_width(word);
        if (column > begin && column + 1 + length > width) {
            result += "\n" + std::string(begin, ' ');
            column = begin;
        }
        if (column > begin) {
            result += ' ';
            ++column;
        }
        result += word;
        column += length;
    }
    return result + "\n";
}

std::string heading(std::string_view text) { return styled(text, Style::bold, Stream::output); }

// A label with a line for as many of a flag's words as there is room for, where all are too long.
std::string label_text(std::string_view label, std::size_t width) {
    constexpr std::size_t kIndent = 2, kFurther = 6;
    std::string text(kIndent, ' ');
    for (std::size_t column = kIndent; column + display_width(label) > width;) {
        const std::size_t end = label.rfind('|', width - column - 1);
        if (end == std::string_view::npos) break;
        text += heading(label.substr(0, end + 1)) + "\n" + std::string(kFurther, ' ');
        label.remove_prefix(end + 1);
        column = kFurther;
    }
    return text + heading(label);
}

// "  LABEL   help", the help on a line of its own where the label is too long for its column.
std::string entry_text(const std::string& label, std::string_view help, std::size_t width) {
    std::string text = label_text(label, width);
    const std::size_t end = 2 + display_width(label);
    if (width < kNarrow) return text + "\n" + wrapped(help, 6, 0, width);
    if (end + 2 <= kLabelColumn) return text + wrapped(help, kLabelColumn, end, width);
    return text + "\n" + wrapped(help, kLabelColumn, 0, width);
}

std::string commands_text(const Command& command, std::size_t width) {
    const std::vector<const Command*> commands = command.commands();
    if (commands.empty()) return {};
    std::string text = "\n" + heading("Commands:") + "\n";
    for (const Command* one : commands) text += entry_text(one->name(), one->summary(), width);
    return text;
}

std::string flags_text(const Command& command, std::size_t width) {
    std::string text;
    for (const FlagGroup& group : grouped_flags(command)) {
        text += "\n" + heading(group.name + ":") + "\n";
        for (const Flag* flag : group.flags) text += entry_text(label_of(*flag), flag->full_help(), width);
    }
    return text;
}

// The words of an example, a flag with its value as one.
std::vector<std::string> parts_of(std::string_view example) {
    std::vector<std::string> parts;
    bool after_flag = false;
    for (std::string& word : words_of(example)) {
        const bool is_flag = word.starts_with('-');
        if (after_flag && !is_flag) {
            parts.back() += " " + word;
        } else {
            parts.push_back(std::move(word));
        }
        after_flag = is_flag;
    }
    return parts;
}

// An example on several lines where it is too long for one: as a shell takes it.
std::string example_text(const std::string& example, std::size_t width) {
    constexpr std::size_t kIndent = 2, kFurther = 6;
    constexpr std::string_view kGoesOn = " \\";
    std::string text(kIndent, ' ');
    std::size_t column = kIndent;
    for (const std::string& word : parts_of(example)) {
        const std::size_t length = display_width(word);
        if (column > kFurther && column + 1 + length + kGoesOn.size() > width) {
            text += std::string(kGoesOn) + "\n" + std::string(kFurther, ' ');
            column = kFurther;
        } else if (column > kFurther || text.back() != ' ') {
            text += ' ';
            ++column;
        }
        text += word;
        column += length;
    }
    return text + "\n";
}

std::string explained_text(std::string_view title, std::span<const Explained> all, std::size_t width) {
    std::string text = "\n" + heading(title) + "\n";
    for (const auto& [name, what] : all) text += entry_text(std::string(name), what, width);
    return text;
}

std::string details_text(const Command& command, std::size_t width) {
    std::string text;
    for (const auto& [paragraph, lines] : paragraphs_of(command.details())) {
        text += "\n" + (lines.empty() ? wrapped(paragraph, 0, 0, width) : heading(paragraph) + "\n");
        for (const std::string& line : lines) text += example_text(line, width);
    }
    return text;
}

}  // namespace

std::vector<std::string> wrapped_example(const std::string& example, std::size_t width) {
    return lines_of(example_text(example, width));
}

std::string usage_of(const Command& command) {
    std::string text = command.path() + " [OPTIONS]";
    if (!command.commands().empty()) text += " COMMAND ...";
    const auto& argument = command.argument_definition();
    if (!argument) return text;
    const std::string shown = command.requires_argument() ? argument->name : "[" + argument->name + "]";
    return text + " " + shown + (command.takes_many_arguments() ? "..." : "");
}

std::string label_of(const Flag& flag) {
    std::string text = (flag.short_name.empty() ? "" : "-" + flag.short_name + ", ") + "--" + flag.name;
    if (flag.value_optional) return text + "[=" + flag.kind + "]";
    return flag.kind.empty() ? text : text + " " + flag.kind;
}

std::vector<FlagGroup> grouped_flags(const Command& command) {
    std::vector<FlagGroup> groups;
    for (const Flag& flag : command.flags()) {
        const auto known = std::ranges::find(groups, flag.group, &FlagGroup::name);
        if (known == groups.end()) {
            groups.push_back({flag.group, {&flag}});
        } else {
            known->flags.push_back(&flag);
        }
    }
    // What all commands have is defined first.
    if (!groups.empty()) std::ranges::rotate(groups, groups.begin() + 1);
    return groups;
}

std::vector<Paragraph> paragraphs_of(std::string_view details) {
    std::vector<Paragraph> paragraphs;
    bool begin = true;
    for (std::string& line : lines_of(details)) {
        if (line.empty()) {
            begin = true;
            continue;
        }
        if (begin) paragraphs.emplace_back();
        begin = false;
        Paragraph& paragraph = paragraphs.back();
        if (line.starts_with("  ")) {
            paragraph.lines.push_back(std::move(line));
        } else {
            paragraph.text += (paragraph.text.empty() ? "" : " ") + line;
        }
    }
    return paragraphs;
}

std::string help_text(const Command& command, int columns) {
    const auto width = static_cast<std::size_t>(std::min(columns, kWidest));
    const std::string usage = "Usage: ";
    std::string text = wrapped(command.summary() + ".", 0, 0, width) + "\n";
    text += heading("Usage:") + wrapped(usage_of(command), usage.size(), usage.size() - 1, width);
    if (const auto& argument = command.argument_definition())
        text += "\n" + heading("Argument:") + "\n" + entry_text(argument->name, argument->help, width);
    text += commands_text(command, width) + flags_text(command, width);
    if (command.is_program())
        text += explained_text("Exit codes:", kExitCodes, width) +
                explained_text("Environment:", kVariables, width);
    return text + details_text(command, width);
}

}  // namespace attnsmith::cli
