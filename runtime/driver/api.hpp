// The CUDA driver, opened at run time. An Api is the opened library, its entry points and the devices it
// found.
//
// Thread safety: immutable after open() but for the primary contexts, which are atomics. No globals: two Apis
// may live side by side (the tests do that with a stub driver). Everything in driver/ keeps its Api alive by
// a shared_ptr.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "driver/handles.hpp"

namespace attnsmith::driver {

inline constexpr int kNoDevice = 100;  // CUDA_ERROR_NO_DEVICE: the driver sees no GPU

struct Table;  // driver/table.hpp, which includes <cuda.h>; for driver/*.cpp alone

class Api {
  public:
    // Opens `path`, or where it is empty libcuda.so.1, libcuda.so and WSL's copy, and calls cuInit.
    // Throws LibraryMissing: nothing to open, only the toolkit's stub, or a driver older than CUDA 12.0.
    // Throws DriverError: the driver is there but does not start; code kNoDevice without a GPU.
    static std::shared_ptr<const Api> open(const std::string& path = {});

    ~Api();
    Api(const Api&) = delete;
    Api& operator=(const Api&) = delete;

    const std::string& path() const noexcept { return path_; }
    int version() const noexcept { return version_; }  // of CUDA as the driver knows it: 12040 is 12.4
    std::string version_text() const;                  // "12.4"
    int device_count() const noexcept { return static_cast<int>(devices_.size()); }

    // The primary context of a device: retained on first use, released with this object. Takes no lock.
    ContextHandle primary_context(int ordinal) const;

    // The driver's own number for a device, and back. Throws InvalidRequest for an ordinal that is out of
    // range.
    int device_handle(int ordinal) const;
    int ordinal_of(int device_handle) const;

    const Table& table() const noexcept { return *table_; }

    // Throws DriverError{call, result, meaning} when `result` (a CUresult) is not 0.
    void check(int result, const char* call) const {
        if (result != 0) [[unlikely]]
            fail(result, call);
    }
    [[noreturn]] void fail(int result, const char* call) const;
    std::string meaning(int result) const;  // "CUDA_ERROR_INVALID_VALUE: invalid argument"

  private:
    Api();
    std::string open_library(const std::string& name);
    void start();

    std::unique_ptr<void, void (*)(void*)> library_;
    std::unique_ptr<Table> table_;
    std::string path_;
    int version_ = 0;
    std::vector<int> devices_;
    mutable std::unique_ptr<std::atomic<ContextHandle>[]> primaries_;
};

}  // namespace attnsmith::driver
