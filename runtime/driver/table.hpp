// The driver's entry points. For driver/*.cpp alone: this is the one header that includes <cuda.h>.
#pragma once

#include <cuda.h>

namespace attnsmith::driver {

// X(field, symbol): `symbol` is the exported name, in the oldest version that every driver since CUDA 12.0
// has. It is written out, not taken from <cuda.h>'s macros, since these name the newest version at build
// time: with the headers of CUDA 13 cuEventElapsedTime means cuEventElapsedTime_v2, which drivers before 12.8
// lack.
#define ATTNSMITH_DRIVER_ENTRIES(X)                             \
    X(init, cuInit)                                             \
    X(driver_version, cuDriverGetVersion)                       \
    X(error_name, cuGetErrorName)                               \
    X(error_string, cuGetErrorString)                           \
    X(device_count, cuDeviceGetCount)                           \
    X(device, cuDeviceGet)                                      \
    X(device_name, cuDeviceGetName)                             \
    X(device_attribute, cuDeviceGetAttribute)                   \
    X(device_memory, cuDeviceTotalMem_v2)                       \
    X(primary_retain, cuDevicePrimaryCtxRetain)                 \
    X(primary_release, cuDevicePrimaryCtxRelease_v2)            \
    X(context_current, cuCtxGetCurrent)                         \
    X(context_push, cuCtxPushCurrent_v2)                        \
    X(context_pop, cuCtxPopCurrent_v2)                          \
    X(context_device, cuCtxGetDevice)                           \
    X(library_load, cuLibraryLoadData)                          \
    X(library_unload, cuLibraryUnload)                          \
    X(library_kernel, cuLibraryGetKernel)                       \
    X(library_global, cuLibraryGetGlobal)                       \
    X(kernel_function, cuKernelGetFunction)                     \
    X(kernel_attribute, cuKernelGetAttribute)                   \
    X(kernel_set_attribute, cuKernelSetAttribute)               \
    X(occupancy, cuOccupancyMaxActiveBlocksPerMultiprocessor)   \
    X(launch, cuLaunchKernelEx)                                 \
    X(memory_alloc, cuMemAlloc_v2)                              \
    X(memory_free, cuMemFree_v2)                                \
    X(memory_fill_async, cuMemsetD8Async)                       \
    X(host_alloc, cuMemHostAlloc)                               \
    X(host_free, cuMemFreeHost)                                 \
    X(copy_async, cuMemcpyAsync)                                \
    X(stream_create, cuStreamCreate)                            \
    X(stream_destroy, cuStreamDestroy_v2)                       \
    X(stream_synchronize, cuStreamSynchronize)                  \
    X(stream_is_capturing, cuStreamIsCapturing)                 \
    X(exchange_capture_mode, cuThreadExchangeStreamCaptureMode) \
    X(stream_begin_capture, cuStreamBeginCapture_v2)            \
    X(stream_end_capture, cuStreamEndCapture)                   \
    X(graph_instantiate, cuGraphInstantiateWithFlags)           \
    X(graph_destroy, cuGraphDestroy)                            \
    X(graph_exec_launch, cuGraphLaunch)                         \
    X(graph_exec_destroy, cuGraphExecDestroy)                   \
    X(tensor_map_encode, cuTensorMapEncodeTiled)                \
    X(tensor_map_replace, cuTensorMapReplaceAddress)            \
    X(event_create, cuEventCreate)                              \
    X(event_destroy, cuEventDestroy_v2)                         \
    X(event_record, cuEventRecord)                              \
    X(event_synchronize, cuEventSynchronize)                    \
    X(event_elapsed, cuEventElapsedTime)

struct Table {
#define ATTNSMITH_FIELD(field, symbol) decltype(&::symbol) field = nullptr;
    ATTNSMITH_DRIVER_ENTRIES(ATTNSMITH_FIELD)
#undef ATTNSMITH_FIELD
};

}  // namespace attnsmith::driver
