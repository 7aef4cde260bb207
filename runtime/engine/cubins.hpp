// Where a kernel's machine code comes from: this process's memory, the cache directories, else NVRTC.
#pragma once

#include <condition_variable>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "cache/store.hpp"
#include "compiler/nvrtc.hpp"
#include "compiler/specialise.hpp"
#include "engine/environment.hpp"
#include "engine/log.hpp"
#include "planner/kernel_config.hpp"
#include "planner/plan_json.hpp"

namespace attnsmith::engine {

// A kernel's source and the digest of all that decides its machine code: tens of kilobytes to write and to
// hash, so callers make it once and hand it on.
struct KernelSource {
    planner::KernelConfig kernel;
    compiler::TranslationUnit unit;
    cache::Digest key;
    std::string fields_json;  // what went into the key, labelled
};

struct Cubin {
    cache::Digest key;
    cache::Version toolchain;
    std::vector<std::byte> bytes;
    std::string entry;
    planner::CompiledResources resources;
};

enum class Origin { memory, disk, compiled, waited };

struct Obtained {
    std::shared_ptr<const Cubin> cubin;
    Origin origin = Origin::memory;
};

// How many compiles may run at a time. (A counter of our own: libstdc++ 12's counting_semaphore can lose a
// wake-up, GCC bug 104928.)
class CompileSlots {
  public:
    explicit CompileSlots(int count) : free_(count) {}

    class Slot {
      public:
        explicit Slot(CompileSlots& slots);
        ~Slot();
        Slot(const Slot&) = delete;
        Slot& operator=(const Slot&) = delete;

      private:
        CompileSlots& slots_;
    };

  private:
    std::mutex mutex_;
    std::condition_variable changed_;
    int free_;
};

// Thread-safe. A key is compiled once over all threads (they wait for the first) and over all processes that
// share the cache directory (they wait for a lock, which its holder's death releases).
class Cubins {
  public:
    Cubins(const Settings& settings, std::shared_ptr<const Log> log);

    KernelSource source_of(const planner::KernelConfig& kernel) const;

    // What stands in the cache for the kernel, newest toolchain first; never compiles. Null: nothing usable.
    std::shared_ptr<const Cubin> find(const KernelSource& source) const;

    // Offers each cubin that there is, newest toolchain first, to `accept`, until it takes one; else compiles
    // one. `accept` gives the reason why it does not take a cubin, nothing if it does. Throws what compiling
    // and `accept` throw, and Unsupported where even the new cubin is not accepted. A CompileError is
    // remembered, for it is a fact of the source; anything else may be otherwise the next time.
    using Accept = std::function<std::optional<std::string>(const Cubin&)>;
    Obtained obtain(const KernelSource& source, const Accept& accept);

    // Opens NVRTC where it is not open yet. Throws LibraryMissing.
    std::shared_ptr<const compiler::Nvrtc> nvrtc();
    cache::Version toolchain();  // of that NVRTC

    // Publishes the cubin where no directory has the key's of its toolchain. False: it could not be stored.
    bool ensure_stored(const KernelSource& source, const Cubin& cubin) const;

    const cache::Store& store() const { return store_; }
    const std::string& no_cache_because() const { return no_cache_because_; }

  private:
    struct Compiled {
        std::shared_ptr<const Cubin> cubin;
        Origin origin = Origin::compiled;
    };
    using Compile = std::shared_future<Compiled>;

    std::shared_ptr<const Cubin> find_stored(const KernelSource& source, const Accept& accept) const;
    std::shared_ptr<const Cubin> load(const cache::Candidate& candidate) const;
    static bool is_ready(const Compile& compile);
    static std::shared_ptr<const Cubin> cubin_of(const Compile& compile);
    static std::shared_ptr<const Cubin> wait_for(const Compile& compile);
    Compile find_compile(const cache::Digest& key) const;
    void forget(const cache::Digest& key);
    std::optional<Obtained> compile_first(const KernelSource& source, const Accept& accept);
    Compiled compile_once(const KernelSource& source, const Accept& accept);
    std::shared_ptr<const Cubin> compile(const KernelSource& source);
    void publish(const KernelSource& source, const Cubin& cubin, const std::string& log) const;
    void keep_source(const KernelSource& source) const;

    std::shared_ptr<const Log> log_;
    std::string no_cache_because_;
    std::string keep_source_dir_;
    compiler::NvrtcOptions nvrtc_options_;
    cache::Store store_;
    CompileSlots compile_slots_;

    std::mutex nvrtc_mutex_;
    std::shared_ptr<const compiler::Nvrtc> nvrtc_;

    // Compiled in this process, being compiled, or refused by the compiler; a refusal is never stored.
    mutable std::mutex compiles_mutex_;
    std::unordered_map<cache::Digest, Compile> compiles_;
};

}  // namespace attnsmith::engine
