// A file in which a program leaves what it asked for, for `attnsmith prewarm --recorded`.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_set>

#include "cache/files/per_process.hpp"
#include "problem/request/problem.hpp"
#include "settings/log.hpp"

namespace attnsmith::engine {

// Thread-safe, also right after fork. Each line is appended by one write, so that any number of processes may
// share the file. What cannot be written is told once and fails nothing. It is tried again with whatever is
// recorded next, and at last when the recorder is destroyed, since a runtime asks only once for each spec
// that it has prepared.
class Recorder {
  public:
    // An empty name records nothing.
    Recorder(std::string file, std::shared_ptr<const Log> log)
        : file_(std::move(file)), log_(std::move(log)) {}

    ~Recorder();
    Recorder(const Recorder&) = delete;
    Recorder& operator=(const Recorder&) = delete;

    // Appends the spec's line, once in each process.
    void record(const problem::Problem& problem) noexcept;

  private:
    struct Written {
        std::mutex mutex;
        std::unordered_set<std::string> lines;  // those that wait, too
        std::deque<std::string> waiting;        // for a disk that takes them
    };

    void record_line(std::string line);
    void write_waiting(Written& written) const;  // REQUIRES: its mutex is held
    void tell(std::string_view trouble) const;

    const std::string file_;
    const std::shared_ptr<const Log> log_;
    cache::PerProcess<Written> written_;
    mutable std::atomic<bool> told_ = false;
};

}  // namespace attnsmith::engine
