#include "cli/command.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <string_view>

#include "problem/vocabulary.hpp"

namespace attnsmith::cli {
namespace {

constexpr int kMostValues = 1 << 20;  // of one list

std::string nearest(const std::string& word, const std::vector<std::string>& names) {
    const std::vector<std::string_view> candidates(names.begin(), names.end());
    return std::string(problem::nearest_name(word, candidates));
}

std::string suggestion(const std::string& word, const std::vector<std::string>& names) {
    const std::string name = nearest(word, names);
    return name.empty() ? std::string() : fmt::format("; did you mean {}?", name);
}

std::vector<std::string> flag_names(const CLI::App& app) {
    std::vector<std::string> names;
    for (const CLI::Option* option : app.get_options()) {
        for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    }
    return names;
}

std::vector<std::string> command_names(const CLI::App& app) {
    std::vector<std::string> names;
    for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
        names.push_back(command->get_name());
    }
    return names;
}

}  // namespace

Command& Command::add_command(const std::string& name, const std::string& summary,
                              const std::string& details) {
    CLI::App* app = app_.add_subcommand(name, summary);
    app->group("Commands");
    app->footer(details);
    app->allow_extras();  // refuse_extras() says it better
    app->get_formatter()->column_width(34);
    return *children_.emplace_back(std::make_unique<Command>(*app));
}

void Command::add_value(const std::string& name, const std::string& kind, const std::string& help,
                        const std::string& group, const std::string& short_name) {
    app_.add_option((short_name.empty() ? "" : "-" + short_name + ",") + "--" + name, CLI::callback_t(), help)
        ->expected(1)
        ->type_name(kind)
        ->group(group)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

void Command::add_switch(const std::string& name, const std::string& help) {
    app_.add_flag("--" + name, help)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

void Command::add_boolean(const std::string& name, const std::string& help, const std::string& group) {
    app_.add_option("--" + name, CLI::callback_t(), help)
        ->expected(0, 1)
        ->type_name("")
        ->group(group)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

void Command::add_list(const std::string& name, const std::string& kind, const std::string& help) {
    app_.add_option("--" + name, CLI::callback_t(), help)
        ->expected(1, kMostValues)
        ->type_name(kind)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

void Command::add_repeatable(const std::string& name, const std::string& kind, const std::string& help) {
    app_.add_option("--" + name, CLI::callback_t(), help)
        ->expected(1, CLI::detail::expected_max_vector_size)
        ->allow_extra_args(false)
        ->type_name(kind)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

void Command::add_argument(const std::string& kind, const std::string& help) {
    argument_ = app_.add_option(kind, CLI::callback_t(), help)->expected(1)->type_name("");
}

CLI::Option* Command::option(const std::string& name) const { return app_.get_option("--" + name); }

bool Command::knows(const std::string& name) const {
    return app_.get_option_no_throw("--" + name) != nullptr;
}

bool Command::is_switch(const std::string& name) const {
    const CLI::Option* const found = app_.get_option_no_throw("--" + name);
    return found != nullptr && found->get_expected_max() == 0;
}

bool Command::has(const std::string& name) const { return option(name)->count() > 0; }

std::optional<std::string> Command::text(const std::string& name) const {
    const std::vector<std::string> all = texts(name);
    return all.empty() ? std::nullopt : std::optional(all.front());
}

std::vector<std::string> Command::texts(const std::string& name) const { return option(name)->results(); }

bool Command::has_argument() const { return argument_->count() > 0; }

std::string Command::argument() const {
    if (argument_->count() == 0) {
        throw BadUsage(fmt::format("{} is missing; see --help", argument_->get_name()));
    }
    return argument_->results().front();
}

std::int64_t Command::integer(const std::string& name, std::int64_t least, std::int64_t most,
                              std::int64_t otherwise) const {
    const std::optional<std::string> given = text(name);
    if (!given) return otherwise;
    std::int64_t value = 0;
    const char* const end = given->data() + given->size();
    const auto parsed = std::from_chars(given->data(), end, value);
    if (parsed.ec == std::errc() && parsed.ptr == end && value >= least && value <= most) return value;
    throw InvalidRequest(name, problem::quote(*given), fmt::format("an integer from {} to {}", least, most));
}

const Command& Command::selected() const {
    refuse_flags_as_values();
    for (const auto& child : children_) {
        if (app_.got_subcommand(&child->app_)) {
            refuse_extras();
            return child->selected();
        }
    }
    refuse_extras();
    if (!children_.empty()) {
        throw BadUsage(fmt::format("{} needs a command, one of {}", app_.get_name(),
                                   fmt::join(command_names(app_), ", ")));
    }
    refuse_repeats();
    return *this;
}

void Command::refuse_extras() const {
    const std::vector<std::string> extras = app_.remaining();
    if (extras.empty()) return;
    const std::string extra = extras.front().substr(0, extras.front().find('='));
    if (extra.starts_with("-") && extra != "-" && extra != "--") {
        throw BadUsage(fmt::format("{}: {} has no such flag{}", extra, app_.get_name(),
                                   suggestion(extra, flag_names(app_))));
    }
    if (!children_.empty()) {
        const std::vector<std::string> names = command_names(app_);
        throw BadUsage(fmt::format("{}: {} has no such command, only {}{}", problem::quote(extra),
                                   app_.get_name(), fmt::join(names, ", "), suggestion(extra, names)));
    }
    const std::string taken = argument_ == nullptr ? "flags only" : "flags and one " + argument_->get_name();
    throw BadUsage(
        fmt::format("{}: {} takes {}; see --help", problem::quote(extras.front()), app_.get_name(), taken));
}

// CLI11 takes whatever follows for the value.
void Command::refuse_flags_as_values() const {
    for (const CLI::Option* option : app_.get_options()) {
        for (const std::string& value : option->results()) {
            if (value.starts_with("--"))
                throw BadUsage(fmt::format("{}: the value is missing", option->get_name()));
        }
    }
}

void Command::refuse_repeats() const {
    for (const CLI::Option* option : app_.get_options()) {
        const bool list = option->get_expected_max() > 1;
        if (!list && option->count() > 1)
            throw BadUsage(fmt::format("{} is given twice", option->get_name()));
    }
}

}  // namespace attnsmith::cli
