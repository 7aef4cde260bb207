// A command of the command line with its flags, over CLI11. Flags are texts here: what they mean is for the
// commands, and for the library's one parser of requests.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
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

class Command {
  public:
    using Run = std::function<int(const Command&)>;

    explicit Command(CLI::App& app) : app_(app) {}

    // `details` follows the flags in --help; each line of it that starts with "  attnsmith" is an example
    // that works.
    Command& add_command(const std::string& name, const std::string& summary, const std::string& details);
    void on_run(Run run) { run_ = std::move(run); }

    // Names are without dashes: "page-size". `group` heads a part of the help; a short name is one letter.
    void add_value(const std::string& name, const std::string& kind, const std::string& help,
                   const std::string& group = "Options", const std::string& short_name = "");
    void add_switch(const std::string& name, const std::string& help);
    // --lse or --lse=false.
    void add_boolean(const std::string& name, const std::string& help, const std::string& group);
    // One or more values, and the flag may be repeated.
    void add_list(const std::string& name, const std::string& kind, const std::string& help);

    // One value; the flag may be repeated.
    void add_repeatable(const std::string& name, const std::string& kind, const std::string& help);

    // The one argument that is no flag: "FILE".
    void add_argument(const std::string& kind, const std::string& help);

    bool knows(const std::string& name) const;      // whether it has such a flag
    bool is_switch(const std::string& name) const;  // and that takes no value
    bool has(const std::string& name) const;        // whether that is given
    std::optional<std::string> text(const std::string& name) const;
    std::vector<std::string> texts(const std::string& name) const;
    bool has_argument() const;
    // Of add_argument(). Throws BadUsage where it is not given.
    std::string argument() const;
    // Throws InvalidRequest for a text that is no integer from `least` to `most`.
    std::int64_t integer(const std::string& name, std::int64_t least, std::int64_t most,
                         std::int64_t otherwise) const;

    // The command that was named, to the innermost. Throws BadUsage where none was, for arguments that nobody
    // takes and for flags given twice.
    const Command& selected() const;
    int run() const { return run_(*this); }

  private:
    CLI::Option* option(const std::string& name) const;
    void refuse_extras() const;
    void refuse_repeats() const;
    void refuse_flags_as_values() const;

    CLI::App& app_;
    CLI::Option* argument_ = nullptr;
    std::vector<std::unique_ptr<Command>> children_;
    Run run_;
};

}  // namespace attnsmith::cli
