// The NVRTC that tests compile with: that of ATTNSMITH_NVRTC_PATH, as for users, else the one that the search
// finds.
#pragma once

#include <cstdlib>

#include "compiler/nvrtc.hpp"

namespace attnsmith::test {

inline compiler::NvrtcOptions nvrtc_options() {
    const char* path = std::getenv("ATTNSMITH_NVRTC_PATH");
    return {.path = path == nullptr ? "" : path, .extra_folders = {}};
}

}  // namespace attnsmith::test
