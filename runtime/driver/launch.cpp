#include "driver/launch.hpp"

#include "driver/device.hpp"
#include "driver/table.hpp"

namespace attnsmith::driver {
namespace {

// The default streams are those of whatever context is current; every other stream knows its own.
bool is_default(StreamHandle stream) {
    return stream == nullptr || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
}

CUresult enqueue(const Api& api, FunctionHandle function, const LaunchConfig& config, const void* params,
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
    return api.table().launch(&driver_config, function, parameters, nullptr);
}

// In another device's context the driver would load the code there and run it on this device's pointers.
CUresult enqueue_in_scope(const Api& api, FunctionHandle function, const LaunchConfig& config,
                          const void* params, StreamHandle stream) {
    const ContextScope scope(api, config.device);
    return enqueue(api, function, config, params, stream);
}

}  // namespace

void launch(const Api& api, FunctionHandle function, const LaunchConfig& config, const void* params,
            StreamHandle stream) {
    CUresult result = is_default(stream) ? enqueue_in_scope(api, function, config, params, stream)
                                         : enqueue(api, function, config, params, stream);
    // What a thread without a context gets; nothing was enqueued then.
    if (result == CUDA_ERROR_INVALID_CONTEXT) [[unlikely]]
        result = enqueue_in_scope(api, function, config, params, stream);
    api.check(result, "cuLaunchKernelEx");
}

}  // namespace attnsmith::driver
