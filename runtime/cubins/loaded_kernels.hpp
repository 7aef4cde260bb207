// Kernels in the driver: each loaded once a device.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "cache/files/per_process.hpp"
#include "cubins/cubins.hpp"
#include "driver/library.hpp"

namespace attnsmith::engine {

struct LoadedKernel {
    families::KernelConfig config;
    std::shared_ptr<const Cubin> cubin;
    std::shared_ptr<const driver::KernelFunction> function;
};

// Thread-safe. What the driver loaded for a parent is not a child's: it starts with nothing.
class LoadedKernels {
  public:
    // REQUIRES: `cubins` outlives this.
    LoadedKernels(Cubins& cubins, OnMiss on_miss) : cubins_(cubins), on_miss_(on_miss) {}

    // Loads the kernel for device `ordinal`, by way of the cache or NVRTC. Throws what Cubins::obtain()
    // throws, and DriverError. With OnMiss::error by way of the cache alone: else throws CubinMissing.
    std::shared_ptr<const LoadedKernel> get(const std::shared_ptr<const driver::Api>& api, int ordinal,
                                            const families::KernelConfig& kernel, cache::Urgency urgency);

  private:
    // What is known of one kernel on one device. The mutex is held while the driver loads, never while
    // somebody compiles.
    struct Slot {
        std::mutex mutex;
        std::shared_ptr<const LoadedKernel> loaded;
        // By its bytes, for each toolchain has another cubin and a broken one may be replaced: why the driver
        // does not take it. It is offered again at each look, and would be loaded in vain each time.
        std::map<cache::Digest, std::string> refused;

        // Why the driver does not take the cubin; nothing where it is loaded. REQUIRES: the mutex is held.
        std::optional<std::string> load(const std::shared_ptr<const driver::Api>& api, int ordinal,
                                        const families::KernelConfig& kernel, const Cubin& cubin);
    };
    struct Table {
        std::mutex mutex;
        std::map<std::pair<int, families::KernelConfig>, std::shared_ptr<Slot>> slots;
    };

    std::shared_ptr<Slot> slot_of(int ordinal, const families::KernelConfig& kernel);

    Cubins& cubins_;
    const OnMiss on_miss_;
    cache::PerProcess<Table> table_;
};

}  // namespace attnsmith::engine
