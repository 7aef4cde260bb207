// What prewarm and cache pull share, since a pull is a prewarm that compiles nothing: the kernels that are
// asked for, the run with its progress, and its report.
#pragma once

#include <vector>

#include "attnsmith/runtime.hpp"
#include "cli/asked/asked.hpp"
#include "cli/program/command.hpp"

namespace attnsmith::cli {

struct PrewarmRun {
    RuntimeOptions runtime;  // its log is set by the run
    PrewarmOptions options;  // its callbacks and its stop likewise
    const char* doing;       // "compiling": for the bar
    const char* when_interrupted;
};

// Returns the exit code.
int run_prewarm(const Command& command, const Asked& asked, const std::vector<int>& sms, PrewarmRun run);

// --sign-key, of what is pushed, and the key's file in `options`. Throws InvalidRequest where it is no key.
void add_sign_key_flag(Command& command);
void read_sign_key_flag(const Command& command, RuntimeOptions& options);

}  // namespace attnsmith::cli
