#include "driver/api.hpp"

#include <dlfcn.h>
#include <link.h>
#include <sys/stat.h>

#include <string_view>
#include <utility>

#include "attnsmith/error.hpp"
#include "driver/table.hpp"

namespace attnsmith::driver {
namespace {

constexpr int kOldestVersion = 12000;  // cuLibraryLoadData and cuLaunchKernelEx
constexpr const char* kRemedy =
    "install an NVIDIA driver of version 525 or newer (in a container: run it with the NVIDIA container "
    "toolkit); planning and pre-warming need none";

void close_library(void* handle) {
    if (handle != nullptr) dlclose(handle);
}

using LibraryPointer = std::unique_ptr<void, void (*)(void*)>;

// dlerror() mostly begins with the name already.
std::string note(std::string_view name, std::string_view reason) {
    if (reason.starts_with(name)) return std::string(reason);
    return std::string(name) + ": " + std::string(reason);
}

// Empty, or why it is nothing to open: dlopen() would wait for ever for who writes to a FIFO. A bare name is
// looked for by the loader.
std::string why_no_file(const std::string& name) {
    struct stat status {};
    if (name.find('/') == name.npos || ::stat(name.c_str(), &status) != 0 || S_ISREG(status.st_mode))
        return {};
    return S_ISDIR(status.st_mode)    ? "is a directory, not a file"
           : S_ISFIFO(status.st_mode) ? "is a FIFO, not a regular file"
                                      : "is a device or a socket, not a regular file";
}

// The file that the loader took.
std::string file_of(void* library, const std::string& name) {
    link_map* map = nullptr;
    if (dlinfo(library, RTLD_DI_LINKMAP, &map) != 0 || map == nullptr || map->l_name == nullptr ||
        *map->l_name == '\0')
        return name;
    return map->l_name;
}

// The name of the first entry point that is missing; empty where all are there.
std::string resolve(void* library, Table& table) {
    std::string missing;
    const auto find = [&](auto& field, const char* symbol) {
        field = reinterpret_cast<std::remove_reference_t<decltype(field)>>(dlsym(library, symbol));
        if (field == nullptr && missing.empty()) missing = symbol;
    };
#define ATTNSMITH_RESOLVE(field, symbol) find(table.field, #symbol);
    ATTNSMITH_DRIVER_ENTRIES(ATTNSMITH_RESOLVE)
#undef ATTNSMITH_RESOLVE
    return missing;
}

std::string version_string(int version) {
    return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

}  // namespace

Api::Api() : library_(nullptr, close_library), table_(std::make_unique<Table>()) {}

std::shared_ptr<const Api> Api::open(const std::string& path) {
    const std::vector<std::string> names =
        path.empty() ? std::vector<std::string>{"libcuda.so.1", "libcuda.so", "/usr/lib/wsl/lib/libcuda.so.1"}
                     : std::vector<std::string>{path};
    std::vector<std::string> tried;
    for (const std::string& name : names) {
        const std::shared_ptr<Api> api(new Api);
        std::string reason = api->open_library(name);
        if (reason.empty()) {
            api->start();
            return api;
        }
        tried.push_back(note(name, reason));
    }
    throw LibraryMissing("the CUDA driver (libcuda.so.1)", std::move(tried), kRemedy);
}

// Empty, or why this file does not serve.
std::string Api::open_library(const std::string& name) {
    if (std::string reason = why_no_file(name); !reason.empty()) return reason;
    // RTLD_NODELETE: the driver has threads and exit handlers of its own, which must not lose their code.
    library_ = LibraryPointer(dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE), close_library);
    if (library_ == nullptr) {
        const char* reason = dlerror();
        return reason == nullptr ? "cannot be opened" : reason;
    }
    path_ = file_of(library_.get(), name);
    const std::string missing = resolve(library_.get(), *table_);

    if (table_->driver_version == nullptr) return "is no CUDA driver: it has no cuDriverGetVersion";
    const CUresult result = table_->driver_version(&version_);
    if (result == CUDA_ERROR_STUB_LIBRARY)
        return "is the stub that the CUDA toolkit links with, not a driver";
    if (result != CUDA_SUCCESS) return "cuDriverGetVersion failed: " + std::to_string(result);
    if (version_ < kOldestVersion)
        return "supports CUDA " + version_text() + "; 12.0 is needed (driver 525 or newer)";
    if (!missing.empty())
        return "supports CUDA " + version_text() + ", but has no " + missing +
               " (driver 525 or newer has it)";
    return {};
}

void Api::start() {
    check(table_->init(0), "cuInit");
    int count = 0;
    check(table_->device_count(&count), "cuDeviceGetCount");
    for (int ordinal = 0; ordinal < count; ++ordinal) {
        CUdevice device = 0;
        check(table_->device(&device, ordinal), "cuDeviceGet");
        devices_.push_back(device);
    }
    primaries_ = std::make_unique<std::atomic<ContextHandle>[]>(devices_.size());
}

Api::~Api() {
    // Errors are of no use here: at process exit the driver may be gone already (CUDA_ERROR_DEINITIALIZED).
    for (std::size_t i = 0; i < devices_.size() && primaries_ != nullptr; ++i)
        if (primaries_[i].load() != nullptr) table_->primary_release(devices_[i]);
}

std::string Api::version_text() const { return version_string(version_); }

ContextHandle Api::primary_context(int ordinal) const {
    const CUdevice device = device_handle(ordinal);
    std::atomic<ContextHandle>& slot = primaries_[static_cast<std::size_t>(ordinal)];
    if (ContextHandle context = slot.load(std::memory_order_acquire)) return context;
    CUcontext context = nullptr;
    check(table_->primary_retain(&context, device), "cuDevicePrimaryCtxRetain");
    ContextHandle expected = nullptr;
    // Another thread was first: the driver counts retains, and this object keeps one.
    if (!slot.compare_exchange_strong(expected, context)) table_->primary_release(device);
    return context;
}

int Api::device_handle(int ordinal) const {
    if (ordinal < 0 || ordinal >= device_count())
        throw InvalidRequest("device", std::to_string(ordinal),
                             device_count() == 0 ? "no device: the driver sees no GPU"
                                                 : "0 to " + std::to_string(device_count() - 1));
    return devices_[static_cast<std::size_t>(ordinal)];
}

int Api::ordinal_of(int device_handle) const {
    for (int ordinal = 0; ordinal < device_count(); ++ordinal)
        if (devices_[static_cast<std::size_t>(ordinal)] == device_handle) return ordinal;
    throw InvalidRequest("device handle", std::to_string(device_handle), "a device of this driver");
}

void Api::fail(int result, const char* call) const { throw DriverError(call, result, meaning(result)); }

std::string Api::meaning(int result) const {
    const char* name = nullptr;
    const char* text = nullptr;
    table_->error_name(static_cast<CUresult>(result), &name);
    table_->error_string(static_cast<CUresult>(result), &text);
    if (name == nullptr) return "an error that this driver does not name";
    return text == nullptr ? std::string(name) : std::string(name) + ": " + text;
}

}  // namespace attnsmith::driver
