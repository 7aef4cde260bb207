#include "cli/program/command.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstddef>
#include <memory>
#include <string_view>

#include "cache/remote/address.hpp"
#include "cli/program/hub_name.hpp"
#include "problem/vocabulary.hpp"

namespace attnsmith::cli {
namespace {

constexpr int kMostValues = 1 << 20;  // of one list
constexpr const char* kCommonGroup = "Common options";
constexpr const char* kOutput = "output";
constexpr const char* kRepeatable = "verbose";  // the switch that means more when it is given again

std::string suggestion(const std::string& word, const std::vector<std::string>& names,
                       std::string_view before = "") {
    const std::vector<std::string_view> candidates(names.begin(), names.end());
    const std::string_view name = problem::nearest_name(word, candidates);
    return name.empty() ? std::string() : fmt::format("; did you mean {}{}?", before, name);
}

// As CLI11 takes them: "-j,--jobs".
std::string spellings(const std::string& name, const std::string& short_name) {
    return (short_name.empty() ? "" : "-" + short_name + ",") + "--" + name;
}

// `older` is another spelling, without dashes; empty: none.
CLI::Option* add_option(CLI::App& app, const Flag& flag, const std::string& older = "") {
    const std::string names = spellings(flag.name, flag.short_name) + (older.empty() ? "" : ",--" + older);
    return app.add_option(names, CLI::callback_t(), flag.help)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

// "page_size (--page-size): 0 is not accepted; ..."
std::string with_flag(const InvalidRequest& error) {
    const std::string text = error.what();
    const std::string flag = flag_of(error.field());
    if (flag == error.field()) return "--" + text;
    return fmt::format("--{} ({}){}", flag, error.field(), text.substr(error.field().size()));
}

// CLI11 takes "--flag=" as a flag whose value is the next argument.
void refuse_empty_values(int count, char** arguments) {
    for (int i = 1; i < count; ++i) {
        const std::string_view argument = arguments[i];
        if (argument.starts_with("--") && argument.find('=') == argument.size() - 1 && argument.size() > 3) {
            throw BadUsage(fmt::format("{}: the value is missing", argument.substr(0, argument.size() - 1)));
        }
    }
}

// CLI11 takes "--switch=no" for the switch.
void refuse_values_of_switches(const Command& command, int count, char** arguments) {
    for (int i = 1; i < count; ++i) {
        const std::string_view argument = arguments[i];
        if (argument == "--") return;  // no flags after it
        const std::size_t equals = argument.find('=');
        if (!argument.starts_with("--") || equals == argument.npos) continue;
        if (command.is_switch(std::string(argument.substr(2, equals - 2))))
            throw BadUsage(fmt::format("{} takes no value", argument.substr(0, equals)));
    }
}

// What CLI11 finds wrong: by now only a flag without its value.
[[noreturn]] void refuse(const CLI::ParseError& error) {
    const std::string what = error.what();
    const bool mismatch = dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr;
    if (mismatch && what.starts_with("--")) {
        throw BadUsage(fmt::format("{}: the value is missing", what.substr(0, what.find(':'))));
    }
    throw BadUsage(what);
}

// A place of a cache without its --cache may have a password.
bool may_hold_password(const std::string& argument) {
    return cache::may_hold_password({&argument, 1}) && argument.find(':') != argument.npos;
}

constexpr std::string_view kNotShown = "an argument with an @ (not shown, since it may hold a password)";

}  // namespace

std::string flag_of(std::string_view field) {
    std::string flag(field);
    std::ranges::replace(flag, '_', '-');
    return flag;
}

InvalidFlag::InvalidFlag(const InvalidRequest& error, std::string_view where)
    : InvalidRequest(error),
      text_(where.empty() ? with_flag(error) : fmt::format("{}: {}", where, with_flag(error))) {}

std::string Flag::full_help() const { return details ? help + details() : help; }

Command::Command(CLI::App& app, std::string summary, std::string details)
    : Command(app, nullptr, std::move(summary), std::move(details)) {
    add_common_flags();
}

Command::Command(CLI::App& app, const Command* parent, std::string summary, std::string details)
    : app_(app), parent_(parent), summary_(std::move(summary)), details_(std::move(details)) {
    app_.allow_extras();            // refuse_extras() says it better
    app_.require_subcommand(0, 1);  // a second name is an argument: `help plan`
}

void Command::add_common_flags() {
    const auto add = [&](const char* name, const char* short_name, const char* help) {
        add_switch(name, help, short_name);
        flags_.back().group = kCommonGroup;
    };
    add("verbose", "v", "say what is decided and why, with every reason; given twice, everything");
    add("quiet", "q", "say nothing but results and errors: no progress, notes, warnings or reasons");
    show_flag("help", "h", "show this help");
}

void Command::show_flag(const std::string& name, const std::string& short_name, const std::string& help) {
    flags_.push_back({name, short_name, "", help, kCommonGroup});
}

Command& Command::add_child(const std::string& name, const std::string& summary, const std::string& details) {
    CLI::App* app = app_.add_subcommand(name, summary);
    return *children_.emplace_back(new Command(*app, this, summary, details));
}

Command& Command::add_command(const std::string& name, const std::string& summary,
                              const std::string& details) {
    Command& child = add_child(name, summary, details);
    child.add_common_flags();
    return child;
}

Command& Command::add_hidden_command(const std::string& name, const std::string& summary) {
    Command& child = add_child(name, summary, "");
    child.hidden_ = true;
    return child;
}

void Command::add_value(const std::string& name, const std::string& kind, const std::string& help,
                        const std::string& group, const std::string& short_name) {
    flags_.push_back({name, short_name, kind, help, group});
    add_option(app_, flags_.back())->expected(1);
}

void Command::add_output(const std::string& kind, const std::string& help, const std::string& older) {
    flags_.push_back({kOutput, "o", kind, help, "Options"});
    add_option(app_, flags_.back(), older)->expected(1);
}

void Command::add_switch(const std::string& name, const std::string& help, const std::string& short_name) {
    flags_.push_back({name, short_name, "", help, "Options"});
    app_.add_flag(spellings(name, short_name), help)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

void Command::add_boolean(const std::string& name, const std::string& help, const std::string& group) {
    flags_.push_back({name, "", "true|false", help, group, true});
    add_option(app_, flags_.back())->expected(0, 1);
}

void Command::add_list(const std::string& name, const std::string& kind, const std::string& help) {
    flags_.push_back({name, "", kind, help, "Options"});
    add_option(app_, flags_.back())->expected(1, kMostValues);
}

void Command::add_repeatable(const std::string& name, const std::string& kind, const std::string& help) {
    flags_.push_back({name, "", kind, help, "Options"});
    add_option(app_, flags_.back())
        ->expected(1, CLI::detail::expected_max_vector_size)
        ->allow_extra_args(false);
}

void Command::add_argument(const std::string& kind, const std::string& help) {
    add_optional_argument(kind, help);
    argument_required_ = true;
}

void Command::add_optional_argument(const std::string& kind, const std::string& help) {
    argument_definition_ = Flag{kind, "", "", help, ""};
    argument_ = app_.add_option(kind, CLI::callback_t(), help)->expected(1);
}

void Command::add_arguments(const std::string& kind, const std::string& help) {
    argument_definition_ = Flag{kind, "", "", help, ""};
    many_arguments_ = true;
    argument_ =
        app_.add_option(kind, CLI::callback_t(), help)->expected(0, kMostValues)->allow_extra_args(true);
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

std::size_t Command::count_with_parents(const std::string& name) const {
    const std::size_t above = parent_ == nullptr ? 0 : parent_->count_with_parents(name);
    return knows(name) ? option(name)->count() + above : above;
}

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

std::vector<std::string> Command::arguments() const { return argument_->results(); }

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
            refuse_repeats();
            return child->selected();
        }
    }
    refuse_extras();
    refuse_repeats();
    return *this;
}

const Command& Command::innermost() const {
    for (const auto& child : children_) {
        if (app_.got_subcommand(&child->app_)) return child->innermost();
    }
    return *this;
}

int Command::run() const try { return run_(*this); } catch (const InvalidFlag&) {
    throw;
} catch (const InvalidRequest& error) {
    if (!knows(flag_of(error.field()))) throw;
    throw InvalidFlag(error);
}

std::string Command::name() const { return app_.get_name(); }

std::string Command::path() const { return parent_ == nullptr ? name() : parent_->path() + " " + name(); }

std::vector<const Command*> Command::commands() const {
    std::vector<const Command*> shown;
    for (const auto& child : children_) {
        if (!child->hidden_) shown.push_back(child.get());
    }
    return shown;
}

const Command& Command::find(const std::vector<std::string>& names) const {
    const Command* found = this;
    for (const std::string& name : names) {
        const auto child =
            std::ranges::find(found->children_, name, [](const auto& one) { return one->name(); });
        if (child == found->children_.end()) found->refuse_command(name);
        found = child->get();
    }
    return *found;
}

std::vector<std::string> Command::command_names() const {
    std::vector<std::string> names;
    for (const Command* command : commands()) names.push_back(command->name());
    return names;
}

std::vector<std::string> Command::flag_names() const {
    std::vector<std::string> names;
    for (const Flag& flag : flags_) names.push_back(flag.name);
    return names;
}

void Command::refuse_command(const std::string& name) const {
    const std::vector<std::string> names = command_names();
    const std::string only = names.empty() ? std::string() : fmt::format(", only {}", fmt::join(names, ", "));
    throw BadUsage(fmt::format("{}: {} has no such command{}{}", problem::quote(name), app_.get_name(), only,
                               suggestion(name, names)));
}

// The flag that an argument without one was meant for, as far as its spelling says; empty where it does not.
std::string Command::flag_for(const std::string& argument) const {
    const auto ends_with = [&](std::string_view end) { return argument.ends_with(end); };
    const bool is_number = !argument.empty() && std::ranges::all_of(argument, [](unsigned char letter) {
        return std::isdigit(letter) != 0;
    });
    const bool is_model = ends_with(".json") || (is_hub_name(argument) && !ends_with(".bundle"));
    if (is_model && knows("model")) return "model";
    if (is_number && knows("sm")) return "sm";
    if (!is_number && knows(kOutput)) return kOutput;
    return {};
}

void Command::refuse_extras() const {
    const std::vector<std::string> extras = app_.remaining();
    if (extras.empty()) return;
    const std::string name = extras.front().substr(0, extras.front().find('='));
    const std::string& extra = name.starts_with("-") ? name : extras.front();
    if (may_hold_password(extra))
        throw BadUsage(fmt::format("{}: {} does not take it; see --help", kNotShown, app_.get_name()));
    if (extra.starts_with("-") && extra != "-" && extra != "--") {
        // Dashes, which all have, would make "--json" look like "--op".
        const std::string word = extra.substr(std::min(extra.find_first_not_of('-'), extra.size()));
        throw BadUsage(fmt::format("{}: {} has no such flag{}", extra, app_.get_name(),
                                   suggestion(word, flag_names(), "--")));
    }
    if (!children_.empty()) refuse_command(extra);
    const std::string taken = argument_ == nullptr ? "flags only" : "flags and one " + argument_->get_name();
    const std::string flag = flag_for(extra);
    throw BadUsage(fmt::format(
        "{}: {} takes {}; {}", problem::quote(extra), app_.get_name(), taken,
        flag.empty() ? "see --help" : fmt::format("did you mean --{} {}?", flag, problem::quote(extra))));
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
        const bool list = option->get_expected_max() > 1 || option->check_lname(kRepeatable);
        if (!list && option->count() > 1)
            throw BadUsage(fmt::format("{} is given twice", option->get_name()));
    }
}

CommandLine::CommandLine(std::string summary, std::string details)
    : app_(std::make_unique<CLI::App>(summary, "attnsmith")) {
    app_->set_version_flag("-V,--version", "");
    app_->failure_message([](const CLI::App*, const CLI::Error&) { return std::string(); });
    root_ = std::make_unique<Command>(*app_, std::move(summary), std::move(details));
    root_->show_flag("version", "V", "show the version");
}

CommandLine::~CommandLine() = default;

CommandLine::Asked CommandLine::parse(int count, char** arguments) {
    try {
        app_->parse(count, arguments);
    } catch (const CLI::CallForHelp&) {
        return Asked::help;
    } catch (const CLI::CallForVersion&) {
        return Asked::version;
    } catch (const CLI::ParseError& error) {
        refuse(error);
    }
    refuse_empty_values(count, arguments);
    refuse_values_of_switches(root_->selected(), count, arguments);
    return Asked::command;
}

}  // namespace attnsmith::cli
