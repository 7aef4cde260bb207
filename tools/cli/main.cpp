// The attnsmith command: parses the command line, runs one command, turns errors into one line and an exit
// code.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <exception>
#include <new>

#include "attnsmith/error.hpp"
#include "attnsmith/version.hpp"
#include "cli/command.hpp"
#include "cli/commands.hpp"
#include "cli/output.hpp"
#include "problem/visible_text.hpp"

namespace attnsmith::cli {
namespace {

constexpr const char* kDetails =
    "Exit codes: 0 success; 2 the request or the command line is wrong; 1 anything else, parts of a\n"
    "model that are not supported included. Environment: ATTNSMITH_CACHE_DIR, ATTNSMITH_LOG\n"
    "(off|error|warn|info|debug), ATTNSMITH_NVRTC_PATH, ATTNSMITH_TUNING.\n\n"
    "Example:\n"
    "  attnsmith plan --head-dim 128 --q-heads 32 --kv-heads 8 --mask causal --sm 90";

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

int run(int count, char** arguments) {
    CLI::App app("GPU attention kernels, built at run time: plan them, compile them ahead, check them.",
                 "attnsmith");
    app.footer(kDetails);
    app.allow_extras();
    app.get_formatter()->column_width(20);
    app.get_formatter()->label("SUBCOMMAND", "COMMAND");
    app.get_formatter()->label("SUBCOMMANDS", "COMMANDS");
    app.set_version_flag("--version", "attnsmith " ATTNSMITH_VERSION);
    app.failure_message([](const CLI::App*, const CLI::Error&) { return std::string(); });
    Command root(app);
    add_plan(root);
    add_prewarm(root);
    add_check(root);
    add_doctor(root);
    add_bench(root);
    add_tune(root);
    add_cache(root);
    try {
        app.parse(count, arguments);
    } catch (const CLI::CallForHelp&) {
        print(app.help() + "\n");
        return kSuccess;
    } catch (const CLI::CallForVersion& version) {
        print(std::string(version.what()) + "\n");
        return kSuccess;
    } catch (const CLI::ParseError& error) {
        refuse(error);
    }
    refuse_empty_values(count, arguments);
    const Command& command = root.selected();
    refuse_values_of_switches(command, count, arguments);
    return command.run();
}

int fail(int code, std::string_view message) {
    print_error(message);
    return code;
}

int run_safely(int count, char** arguments) {
    try {
        return run(count, arguments);
    } catch (const BadUsage& error) {
        return fail(kBadRequest, error.what());
    } catch (const InvalidRequest& error) {
        return fail(kBadRequest, error.what());
    } catch (const CompileError& error) {
        print_error(error.what());
        print_note(problem::visible_lines(error.log()));
        return kFailure;
    } catch (const Error& error) {
        return fail(kFailure, error.what());
    } catch (const std::bad_alloc&) {
        return fail(kFailure, "out of memory");
    } catch (const std::exception& error) {
        return fail(kFailure, fmt::format("internal error: {}", error.what()));
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
