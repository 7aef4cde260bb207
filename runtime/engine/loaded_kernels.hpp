// Kernels in the driver: each loaded once a device.
#pragma once

#include <future>
#include <map>
#include <memory>
#include <mutex>

#include "driver/library.hpp"
#include "engine/cubins.hpp"

namespace attnsmith::engine {

struct LoadedKernel {
    planner::KernelConfig config;
    std::shared_ptr<const Cubin> cubin;
    std::shared_ptr<const driver::KernelFunction> function;
};

// Thread-safe.
class LoadedKernels {
  public:
    // REQUIRES: `cubins` outlives this.
    explicit LoadedKernels(Cubins& cubins) : cubins_(cubins) {}

    // Loads the kernel for device `ordinal`, by way of the cache or NVRTC. Throws what Cubins::obtain()
    // throws, and DriverError.
    std::shared_ptr<const LoadedKernel> get(const std::shared_ptr<const driver::Api>& api, int ordinal,
                                            const planner::KernelConfig& kernel);

  private:
    using Slot = std::pair<int, planner::KernelConfig>;
    using Loading = std::shared_future<std::shared_ptr<const LoadedKernel>>;

    std::shared_ptr<const LoadedKernel> load(const std::shared_ptr<const driver::Api>& api, int ordinal,
                                             const planner::KernelConfig& kernel);

    Cubins& cubins_;
    std::mutex mutex_;
    std::map<Slot, Loading> kernels_;
};

}  // namespace attnsmith::engine
