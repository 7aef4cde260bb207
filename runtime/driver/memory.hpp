// Device memory, streams, events and captured graphs, each freed with its object in the context that it was
// made in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "driver/api.hpp"
#include "driver/device.hpp"

namespace attnsmith::driver {

// All of these are made in the context that ContextScope finds for `ordinal`.

class DeviceMemory {
  public:
    DeviceMemory() = default;
    // Not zeroed. 0 bytes are allowed: data() is null then. Throws DriverError (code 2: out of memory).
    DeviceMemory(std::shared_ptr<const Api> api, std::size_t bytes, int ordinal = kCallersDevice);
    ~DeviceMemory();
    DeviceMemory(DeviceMemory&& other) noexcept;
    DeviceMemory& operator=(DeviceMemory&& other) noexcept;

    void* data() const noexcept { return reinterpret_cast<void*>(pointer_); }
    DevicePointer address() const noexcept { return pointer_; }
    std::size_t bytes() const noexcept { return bytes_; }

    // These wait until the bytes are where they should be, in the order of the default stream.
    // REQUIRES: offset + bytes <= this->bytes().
    void fill(unsigned char value) const;
    void upload(const void* host, std::size_t bytes, std::size_t offset = 0) const;
    void download(void* host, std::size_t bytes, std::size_t offset = 0) const;

  private:
    void free() noexcept;

    std::shared_ptr<const Api> api_;
    ContextHandle context_ = nullptr;
    DevicePointer pointer_ = 0;
    std::size_t bytes_ = 0;
};

// Copies between any device memory and the host, in the context that ContextScope finds; both wait.
void upload(const Api& api, void* device, const void* host, std::size_t bytes, int ordinal = kCallersDevice);
void download(const Api& api, void* host, const void* device, std::size_t bytes,
              int ordinal = kCallersDevice);
void fill(const Api& api, void* device, unsigned char value, std::size_t bytes, int ordinal = kCallersDevice);

// Enqueued; the host does not wait.
void fill_async(const Api& api, void* device, unsigned char value, std::size_t bytes, StreamHandle stream);
void copy_async(const Api& api, void* to, const void* from, std::size_t bytes,
                StreamHandle stream);  // on the device

void synchronize(const Api& api, StreamHandle stream);
// Waits for all work of the context that ContextScope finds.
void synchronize_device(const Api& api, int ordinal = kCallersDevice);

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
