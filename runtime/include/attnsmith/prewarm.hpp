// Filling the cache ahead of time: what Runtime::prewarm() takes, and what it says.
#pragma once

#include <cstddef>
#include <functional>
#include <stop_token>
#include <string>
#include <vector>

#include "attnsmith/export.h"

namespace attnsmith {

// How one kernel of a prewarm came out.
struct PrewarmedKernel {
    std::string name{};  // e.g. "attention mma bf16 128x128 paged 64x64"
    int sm = 0;
    std::string key{};    // of the cache entry
    std::string state{};  // "hit", "compiled", "waited", "failed" or "cancelled"
    std::string error{};  // of a failed one
    double milliseconds = 0;
    std::size_t cubin_bytes = 0;
};

// A spec that no kernel serves on an SM; the others are done.
struct PrewarmRefusal {
    std::size_t spec = 0;  // its place in the list given
    int sm = 0;
    std::string reason{};
};

struct PrewarmReport {
    int total = 0, hits = 0, compiled = 0, waited = 0, failed = 0, cancelled = 0;
    double seconds = 0;
    std::vector<PrewarmRefusal> unsupported{};
    std::vector<PrewarmedKernel> kernels{};

    // Whether every kernel that was asked for is in the cache now.
    bool ok() const noexcept { return failed == 0 && cancelled == 0 && unsupported.empty(); }
};

// {"name", "sm", "key", "state", "ms", "cubin_bytes"} and, of a failed one, "error": on one line.
ATTNSMITH_API std::string to_json(const PrewarmedKernel& kernel);
// Schema attnsmith.prewarm/1: {"schema", "summary": {...}, "kernels": [...], "unsupported": [{"spec", "sm",
// "reason"}]}, where "spec" is the place in the list given.
ATTNSMITH_API std::string to_json(const PrewarmReport& report);

struct PrewarmOptions {
    int jobs = 0;  // 0: the number of cores
    std::function<void(const PrewarmedKernel&, int done, int total)>
        progress{};          // called from one thread at a time; what it throws, prewarm() throws
    std::stop_token stop{};  // what is being compiled is finished, the rest is cancelled
    // Called once for a kernel that another process has been compiling for some seconds now; as `progress`
    // is.
    std::function<void(const PrewarmedKernel&)> waiting{};
};

}  // namespace attnsmith
