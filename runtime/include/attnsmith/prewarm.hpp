// Filling the cache ahead of time: what Runtime::prewarm() takes, and what it says.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "attnsmith/coverage.hpp"
#include "attnsmith/export.h"
#include "attnsmith/spec.hpp"
#include "attnsmith/standard_library.hpp"

namespace attnsmith {

// How one kernel of a prewarm came out. The JSON has the enumerators' names.
enum class PrewarmState : std::uint8_t {
    hit = 1,        // The kernel was in the cache.
    remote = 2,     // A remote layer had the kernel.
    compiled = 3,   // This process compiled the kernel.
    waited = 4,     // Another process compiled or fetched the kernel meanwhile.
    missing = 5,    // The kernel is nowhere, and PrewarmOptions::compile is false.
    failed = 6,     // The kernel could not be compiled, fetched, stored or pushed.
    cancelled = 7,  // PrewarmOptions::stop was requested before the kernel was there.
};

// Gives the enumerator's name: "hit".
[[nodiscard]] ATTNSMITH_API std::string_view to_string(PrewarmState state) noexcept;

// One kernel of a prewarm.
struct PrewarmedKernel {
    // The kernel's name, e.g. "attention mma bf16 128x128 paged 64x64".
    std::string name{};
    // The compute capability that the kernel is for: 90 is 9.0.
    int sm = 0;
    // The key of the cache entry: 32 hexadecimal digits.
    std::string key{};
    // How the kernel came out. PrewarmOptions::waiting is called before that is known: it sees `cancelled`.
    PrewarmState state = PrewarmState::cancelled;
    // Why the kernel failed, or what the remote layers said of a missing one; else empty.
    std::string error{};
    // The time that this process spent on the kernel, waiting included.
    double milliseconds = 0;
    // The length of the machine code; 0 where there is none.
    std::size_t cubin_bytes = 0;
    // The cache directory, read-only layer or bundle that has the kernel after the prewarm; empty where none
    // has it, and in PrewarmOptions::progress.
    std::string directory{};
};

// A spec that no kernel serves, or a part of a coverage that cannot be planned. Everything else is done.
struct PrewarmRefusal {
    // The place in the list of specs that was given; absent where a Coverage was given.
    std::optional<std::size_t> spec{};
    // The compute capability without a kernel; 0 where the reason holds for all of them.
    int sm = 0;
    // The name of the attention or part in the Coverage that was given; empty where specs were given.
    std::string name{};
    // Why there is no kernel, in one sentence.
    std::string reason{};
};

// How a prewarm came out. If processes race for the same kernels, the sum of their `compiled` is the number
// of kernels.
struct [[nodiscard]] PrewarmReport {
    // The number of kernels that were asked for: the sum of the numbers of all states, hits to cancelled.
    int total = 0;
    // The number of kernels of PrewarmState::hit.
    int hits = 0;
    // The number of kernels of PrewarmState::compiled.
    int compiled = 0;
    // The number of kernels of PrewarmState::remote.
    int remote = 0;
    // The number of kernels of PrewarmState::waited.
    int waited = 0;
    // The number of kernels of PrewarmState::missing.
    int missing = 0;
    // The number of kernels of PrewarmState::failed.
    int failed = 0;
    // The number of kernels of PrewarmState::cancelled.
    int cancelled = 0;
    // The number of kernels, of any state, that were put to a remote layer that lacked them.
    int pushed = 0;
    // The wall-clock time of the whole prewarm.
    double seconds = 0;
    // Specs and parts of a Coverage that no kernel serves.
    std::vector<PrewarmRefusal> unsupported{};
    // Coverage::skipped of the Coverage that was given.
    std::vector<SkippedPart> skipped{};
    // Coverage::warnings of the Coverage that was given.
    std::vector<ModelWarning> warnings{};
    // Each kernel once.
    std::vector<PrewarmedKernel> kernels{};

    // Says whether everything that was asked for is in the cache now. False where anything is failed,
    // missing, cancelled or unsupported; warnings do not count.
    [[nodiscard]] ATTNSMITH_API bool ok() const noexcept;
};

// Writes one kernel on one line: {"name", "sm", "key", "state", "ms", "cubin_bytes"}, with "error" of a
// failed or missing one, and "directory" where it is known.
[[nodiscard]] ATTNSMITH_API std::string to_json(const PrewarmedKernel& kernel);
// Writes schema attnsmith.prewarm/1: {"schema", "summary": {...}, "kernels": [...], "unsupported": [{"name"
// or "spec", "reason", "sm"}], "skipped": [...], "warnings": [...]}.
[[nodiscard]] ATTNSMITH_API std::string to_json(const PrewarmReport& report);

// How a prewarm goes about its work.
struct PrewarmOptions {
    // How many kernels are compiled at a time; 0 is the number of cores.
    int jobs = 0;
    // False: nothing is compiled, and no NVRTC is needed unless RuntimeOptions::toolchain asks for its
    // version. What the cache lacks is fetched from remote layers; what they lack, too, is missing.
    bool compile = true;
    // True: kernels that remote layers lack are put there, too, signed if the Runtime has a key to sign with.
    // Then InvalidRequest is thrown where there is no remote layer that is used.
    bool push = false;
    // Called with each kernel that is done, how many are done, and how many there are, by one thread at a
    // time. What it throws, prewarm() throws.
    std::function<void(const PrewarmedKernel&, int done, int total)> progress{};
    // A stop: what is being compiled is finished, and the rest is cancelled.
    std::stop_token stop{};
    // Called once for a kernel that another process has been compiling for some seconds, by one thread at a
    // time. What it throws, prewarm() throws.
    std::function<void(const PrewarmedKernel&)> waiting{};
};

}  // namespace attnsmith
