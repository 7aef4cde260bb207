// Filling the cache ahead of time: what Runtime::prewarm() takes, and what it says.
#pragma once

#include <cstddef>
#include <functional>
#include <stop_token>
#include <string>
#include <vector>

#include "attnsmith/export.h"
#include "attnsmith/standard_library.hpp"

namespace attnsmith {

// How one kernel of a prewarm came out.
struct PrewarmedKernel {
    std::string name{};  // e.g. "attention mma bf16 128x128 paged 64x64"
    int sm = 0;          // compute capability
    std::string key{};   // of the cache entry
    // "hit", "remote", "compiled", "waited", "missing", "failed" or "cancelled"
    std::string state{};
    std::string error{};          // of a failed or missing one; of a missing one what remotes said
    double milliseconds = 0;      // that this process took, waiting included
    std::size_t cubin_bytes = 0;  // of the machine code
};

// A spec that no kernel serves on an SM; the others are done.
struct PrewarmRefusal {
    std::size_t spec = 0;  // its place in the list given
    int sm = 0;            // compute capability
    std::string reason{};  // one sentence
};

// How a prewarm came out. Over processes that race for the same kernels, `compiled` adds up to their number.
struct PrewarmReport {
    int total = 0;                              // kernels asked for; the sum of the next seven
    int hits = 0;                               // were in the cache
    int compiled = 0;                           // by this process
    int remote = 0;                             // a remote layer had them
    int waited = 0;                             // another process compiled them meanwhile
    int missing = 0;                            // nowhere, without PrewarmOptions::compile
    int failed = 0;                             // to compile, to be fetched, to be stored or to be pushed
    int cancelled = 0;                          // by PrewarmOptions::stop
    int pushed = 0;                             // of all, what remotes lacked
    double seconds = 0;                         // of wall-clock time
    std::vector<PrewarmRefusal> unsupported{};  // specs that no kernel serves
    std::vector<PrewarmedKernel> kernels{};     // each kernel once

    // Whether every kernel that was asked for is in the cache now.
    bool ok() const noexcept { return failed == 0 && missing == 0 && cancelled == 0 && unsupported.empty(); }
};

// {"name", "sm", "key", "state", "ms", "cubin_bytes"} and, of a failed or missing one, "error": on one line.
ATTNSMITH_API std::string to_json(const PrewarmedKernel& kernel);
// Schema attnsmith.prewarm/1: {"schema", "summary": {...}, "kernels": [...], "unsupported": [{"spec", "sm",
// "reason"}]}, where "spec" is the place in the list given.
ATTNSMITH_API std::string to_json(const PrewarmReport& report);

// How a prewarm goes about its work.
struct PrewarmOptions {
    int jobs = 0;  // 0: the number of cores
    // False: nothing is compiled, and no NVRTC needed unless RuntimeOptions::toolchain asks for its version.
    // What the cache lacks is fetched from remote layers; what they lack, too, is missing.
    bool compile = true;
    // Kernels that remote layers lack are put there, too, signed if the Runtime has a key to sign with.
    // Throws InvalidRequest where there is no remote layer that is used.
    bool push = false;
    std::function<void(const PrewarmedKernel&, int done, int total)>
        progress{};          // called from one thread at a time; what it throws, prewarm() throws
    std::stop_token stop{};  // what is being compiled is finished, the rest is cancelled
    // Called once for a kernel that another process has been compiling for some seconds now; as `progress`
    // is.
    std::function<void(const PrewarmedKernel&)> waiting{};
};

}  // namespace attnsmith
