#include "driver/launch.hpp"

#include "driver/device.hpp"
#include "driver/table.hpp"

namespace attnsmith::driver {
namespace {

// Kept out of launch(), so that the path of every launch stays short.
[[gnu::noinline]] void retry_or_fail(const Api& api, CUresult result, FunctionHandle function,
                                     const CUlaunchConfig& config, void** parameters, int device) {
    // Without a context a launch into the default stream fails before it enqueues anything; asking for the
    // context first would cost every launch a driver call.
    if (current_context(api) == nullptr) {
        const ContextScope scope(api, device);
        result = api.table().launch(&config, function, parameters, nullptr);
    }
    api.check(result, "cuLaunchKernelEx");
}

}  // namespace

void launch(const Api& api, FunctionHandle function, const LaunchConfig& config, const void* params,
            StreamHandle stream) {
    CUlaunchConfig driver_config{};
    driver_config.gridDimX = config.grid.x;
    driver_config.gridDimY = config.grid.y;
    driver_config.gridDimZ = config.grid.z;
    driver_config.blockDimX = config.block.x;
    driver_config.blockDimY = config.block.y;
    driver_config.blockDimZ = config.block.z;
    driver_config.sharedMemBytes = config.shared_bytes;
    driver_config.hStream = stream;
    void* parameters[] = {const_cast<void*>(params)};  // the driver only reads them
    const CUresult result = api.table().launch(&driver_config, function, parameters, nullptr);
    if (result != CUDA_SUCCESS) [[unlikely]]
        retry_or_fail(api, result, function, driver_config, parameters, config.device);
}

}  // namespace attnsmith::driver
