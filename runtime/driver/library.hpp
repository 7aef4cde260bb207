// Machine code in the driver: Library is a loaded cubin, KernelFunction an entry of it made ready for one
// device.
//
// Handles are the context-independent ones of CUDA 12 (CUlibrary, CUkernel): a KernelFunction launches right
// in any context of its device. Both are immutable and thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "attnsmith/error.hpp"
#include "driver/api.hpp"
#include "driver/device.hpp"

namespace attnsmith::driver {

// This driver, or this device, cannot take this image (older driver, other architecture, broken or without
// the entry). Another image of the same kernel may do: the caller passes this one over.
class LoadRefused : public DriverError {
  public:
    using DriverError::DriverError;
};

class Library {
  public:
    // Copies `cubin` into the driver. Throws LoadRefused, DriverError.
    static std::shared_ptr<const Library> load(std::shared_ptr<const Api> api,
                                               std::span<const std::byte> cubin);
    ~Library();
    Library(const Library&) = delete;
    Library& operator=(const Library&) = delete;

    // Bytes of a __device__ or __constant__ variable in the context that ContextScope finds. `into` has the
    // variable's size exactly. Throws DriverError (code 500: no such variable; 1: another size).
    void read_global(const std::string& name, std::span<std::byte> into, int ordinal = kCallersDevice) const;
    std::uint32_t read_global_u32(const std::string& name, int ordinal = kCallersDevice) const;

    const std::shared_ptr<const Api>& api() const noexcept { return api_; }
    LibraryHandle handle() const noexcept { return handle_; }

  private:
    Library(std::shared_ptr<const Api> api, LibraryHandle handle);

    std::shared_ptr<const Api> api_;
    LibraryHandle handle_;
};

// What the driver says of a kernel on a device.
struct KernelAttributes {
    int registers_per_thread = 0;
    int local_bytes_per_thread = 0;  // stack and spills
    int static_shared_bytes = 0;
    int dynamic_shared_bytes = 0;  // the most that a launch may ask for
    int max_threads_per_block = 0;
};

class KernelFunction {
  public:
    // Raises the entry's limit of dynamic shared memory on the device to `dynamic_shared_bytes`, once and for
    // good, and materialises it in the context that ContextScope finds. Throws LoadRefused,
    // DriverError.
    KernelFunction(std::shared_ptr<const Library> library, const std::string& entry, int ordinal,
                   std::size_t dynamic_shared_bytes);

    // For launch(): a CUkernel in a CUfunction's clothes, which the driver resolves for the stream's context,
    // or the current one. See launch.hpp.
    FunctionHandle handle() const noexcept { return reinterpret_cast<FunctionHandle>(kernel_); }

    // Loads the code into the context that ContextScope finds. The constructor did so for its
    // own context; in any other the first launch would, which must not happen in a graph capture. Cheap when
    // it is loaded already. Returns the CUfunction of that context, which must not be launched in another.
    FunctionHandle materialise() const;

    KernelAttributes attributes() const;
    // CTAs of this many threads and bytes that fit an SM at the same time, by the driver's count.
    int ctas_per_sm(int threads, std::size_t dynamic_shared_bytes) const;

    int device() const noexcept { return ordinal_; }
    const std::string& entry() const noexcept { return entry_; }
    const Api& api() const noexcept { return *library_->api(); }

  private:
    std::shared_ptr<const Library> library_;
    std::string entry_;
    int ordinal_;
    KernelHandle kernel_ = nullptr;
};

}  // namespace attnsmith::driver
