// The attnsmith command: parses the command line, runs one command, turns errors into one line and an exit
// code.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <new>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "attnsmith/error.hpp"
#include "attnsmith/version.hpp"
#include "cli/commands.hpp"
#include "cli/program/command.hpp"
#include "cli/program/completion.hpp"
#include "cli/program/help.hpp"
#include "cli/program/output.hpp"
#include "cli/program/terminal.hpp"
#include "problem/failure.hpp"
#include "problem/json_text.hpp"
#include "problem/visible_text.hpp"

namespace attnsmith::cli {
namespace {

constexpr const char* kSummary =
    "GPU attention kernels, built at run time: plan them, compile them ahead, check them";

constexpr const char* kProgramDetails =
    "Example:\n"
    "  attnsmith plan --head-dim 128 --q-heads 32 --kv-heads 8 --mask causal --sm 90";

// Before any thread is made, and for the programs that a command starts, too.
void set_verbosity(const Command& command) {
    const std::size_t verbose = command.count_with_parents("verbose");
    const bool quiet = command.count_with_parents("quiet") > 0;
    if (verbose > 0 && quiet) throw BadUsage("--quiet cannot be given beside --verbose");
    if (verbose > 0 || quiet) set_verbosity(quiet ? Verbosity::quiet : Verbosity::verbose);
    if (verbose > 0 || quiet) ::setenv("ATTNSMITH_LOG", quiet ? "error" : verbose == 1 ? "info" : "debug", 1);
}

int show_help(const Command& command) {
    print(help_text(command, columns(Stream::output)));
    return kSuccess;
}

void add_help(Command& root) {
    Command& help =
        root.add_command("help", "Show the help of a command", "Example:\n  attnsmith help cache export");
    help.add_arguments(kCommandArgument, "the command's name, and those of commands within it");
    help.on_run([&root](const Command& given) { return show_help(root.find(given.arguments())); });
}

void add_commands(Command& root) {
    add_plan(root);
    add_prewarm(root);
    add_check(root);
    add_doctor(root);
    add_bench(root);
    add_tune(root);
    add_cache(root);
    add_help(root);
    add_documents(root);
}

int run(int count, char** arguments) {
    CommandLine line(kSummary, kProgramDetails);
    add_commands(line.root());
    if (count <= 1) return show_help(line.root());
    switch (line.parse(count, arguments)) {
        case CommandLine::Asked::help:
            return show_help(line.root().innermost());
        case CommandLine::Asked::version:
            print("attnsmith " ATTNSMITH_VERSION "\n");
            return kSuccess;
        case CommandLine::Asked::command:
            break;
    }
    const Command& command = line.root().selected();
    set_verbosity(command);
    if (!command.commands().empty()) {
        std::vector<std::string> names;
        for (const Command* one : command.commands()) names.push_back(one->name());
        throw BadUsage(
            fmt::format("{} needs a command: {}; see --help", command.path(), fmt::join(names, ", ")));
    }
    return command.run();
}

// Whether the command line asks for JSON, also where it cannot be understood.
bool asks_for_json(int count, char** arguments) {
    const auto end = std::find_if(arguments, arguments + count,
                                  [](std::string_view argument) { return argument == "--"; });
    return std::any_of(arguments, end, [](std::string_view argument) { return argument == "--json"; });
}

// Schema attnsmith.error/1; `fields` are those of the error.
void print_error_json(int code, const std::string& fields) {
    print_json(problem::parse_ordered_json(
                   fmt::format(R"({{"schema":"attnsmith.error/1","exit_code":{},{}}})", code, fields))
                   .value());
}

// How the exception that is being handled is told. Throws std::bad_alloc for that itself.
struct Told {
    int code = kFailure;
    std::string line;
    std::string fields;  // of the JSON
    std::string log;     // to show beneath
};

Told told_of_exception() {
    try {
        throw;
    } catch (const BadUsage& error) {
        return {kBadRequest,
                error.what(),
                fmt::format(R"("code":"bad_usage","message":{})", problem::json_string(error.what())),
                {}};
    } catch (const InvalidRequest& error) {
        return {kBadRequest, error.what(), problem::fields_text(problem::current_failure()), {}};
    } catch (const CompileError& error) {
        return {kFailure, error.what(), problem::fields_text(problem::current_failure()), error.log()};
    } catch (const Error& error) {
        return {kFailure, error.what(), problem::fields_text(problem::current_failure()), {}};
    } catch (const std::bad_alloc&) {
        throw;
    } catch (const std::exception& error) {
        return {kFailure,
                fmt::format("internal error: {}", error.what()),
                problem::fields_text(problem::current_failure()),
                {}};
    }
}

int tell_of_exception(bool as_json) {
    try {
        const Told told = told_of_exception();
        // A report that is out already is what there is to read.
        if (as_json && !has_printed()) print_error_json(told.code, told.fields);
        print_error(told.line);
        if (!told.log.empty()) print_note(problem::visible_lines(told.log));
        return told.code;
    } catch (const std::bad_alloc&) {
        constexpr std::string_view kJson =
            R"({"schema": "attnsmith.error/1", "exit_code": 1, "code": "out_of_memory", "message": "out of memory"})"
            "\n";
        if (as_json && !has_printed()) print(kJson);
        print_error("out of memory");
        return kFailure;
    }
}

int run_safely(int count, char** arguments) {
    try {
        return run(count, arguments);
    } catch (...) {
        return tell_of_exception(asks_for_json(count, arguments));
    }
}

}  // namespace
}  // namespace attnsmith::cli

int main(int count, char** arguments) {
    using namespace attnsmith::cli;
    prepare_standard_streams();
    const int code = run_safely(count, arguments);
    const std::string trouble = finish_output();
    if (trouble.empty()) return code;
    print_error(trouble);
    return code == kSuccess ? static_cast<int>(kFailure) : code;
}
