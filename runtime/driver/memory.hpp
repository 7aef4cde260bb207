// Device memory, streams, events and captured graphs, each freed with its object in the context that it was
// made in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "attnsmith/runtime.hpp"
#include "driver/api.hpp"
#include "driver/device.hpp"

namespace attnsmith::driver {

// All of these are made in the context that ContextScope finds for `ordinal`.

// Whose memory it is; made of RuntimeOptions' functions, both of which are there.
struct Allocator {
    DeviceAllocate allocate;
    DeviceFree free;
};

class DeviceMemory {
  public:
    DeviceMemory() = default;
    // Not zeroed. 0 bytes are allowed: data() is null then. From `allocator`, or where that is null from
    // cuMemAlloc. Throws DriverError (code 2: out of memory), InvalidRequest for an address of the
    // allocator's that is no multiple of 256.
    DeviceMemory(std::shared_ptr<const Api> api, std::size_t bytes, int ordinal = kCallersDevice,
                 std::shared_ptr<const Allocator> allocator = nullptr);
    ~DeviceMemory();
    DeviceMemory(DeviceMemory&& other) noexcept;
    DeviceMemory& operator=(DeviceMemory&& other) noexcept;

    void* data() const noexcept { return reinterpret_cast<void*>(pointer_); }
    DevicePointer address() const noexcept { return pointer_; }
    std::size_t bytes() const noexcept { return bytes_; }

    // In the order of the default stream; these wait for that stream alone. Throw DriverError while a stream
    // that waits for the default stream is captured, and leave the capture alone.
    // REQUIRES: offset + bytes <= this->bytes().
    void fill(unsigned char value) const;
    void upload(const void* host, std::size_t bytes, std::size_t offset = 0) const;
    void download(void* host, std::size_t bytes, std::size_t offset = 0) const;

    // Zeroes the first `bytes` in no stream's order, and waits for nothing else: for memory that is not in
    // use yet.
    void clear_unused(std::size_t bytes) const;

  private:
    void allocate(int device);
    void free() noexcept;

    std::shared_ptr<const Api> api_;
    std::shared_ptr<const Allocator> allocator_;
    ContextHandle context_ = nullptr;
    DevicePointer pointer_ = 0;
    std::size_t bytes_ = 0;
};

// Page-locked memory of the host, which every device can copy to while the host goes on.
class HostMemory {
  public:
    HostMemory(std::shared_ptr<const Api> api, std::size_t bytes, int ordinal = kCallersDevice);
    ~HostMemory();
    HostMemory(const HostMemory&) = delete;
    HostMemory& operator=(const HostMemory&) = delete;
    void* data() const noexcept { return data_; }

  private:
    std::shared_ptr<const Api> api_;
    ContextHandle context_ = nullptr;
    void* data_ = nullptr;
};

// These two are enqueued in the context that ContextScope finds for `ordinal`; the host does not wait. `to`
// and `from` are device memory, or page-locked memory of the host.
void fill_async(const Api& api, void* to, unsigned char value, std::size_t bytes, StreamHandle stream,
                int ordinal = kCallersDevice);
void copy_async(const Api& api, void* to, const void* from, std::size_t bytes, StreamHandle stream,
                int ordinal = kCallersDevice);

// Between any device memory and any of the host's, in the order of the default stream, which alone it waits
// for.
void copy_and_wait(const Api& api, void* to, const void* from, std::size_t bytes);

// Whether it is being captured, or is the default stream while a stream that waits for it is: nothing may
// wait for it then. Asking harms no capture.
bool is_capturing(const Api& api, StreamHandle stream, int ordinal = kCallersDevice);

// Waits for the stream alone. Throws DriverError where it is_capturing().
void synchronize(const Api& api, StreamHandle stream, int ordinal = kCallersDevice);

// A stream of its own, which does not wait for the default stream.
class Stream {
  public:
    explicit Stream(std::shared_ptr<const Api> api, int ordinal = kCallersDevice);
    ~Stream();
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;
    StreamHandle handle() const noexcept { return handle_; }
    void synchronize() const { driver::synchronize(*api_, handle_); }

  private:
    std::shared_ptr<const Api> api_;
    ContextHandle context_ = nullptr;
    StreamHandle handle_ = nullptr;
};

// A point in a stream, with its time.
class Event {
  public:
    explicit Event(std::shared_ptr<const Api> api, int ordinal = kCallersDevice);
    ~Event();
    Event(const Event&) = delete;
    Event& operator=(const Event&) = delete;
    void record(StreamHandle stream) const;
    void synchronize() const;  // waits until the last record() has happened
    EventHandle handle() const noexcept { return handle_; }
    ContextHandle context() const noexcept { return context_; }
    const Api& api() const noexcept { return *api_; }

  private:
    std::shared_ptr<const Api> api_;
    ContextHandle context_ = nullptr;
    EventHandle handle_ = nullptr;
};

// Milliseconds between two events that have happened; resolution 0.5 us.
float elapsed_ms(const Event& start, const Event& end);

// What `enqueue` put into `stream`, as a CUDA graph. `stream` is not the default stream.
class Graph {
  public:
    Graph(std::shared_ptr<const Api> api, StreamHandle stream, const std::function<void()>& enqueue);
    ~Graph();
    Graph(const Graph&) = delete;
    Graph& operator=(const Graph&) = delete;
    void launch(StreamHandle stream) const;

  private:
    std::shared_ptr<const Api> api_;
    GraphHandle handle_ = nullptr;
};

}  // namespace attnsmith::driver
