// Devices and contexts. The rule of the library: the caller's current context is used where it is of the
// device that is meant, else that device's primary one, and what is current for the caller is never changed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "driver/api.hpp"

namespace attnsmith::driver {

struct Device {
    int ordinal = 0;
    int sm = 0;  // 90 for compute capability 9.0
    std::string name;
    int sm_count = 0;
    int shared_bytes_per_block = 0;  // with opt-in
    int shared_bytes_per_sm = 0;
    int reserved_shared_bytes_per_block = 0;  // what the driver takes of the SM's shared memory for each CTA
    int registers_per_sm = 0;                 // of 32 bits
    int threads_per_sm = 0;
    int ctas_per_sm = 0;
    std::size_t l2_bytes = 0;
    std::size_t memory_bytes = 0;

    bool operator==(const Device&) const = default;
};

// Throws InvalidRequest when `ordinal` is not 0 .. Api::device_count() - 1.
Device query_device(const Api& api, int ordinal);
std::vector<Device> query_devices(const Api& api);

ContextHandle current_context(const Api& api);  // null where there is none

// Ordinal of the current context's device; 0 where there is no context.
int current_device(const Api& api);

inline constexpr int kCallersDevice = -1;  // that of the caller's context; 0 where there is none

// Within a scope there is a current context; after it the caller's is as it was.
class ContextScope {
  public:
    // The caller's context where it is of device `ordinal`, else that device's primary one.
    explicit ContextScope(const Api& api, int ordinal = kCallersDevice);
    // `context`, whatever the caller's is.
    ContextScope(const Api& api, ContextHandle context);
    ~ContextScope();
    ContextScope(const ContextScope&) = delete;
    ContextScope& operator=(const ContextScope&) = delete;

    ContextHandle context() const noexcept { return context_; }
    int device() const;  // ordinal

  private:
    const Api& api_;
    ContextHandle context_ = nullptr;
    bool pushed_ = false;
};

// While a stream is captured, CUDA refuses a thread the calls that might wait for other work (allocating,
// freeing, waiting, loading code), its own and, of a global capture, every thread's, and spoils the capture
// by it. Within this scope the thread may make such calls, and no capture is touched by them.
class BesideCaptures {
  public:
    explicit BesideCaptures(const Api& api) noexcept;
    ~BesideCaptures();
    BesideCaptures(const BesideCaptures&) = delete;
    BesideCaptures& operator=(const BesideCaptures&) = delete;

  private:
    const Api& api_;
    int mode_;  // a CUstreamCaptureMode: the one that it was before
};

}  // namespace attnsmith::driver
