// A command of the command line with its flags: parsed by CLI11, kept here as definitions, from which the
// help, the shells' completion and the man pages are written. Flags are texts here: what they mean is for the
// commands, and for the library's one parser of requests.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "attnsmith/error.hpp"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace attnsmith::cli {

// What exit codes mean, for every command.
enum ExitCode : int { kSuccess = 0, kFailure = 1, kBadRequest = 2 };

// The command line itself is wrong, or a file that it names cannot be read. what() is one line.
class BadUsage : public Error {
  public:
    using Error::Error;
};

// The flag, without dashes, that says a request's field: "page-size" of "page_size".
std::string flag_of(std::string_view field);

// What a flag says is wrong: as the field's error, which stays what it is, with the flag's spelling in
// what(). `where` is the file that the flag was used on, if any.
class InvalidFlag : public InvalidRequest {
  public:
    explicit InvalidFlag(const InvalidRequest& error, std::string_view where = {});
    const char* what() const noexcept override { return text_.c_str(); }

  private:
    std::string text_;
};

// A flag, or an argument that is none, as it is shown.
struct Flag {
    std::string name;        // without dashes: "page-size"; of an argument its kind
    std::string short_name;  // a letter, or nothing
    std::string kind;        // "FILE", "N", "full|causal"; empty for a switch
    std::string help;
    std::string group;
    bool value_optional = false;             // --lse or --lse=false
    std::function<std::string()> details{};  // worked out where help is shown: "(default bf16)"

    // With the details.
    std::string full_help() const;
};

class Command {
  public:
    using Run = std::function<int(const Command&)>;

    // The program itself; see CommandLine.
    Command(CLI::App& app, std::string summary, std::string details);

    // `details` follows the flags in --help; each line of it that starts with "  attnsmith" is an example
    // that works.
    Command& add_command(const std::string& name, const std::string& summary, const std::string& details);
    // The same of one that programs call and no help shows.
    Command& add_hidden_command(const std::string& name, const std::string& summary);
    void on_run(Run run) { run_ = std::move(run); }

    // Names are without dashes: "page-size". `group` heads a part of the help; a short name is one letter.
    void add_value(const std::string& name, const std::string& kind, const std::string& help,
                   const std::string& group = "Options", const std::string& short_name = "");
    // --output or -o; `older` is another spelling that is taken as well, and shown nowhere.
    void add_output(const std::string& kind, const std::string& help, const std::string& older = "");
    void add_switch(const std::string& name, const std::string& help, const std::string& short_name = "");
    // --lse or --lse=false.
    void add_boolean(const std::string& name, const std::string& help, const std::string& group);
    // One or more values, and the flag may be repeated.
    void add_list(const std::string& name, const std::string& kind, const std::string& help);

    // One value; the flag may be repeated.
    void add_repeatable(const std::string& name, const std::string& kind, const std::string& help);

    // In the help alone, for a flag that CLI11 answers itself.
    void show_flag(const std::string& name, const std::string& short_name, const std::string& help);

    // What the help of the flag that was added last says behind its text, worked out where it is shown.
    void add_details(std::function<std::string()> details) { flags_.back().details = std::move(details); }

    // The one argument that is no flag: "FILE".
    void add_argument(const std::string& kind, const std::string& help);
    // The same of one that may be left out.
    void add_optional_argument(const std::string& kind, const std::string& help);
    // Any number of them.
    void add_arguments(const std::string& kind, const std::string& help);

    bool knows(const std::string& name) const;      // whether it has such a flag
    bool is_switch(const std::string& name) const;  // and that takes no value
    bool has(const std::string& name) const;        // whether that is given
    // How often a switch is given, to this command or to those that it belongs to.
    std::size_t count_with_parents(const std::string& name) const;
    std::optional<std::string> text(const std::string& name) const;
    std::vector<std::string> texts(const std::string& name) const;
    bool has_argument() const;
    // The value of add_argument()'s. Throws BadUsage where it is not given.
    std::string argument() const;
    std::vector<std::string> arguments() const;
    // Throws InvalidRequest for a text that is no integer from `least` to `most`.
    std::int64_t integer(const std::string& name, std::int64_t least, std::int64_t most,
                         std::int64_t otherwise) const;

    // The command that was named, to the innermost; it may hold others, and do nothing itself. Throws
    // BadUsage for arguments that nobody takes and for flags given twice.
    const Command& selected() const;
    // As far as the command line names one, whatever is wrong with the rest of it.
    const Command& innermost() const;
    // Throws InvalidFlag for the InvalidRequest of a field that one of this command's flags says.
    int run() const;

    // What help, completion and man pages are made of.
    bool is_program() const { return parent_ == nullptr; }
    const Command* parent() const { return parent_; }
    std::string name() const;  // "ls"
    std::string path() const;  // "attnsmith cache ls"
    const std::string& summary() const { return summary_; }
    const std::string& details() const { return details_; }
    const std::vector<Flag>& flags() const { return flags_; }  // in the order of help
    const std::optional<Flag>& argument_definition() const { return argument_definition_; }
    bool takes_many_arguments() const { return many_arguments_; }
    bool requires_argument() const { return argument_required_; }
    std::vector<const Command*> commands() const;  // that help shows
    // The command of these names below this one. Throws BadUsage where there is none.
    const Command& find(const std::vector<std::string>& names) const;

  private:
    Command(CLI::App& app, const Command* parent, std::string summary, std::string details);
    Command& add_child(const std::string& name, const std::string& summary, const std::string& details);
    void add_common_flags();
    CLI::Option* option(const std::string& name) const;
    [[noreturn]] void refuse_command(const std::string& name) const;
    std::vector<std::string> command_names() const;
    std::vector<std::string> flag_names() const;
    std::string flag_for(const std::string& argument) const;
    void refuse_extras() const;
    void refuse_repeats() const;
    void refuse_flags_as_values() const;

    CLI::App& app_;
    const Command* parent_ = nullptr;
    std::string summary_, details_;
    bool hidden_ = false;
    std::vector<Flag> flags_;
    CLI::Option* argument_ = nullptr;
    std::optional<Flag> argument_definition_;
    bool many_arguments_ = false, argument_required_ = false;
    std::vector<std::unique_ptr<Command>> children_;
    Run run_;
};

// The program's command line. Only command.cpp includes CLI11, which takes seconds to compile.
class CommandLine {
  public:
    enum class Asked { command, help, version };

    CommandLine(std::string summary, std::string details);
    ~CommandLine();

    Command& root() { return *root_; }

    // Throws BadUsage for flags without their values, and for switches with one. What nobody takes is for
    // Command::selected().
    Asked parse(int count, char** arguments);

  private:
    std::unique_ptr<CLI::App> app_;
    std::unique_ptr<Command> root_;
};

}  // namespace attnsmith::cli
