#include "driver/device.hpp"

#include <array>

#include "driver/table.hpp"

namespace attnsmith::driver {
namespace {

int attribute(const Api& api, CUdevice device, CUdevice_attribute which) {
    int value = 0;
    api.check(api.table().device_attribute(&value, which, device), "cuDeviceGetAttribute");
    return value;
}

}  // namespace

Device query_device(const Api& api, int ordinal) {
    const CUdevice handle = api.device_handle(ordinal);
    const auto get = [&](CUdevice_attribute which) { return attribute(api, handle, which); };
    std::array<char, 256> name{};
    api.check(api.table().device_name(name.data(), static_cast<int>(name.size()) - 1, handle),
              "cuDeviceGetName");
    Device device;
    device.ordinal = ordinal;
    device.name = name.data();
    device.sm = 10 * get(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) +
                get(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
    device.sm_count = get(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    device.shared_bytes_per_block = get(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
    device.shared_bytes_per_sm = get(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR);
    device.reserved_shared_bytes_per_block = get(CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK);
    device.registers_per_sm = get(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR);
    device.threads_per_sm = get(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR);
    device.ctas_per_sm = get(CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR);
    device.l2_bytes = static_cast<std::size_t>(get(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE));
    api.check(api.table().device_memory(&device.memory_bytes, handle), "cuDeviceTotalMem");
    return device;
}

std::vector<Device> query_devices(const Api& api) {
    std::vector<Device> devices;
    for (int ordinal = 0; ordinal < api.device_count(); ++ordinal)
        devices.push_back(query_device(api, ordinal));
    return devices;
}

ContextHandle current_context(const Api& api) {
    CUcontext context = nullptr;
    api.check(api.table().context_current(&context), "cuCtxGetCurrent");
    return context;
}

int current_device(const Api& api) {
    if (current_context(api) == nullptr) return 0;
    CUdevice device = 0;
    api.check(api.table().context_device(&device), "cuCtxGetDevice");
    return api.ordinal_of(device);
}

namespace {

bool is_meant(const Api& api, int ordinal) {
    return ordinal == kCallersDevice || api.device_count() == 1 || current_device(api) == ordinal;
}

}  // namespace

ContextScope::ContextScope(const Api& api, int ordinal) : api_(api), context_(current_context(api)) {
    if (context_ != nullptr && is_meant(api, ordinal)) return;
    context_ = api.primary_context(ordinal == kCallersDevice ? 0 : ordinal);
    api.check(api.table().context_push(context_), "cuCtxPushCurrent");
    pushed_ = true;
}

ContextScope::ContextScope(const Api& api, ContextHandle context) : api_(api), context_(context) {
    if (current_context(api) == context) return;
    api.check(api.table().context_push(context), "cuCtxPushCurrent");
    pushed_ = true;
}

ContextScope::~ContextScope() {
    CUcontext popped = nullptr;
    if (pushed_) api_.table().context_pop(&popped);
}

int ContextScope::device() const { return current_device(api_); }

namespace {

// Where the driver refuses, the mode stays what it is, and the call that follows says why it fails.
int exchange(const Api& api, int mode) noexcept {
    auto exchanged = static_cast<CUstreamCaptureMode>(mode);
    api.table().exchange_capture_mode(&exchanged);
    return exchanged;
}

}  // namespace

BesideCaptures::BesideCaptures(const Api& api) noexcept
    : api_(api), mode_(exchange(api, CU_STREAM_CAPTURE_MODE_RELAXED)) {}

BesideCaptures::~BesideCaptures() { exchange(api_, mode_); }

}  // namespace attnsmith::driver
