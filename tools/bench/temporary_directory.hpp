// A directory of a benchmark's own, removed with all that is in it.
#pragma once

#include <stdlib.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>
#include <system_error>

#include "attnsmith/error.hpp"

namespace attnsmith::bench {

class TemporaryDirectory {
  public:
    // Throws Error.
    TemporaryDirectory() {
        std::string name = (std::filesystem::temp_directory_path() / "attnsmith-bench-XXXXXX").string();
        if (::mkdtemp(name.data()) == nullptr) {
            throw Error("cannot make a temporary directory " + name + ": " + std::strerror(errno));
        }
        path_ = name;
    }
    ~TemporaryDirectory() {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }
    TemporaryDirectory(const TemporaryDirectory&) = delete;
    TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
    const std::string& path() const { return path_; }

  private:
    std::string path_;
};

}  // namespace attnsmith::bench
