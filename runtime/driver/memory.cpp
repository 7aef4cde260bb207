#include "driver/memory.hpp"

#include <sstream>
#include <string>
#include <utility>

#include "driver/table.hpp"

namespace attnsmith::driver {
namespace {

CUdeviceptr address_of(const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

// Runs `release` in `context`. For destructors: nothing is thrown, and where the context or the whole driver
// is gone (the caller destroyed it, or the process is ending) what it held is gone as well.
template <typename Release>
void release_in(const Api& api, ContextHandle context, Release release) noexcept {
    const Table& table = api.table();
    if (table.context_push(context) != CUDA_SUCCESS) return;
    const BesideCaptures relaxed(api);
    release(table);
    CUcontext popped = nullptr;
    table.context_pop(&popped);
}

// What CUDA would do itself, but for spoiling the capture.
void require_not_capturing(const Api& api, StreamHandle stream, const char* call) {
    if (!is_capturing(api, stream)) return;
    throw DriverError(call, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
                      stream == nullptr
                          ? "the default stream cannot be used while a stream that waits for it is captured; "
                            "capture a stream made with CU_STREAM_NON_BLOCKING"
                          : "the stream is being captured");
}

}  // namespace

DeviceMemory::DeviceMemory(std::shared_ptr<const Api> api, std::size_t bytes, int ordinal,
                           std::shared_ptr<const Allocator> allocator)
    : api_(std::move(api)), allocator_(std::move(allocator)), bytes_(bytes) {
    if (bytes == 0) return;
    const ContextScope scope(*api_, ordinal);
    const BesideCaptures relaxed(*api_);
    context_ = scope.context();
    if (allocator_ != nullptr) {
        allocate(scope.device());
    } else {
        CUdeviceptr pointer = 0;
        api_->check(api_->table().memory_alloc(&pointer, bytes), "cuMemAlloc");
        pointer_ = pointer;
    }
}

// From the caller's allocator.
void DeviceMemory::allocate(int device) {
    constexpr DevicePointer kAlignment = 256;
    void* const memory = allocator_->allocate(bytes_, device);
    if (memory == nullptr) {
        throw DriverError(
            "RuntimeOptions::device_allocate", CUDA_ERROR_OUT_OF_MEMORY,
            "it gave no memory for " + std::to_string(bytes_) + " bytes on device " + std::to_string(device));
    }
    pointer_ = address_of(memory);
    if (pointer_ % kAlignment == 0) return;
    free();
    std::ostringstream address;
    address << memory;
    throw InvalidRequest("RuntimeOptions::device_allocate", "the address " + address.str(),
                         "a multiple of 256");
}

DeviceMemory::~DeviceMemory() { free(); }

DeviceMemory::DeviceMemory(DeviceMemory&& other) noexcept
    : api_(std::move(other.api_)),
      allocator_(std::move(other.allocator_)),
      context_(std::exchange(other.context_, nullptr)),
      pointer_(std::exchange(other.pointer_, 0)),
      bytes_(std::exchange(other.bytes_, 0)) {}

DeviceMemory& DeviceMemory::operator=(DeviceMemory&& other) noexcept {
    if (this == &other) return *this;
    free();
    api_ = std::move(other.api_);
    allocator_ = std::move(other.allocator_);
    context_ = std::exchange(other.context_, nullptr);
    pointer_ = std::exchange(other.pointer_, 0);
    bytes_ = std::exchange(other.bytes_, 0);
    return *this;
}

void DeviceMemory::free() noexcept {
    if (pointer_ == 0) return;
    release_in(*api_, context_, [&](const Table& table) {
        if (allocator_ == nullptr) {
            table.memory_free(pointer_);
            return;
        }
        CUdevice device = 0;
        table.context_device(&device);
        try {
            allocator_->free(data(), bytes_, api_->ordinal_of(device));
        } catch (...) {
            // Nobody is there to be told: this runs in destructors.
        }
    });
    pointer_ = 0;
}

void DeviceMemory::fill(unsigned char value) const {
    if (bytes_ == 0) return;
    const ContextScope scope(*api_, context_);
    require_not_capturing(*api_, nullptr, "cuMemsetD8Async");
    fill_async(*api_, data(), value, bytes_, nullptr);
    synchronize(*api_, nullptr);
}

void DeviceMemory::upload(const void* host, std::size_t bytes, std::size_t offset) const {
    if (bytes == 0) return;
    const ContextScope scope(*api_, context_);
    copy_and_wait(*api_, static_cast<std::byte*>(data()) + offset, host, bytes);
}

void DeviceMemory::download(void* host, std::size_t bytes, std::size_t offset) const {
    if (bytes == 0) return;
    const ContextScope scope(*api_, context_);
    copy_and_wait(*api_, host, static_cast<const std::byte*>(data()) + offset, bytes);
}

void DeviceMemory::clear_unused(std::size_t bytes) const {
    const ContextScope scope(*api_, context_);
    const Stream own(api_);
    fill_async(*api_, data(), 0, bytes, own.handle());
    own.synchronize();
}

HostMemory::HostMemory(std::shared_ptr<const Api> api, std::size_t bytes, int ordinal)
    : api_(std::move(api)) {
    const ContextScope scope(*api_, ordinal);
    const BesideCaptures relaxed(*api_);
    context_ = scope.context();
    api_->check(api_->table().host_alloc(&data_, bytes, CU_MEMHOSTALLOC_PORTABLE), "cuMemHostAlloc");
}

HostMemory::~HostMemory() {
    release_in(*api_, context_, [&](const Table& table) { table.host_free(data_); });
}

void fill_async(const Api& api, void* to, unsigned char value, std::size_t bytes, StreamHandle stream,
                int ordinal) {
    if (bytes == 0) return;
    const ContextScope scope(api, ordinal);
    api.check(api.table().memory_fill_async(address_of(to), value, bytes, stream), "cuMemsetD8Async");
}

void copy_async(const Api& api, void* to, const void* from, std::size_t bytes, StreamHandle stream,
                int ordinal) {
    if (bytes == 0) return;
    const ContextScope scope(api, ordinal);
    api.check(api.table().copy_async(address_of(to), address_of(from), bytes, stream), "cuMemcpyAsync");
}

// Not cuMemcpyHtoD and its like, which CUDA refuses beside captures whatever the thread's mode is.
void copy_and_wait(const Api& api, void* to, const void* from, std::size_t bytes) {
    if (bytes == 0) return;
    const ContextScope scope(api);
    const BesideCaptures relaxed(api);
    require_not_capturing(api, nullptr, "cuMemcpyAsync");
    copy_async(api, to, from, bytes, nullptr);
    // From pageable memory cuMemcpyAsync returns once the bytes are staged, before they have arrived.
    synchronize(api, nullptr);
}

bool is_capturing(const Api& api, StreamHandle stream, int ordinal) {
    const ContextScope scope(api, ordinal);
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    const CUresult result = api.table().stream_is_capturing(stream, &status);
    if (result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) return true;  // of the default stream
    api.check(result, "cuStreamIsCapturing");
    return status != CU_STREAM_CAPTURE_STATUS_NONE;
}

void synchronize(const Api& api, StreamHandle stream, int ordinal) {
    const ContextScope scope(api, ordinal);
    const BesideCaptures relaxed(api);
    require_not_capturing(api, stream, "cuStreamSynchronize");
    api.check(api.table().stream_synchronize(stream), "cuStreamSynchronize");
}

Stream::Stream(std::shared_ptr<const Api> api, int ordinal) : api_(std::move(api)) {
    const ContextScope scope(*api_, ordinal);
    const BesideCaptures relaxed(*api_);
    context_ = scope.context();
    api_->check(api_->table().stream_create(&handle_, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
}

Stream::~Stream() {
    release_in(*api_, context_, [&](const Table& table) { table.stream_destroy(handle_); });
}

Event::Event(std::shared_ptr<const Api> api, int ordinal) : api_(std::move(api)) {
    const ContextScope scope(*api_, ordinal);
    const BesideCaptures relaxed(*api_);
    context_ = scope.context();
    api_->check(api_->table().event_create(&handle_, CU_EVENT_DEFAULT), "cuEventCreate");
}

Event::~Event() {
    release_in(*api_, context_, [&](const Table& table) { table.event_destroy(handle_); });
}

void Event::record(StreamHandle stream) const {
    const ContextScope scope(*api_, context_);
    api_->check(api_->table().event_record(handle_, stream), "cuEventRecord");
}

void Event::synchronize() const {
    const ContextScope scope(*api_, context_);
    const BesideCaptures relaxed(*api_);
    api_->check(api_->table().event_synchronize(handle_), "cuEventSynchronize");
}

float elapsed_ms(const Event& start, const Event& end) {
    const Api& api = start.api();
    const ContextScope scope(api, start.context());
    float milliseconds = 0;
    api.check(api.table().event_elapsed(&milliseconds, start.handle(), end.handle()), "cuEventElapsedTime");
    return milliseconds;
}

Graph::Graph(std::shared_ptr<const Api> api, StreamHandle stream, const std::function<void()>& enqueue)
    : api_(std::move(api)) {
    const Table& table = api_->table();
    const ContextScope scope(*api_);
    api_->check(table.stream_begin_capture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
                "cuStreamBeginCapture");
    CUgraph graph = nullptr;
    try {
        enqueue();
    } catch (...) {
        if (table.stream_end_capture(stream, &graph) == CUDA_SUCCESS && graph != nullptr)
            table.graph_destroy(graph);
        throw;
    }
    api_->check(table.stream_end_capture(stream, &graph), "cuStreamEndCapture");
    const CUresult result = table.graph_instantiate(&handle_, graph, 0);
    table.graph_destroy(graph);
    api_->check(result, "cuGraphInstantiate");
}

Graph::~Graph() { api_->table().graph_exec_destroy(handle_); }

void Graph::launch(StreamHandle stream) const {
    const ContextScope scope(*api_);
    api_->check(api_->table().graph_exec_launch(handle_, stream), "cuGraphLaunch");
}

}  // namespace attnsmith::driver
