// The NVRTC that tests compile with: that of ATTNSMITH_NVRTC_PATH, as for users, else the one that the search
// finds.
#pragma once

#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include "compiler/nvrtc.hpp"

namespace attnsmith::test {

inline compiler::NvrtcOptions nvrtc_options() {
    const char* path = std::getenv("ATTNSMITH_NVRTC_PATH");
    return {.path = path == nullptr ? "" : path, .extra_folders = {}};
}

// The NVRTC of this machine, and those of ATTNSMITH_TEST_NVRTC: folders separated by colons, for tests that
// are to be tried with each.
inline std::vector<std::string> nvrtc_folders() {
    std::vector<std::string> folders = {nvrtc_options().path};
    const char* more = std::getenv("ATTNSMITH_TEST_NVRTC");
    std::istringstream list(more == nullptr ? "" : more);
    for (std::string folder; std::getline(list, folder, ':');) folders.push_back(folder);
    return folders;
}

}  // namespace attnsmith::test
