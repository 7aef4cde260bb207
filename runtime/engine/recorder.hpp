// A file in which a program leaves what it asked for, for `attnsmith prewarm --recorded`.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_set>

#include "cache/per_process.hpp"
#include "engine/log.hpp"
#include "problem/problem.hpp"

namespace attnsmith::engine {

// Thread-safe, also right after fork. Each line is appended by one write, so that any number of processes may
// share the file. What cannot be written is told once, and fails nothing.
class Recorder {
  public:
    // An empty name records nothing.
    Recorder(std::string file, std::shared_ptr<const Log> log)
        : file_(std::move(file)), log_(std::move(log)) {}

    // Appends the spec's line, once in each process.
    void record(const problem::Problem& problem) noexcept;

  private:
    struct Written {
        std::mutex mutex;
        std::unordered_set<std::string> lines;
    };

    void record_line(std::string line);
    void tell(std::string_view trouble) const;

    const std::string file_;
    const std::shared_ptr<const Log> log_;
    cache::PerProcess<Written> written_;
    mutable std::atomic<bool> told_ = false;
};

}  // namespace attnsmith::engine
