// What holds for every command, for the program's own help and for each man page.
#pragma once

#include <string_view>

namespace attnsmith::cli {

struct Explained {
    std::string_view name;
    std::string_view text;
};

inline constexpr Explained kExitCodes[] = {
    {"0", "success"},
    {"1", "anything that is none of the others, parts of a model that are not supported included"},
    {"2", "the request or the command line is wrong"},
    {"130, 143", "ended by Ctrl-C (SIGINT) and by SIGTERM"},
};

inline constexpr Explained kVariables[] = {
    {"ATTNSMITH_CACHE_DIR",
     "cache directories and bundles, divided by ':'; the first is written to. Without it "
     "XDG_CACHE_HOME/attnsmith "
     "or ~/.cache/attnsmith"},
    {"ATTNSMITH_CACHE_SIGN_KEY", "the secret key that signs what `attnsmith cache export` writes"},
    {"ATTNSMITH_CACHE_TRUST_KEYS",
     "public keys, divided by ':'; with any, only bundles that one of them signed are used"},
    {"ATTNSMITH_LOG", "what is told on standard error: off, error, warn (the default), info or debug"},
    {"ATTNSMITH_NVRTC_PATH", "the file or the folder of NVRTC, where it is in none of the usual places"},
    {"ATTNSMITH_ON_MISS",
     "what a program does without a kernel in the cache: compile (the default) or error. prewarm compiles in "
     "any "
     "case"},
    {"ATTNSMITH_RECORD", "a file to which programs append what they ask for, for prewarm --recorded"},
    {"ATTNSMITH_TUNING", "tuning tables, divided by ':', that planning goes by before its own"},
    {"COLUMNS, NO_COLOR, CLICOLOR_FORCE", "how wide and how colourful the output is"},
};

}  // namespace attnsmith::cli
