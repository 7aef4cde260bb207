#include "driver/memory.hpp"

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
    release(table);
    CUcontext popped = nullptr;
    table.context_pop(&popped);
}

}  // namespace

DeviceMemory::DeviceMemory(std::shared_ptr<const Api> api, std::size_t bytes, int ordinal)
    : api_(std::move(api)), bytes_(bytes) {
    if (bytes == 0) return;
    const ContextScope scope(*api_, ordinal);
    context_ = scope.context();
    CUdeviceptr pointer = 0;
    api_->check(api_->table().memory_alloc(&pointer, bytes), "cuMemAlloc");
    pointer_ = pointer;
}

DeviceMemory::~DeviceMemory() { free(); }

DeviceMemory::DeviceMemory(DeviceMemory&& other) noexcept
    : api_(std::move(other.api_)),
      context_(std::exchange(other.context_, nullptr)),
      pointer_(std::exchange(other.pointer_, 0)),
      bytes_(std::exchange(other.bytes_, 0)) {}

DeviceMemory& DeviceMemory::operator=(DeviceMemory&& other) noexcept {
    if (this == &other) return *this;
    free();
    api_ = std::move(other.api_);
    context_ = std::exchange(other.context_, nullptr);
    pointer_ = std::exchange(other.pointer_, 0);
    bytes_ = std::exchange(other.bytes_, 0);
    return *this;
}

void DeviceMemory::free() noexcept {
    if (pointer_ == 0) return;
    release_in(*api_, context_, [&](const Table& table) { table.memory_free(pointer_); });
    pointer_ = 0;
}

void DeviceMemory::fill(unsigned char value) const {
    if (bytes_ == 0) return;
    const ContextScope scope(*api_, context_);
    driver::fill(*api_, data(), value, bytes_);
}

void DeviceMemory::upload(const void* host, std::size_t bytes, std::size_t offset) const {
    if (bytes == 0) return;
    const ContextScope scope(*api_, context_);
    driver::upload(*api_, static_cast<std::byte*>(data()) + offset, host, bytes);
}

void DeviceMemory::download(void* host, std::size_t bytes, std::size_t offset) const {
    if (bytes == 0) return;
    const ContextScope scope(*api_, context_);
    driver::download(*api_, host, static_cast<const std::byte*>(data()) + offset, bytes);
}

void upload(const Api& api, void* device, const void* host, std::size_t bytes, int ordinal) {
    if (bytes == 0) return;
    const ContextScope scope(api, ordinal);
    api.check(api.table().upload(address_of(device), host, bytes), "cuMemcpyHtoD");
    // From pageable memory cuMemcpyHtoD returns once the bytes are staged, before they have arrived.
    api.check(api.table().stream_synchronize(nullptr), "cuStreamSynchronize");
}

void download(const Api& api, void* host, const void* device, std::size_t bytes, int ordinal) {
    if (bytes == 0) return;
    const ContextScope scope(api, ordinal);
    api.check(api.table().download(host, address_of(device), bytes), "cuMemcpyDtoH");
}

void fill(const Api& api, void* device, unsigned char value, std::size_t bytes, int ordinal) {
    if (bytes == 0) return;
    const ContextScope scope(api, ordinal);
    api.check(api.table().memory_fill(address_of(device), value, bytes), "cuMemsetD8");
    // cuMemsetD8 does not wait.
    api.check(api.table().stream_synchronize(nullptr), "cuStreamSynchronize");
}

void fill_async(const Api& api, void* device, unsigned char value, std::size_t bytes, StreamHandle stream) {
    if (bytes == 0) return;
    const ContextScope scope(api);
    api.check(api.table().memory_fill_async(address_of(device), value, bytes, stream), "cuMemsetD8Async");
}

void copy_async(const Api& api, void* to, const void* from, std::size_t bytes, StreamHandle stream) {
    if (bytes == 0) return;
    const ContextScope scope(api);
    api.check(api.table().copy_async(address_of(to), address_of(from), bytes, stream), "cuMemcpyDtoDAsync");
}

void synchronize(const Api& api, StreamHandle stream) {
    const ContextScope scope(api);
    api.check(api.table().stream_synchronize(stream), "cuStreamSynchronize");
}

void synchronize_device(const Api& api, int ordinal) {
    const ContextScope scope(api, ordinal);
    api.check(api.table().context_synchronize(), "cuCtxSynchronize");
}

Stream::Stream(std::shared_ptr<const Api> api, int ordinal) : api_(std::move(api)) {
    const ContextScope scope(*api_, ordinal);
    context_ = scope.context();
    api_->check(api_->table().stream_create(&handle_, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
}

Stream::~Stream() {
    release_in(*api_, context_, [&](const Table& table) { table.stream_destroy(handle_); });
}

Event::Event(std::shared_ptr<const Api> api, int ordinal) : api_(std::move(api)) {
    const ContextScope scope(*api_, ordinal);
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
