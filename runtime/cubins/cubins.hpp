// Where a kernel's machine code comes from: this process's memory, the cache directories, else NVRTC.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "cache/flight/single_flight.hpp"
#include "cache/store/store.hpp"
#include "cubins/cubin.hpp"
#include "cubins/kernel_compiler.hpp"
#include "cubins/kernel_source.hpp"
#include "cubins/remotes.hpp"
#include "settings/environment.hpp"
#include "settings/log.hpp"

namespace attnsmith::engine {

using cache::Origin;

struct Obtained {
    std::shared_ptr<const Cubin> cubin;
    Origin origin = Origin::memory;
    // It was found in a directory, or published or fetched by this call; else it may be stored all the same.
    bool stored = false;
    std::string not_stored_because{};  // of a publish by this call that failed
    bool pushed = false;               // to a remote that lacked it, as RuntimeOptions::push_compiled asks
};

struct ObtainOptions {
    // As SingleFlight::Job::cancelled: where it ends the wait there is no cubin, and Origin::cancelled.
    std::function<bool(std::chrono::nanoseconds waited)> cancelled{};
    std::stop_token stop{};  // until when remotes are asked
    OnMiss on_miss = OnMiss::compile;
    cache::Urgency urgency = cache::Urgency::caller;  // whether a caller waits for the compile
};

// Thread-safe, also right after fork. A key is compiled once over all threads (they wait for the first) and
// over all processes that share the cache directory (they wait for a lock, which its holder's death
// releases).
class Cubins {
  public:
    Cubins(const Settings& settings, std::shared_ptr<const Log> log);

    KernelSource source_of(const families::KernelConfig& kernel) const {
        return kernel_source(kernel, compiler_.source_options());
    }

    // What stands in the cache for the kernel, newest toolchain first; compiles nothing, and leaves the cache
    // as it is, broken entries and stamps included. Null: nothing usable. Where only one toolchain's entries
    // may be used, opens NVRTC, and throws LibraryMissing.
    std::shared_ptr<const Cubin> find(const KernelSource& source) const;

    // Offers each cubin that there is, newest toolchain first, to `accept`, until it takes one; else compiles
    // one. `accept` gives the reason why it does not take a cubin, nothing if it does. Throws what compiling
    // and `accept` throw, and Unsupported where even the new cubin is not accepted. A CompileError is
    // remembered, for it is a fact of the source; anything else may be otherwise the next time.
    using Accept = std::function<std::optional<std::string>(const Cubin&)>;
    // Before it compiles it asks the remotes. With OnMiss::error it does no more than that: what the cache
    // lacks and no remote has is a CubinMissing, and what a remote could not be asked for, or gave and was
    // not to be taken, a CacheError that says why.
    Obtained obtain(const KernelSource& source, const Accept& accept, const ObtainOptions& options = {});
    // The same cubin where the cache has it, else null: compiles and waits for nothing.
    std::shared_ptr<const Cubin> find(const KernelSource& source, const Accept& accept) const;

    // The same, counted as a hit or as a miss that is an error, with why what the cache has was passed over:
    // directories, entries and what `accept` did not take, each by its path.
    struct Taken {
        std::shared_ptr<const Cubin> cubin;  // null: none is usable
        std::vector<std::string> passed_over;
    };
    // The remotes are asked, too.
    Taken take_stored(const KernelSource& source, const Accept& accept) const;

    // Publishes the cubin where no directory has the key's of its toolchain; one that obtain() has just
    // compiled was published as far as it could be. Why it could not be stored; empty where it is.
    std::string ensure_stored(const KernelSource& source, const Obtained& obtained) const;

    // To the remotes. As Remotes::push().
    bool push(const KernelSource& source, const Cubin& cubin, const std::stop_token& stop) const;

    const KernelCompiler& compiler() const { return compiler_; }
    const cache::Store& store() const { return store_; }
    const Remotes& remotes() const { return remotes_; }
    const std::string& no_cache_because() const { return no_cache_because_; }

  private:
    struct Compiled;

    // The cubin, or why there is none.
    struct Loaded {
        std::shared_ptr<const Cubin> cubin;
        std::string fault;
    };
    enum class Purpose { use, look };
    Loaded load(const KernelSource& source, const cache::Candidate& candidate, Purpose purpose) const;
    using PassedOver = std::function<void(const cache::Candidate& candidate, const std::string& reason)>;
    std::shared_ptr<const Cubin> find(const KernelSource& source, const Accept& accept,
                                      const PassedOver& passed_over, Purpose purpose) const;
    Compiled compile(const KernelSource& source) const;
    // Why not; empty where it is published.
    std::string publish(const KernelSource& source, const Cubin& cubin) const;
    bool is_stored(const KernelSource& source, const cache::Version& toolchain) const;
    std::optional<cache::Version> only_toolchain() const;

    std::shared_ptr<const Log> log_;
    std::string no_cache_because_;
    bool with_source_;  // in entries
    bool exact_toolchain_;
    bool push_compiled_;
    KernelCompiler compiler_;
    cache::Store store_;
    Remotes remotes_;
    mutable cache::SingleFlight flights_;
    mutable std::atomic<bool> told_of_unusable_ = false;
};

}  // namespace attnsmith::engine
