#include "kernels.hpp"

#include <algorithm>
#include <array>

#include "failure.hpp"
#include "tvm_ffi.hpp"

namespace attnsmith::tvm_ffi {
namespace {

constexpr std::uintptr_t kWorkspaceAlignment = 256;
constexpr std::size_t kLeastWorkspace = std::size_t{1} << 16;

// Tensors of the environment's allocator, by the addresses of their memory.
struct EnvironmentMemory {
    std::mutex mutex;
    std::map<void*, void*> tensors;
};
EnvironmentMemory& environment_memory() {
    static auto* const all = new EnvironmentMemory;  // not destroyed: threads may outlive static objects
    return *all;
}

// attnsmith_allocate_fn, on the thread of the call, whose allocator it is.
void* allocate_tensor(void*, std::size_t bytes, std::int32_t device) {
    auto shape = static_cast<std::int64_t>(bytes);
    attnsmith_dl_tensor prototype{};
    prototype.device = {ATTNSMITH_DL_CUDA, device};
    prototype.ndim = 1;
    prototype.dtype = {ATTNSMITH_DL_UINT, 8, 1};
    prototype.shape = &shape;
    const Functions& ffi = *functions();
    void* tensor = nullptr;
    if (ffi.TVMFFIEnvTensorAlloc(&prototype, &tensor) != 0) return nullptr;
    const auto& made = *reinterpret_cast<const attnsmith_dl_tensor*>(static_cast<Object*>(tensor) + 1);
    void* const data = static_cast<std::byte*>(made.data) + made.byte_offset;
    if (reinterpret_cast<std::uintptr_t>(data) % kWorkspaceAlignment != 0) {
        ffi.TVMFFIObjectDecRef(tensor);
        return nullptr;
    }
    EnvironmentMemory& memory = environment_memory();
    const std::lock_guard lock(memory.mutex);
    memory.tensors[data] = tensor;
    return data;
}

void free_tensor(void*, void* data, std::size_t, std::int32_t) {
    EnvironmentMemory& memory = environment_memory();
    const std::lock_guard lock(memory.mutex);
    const auto found = memory.tensors.find(data);
    if (found == memory.tensors.end()) return;
    functions()->TVMFFIObjectDecRef(found->second);
    memory.tensors.erase(found);
}

// Memory whose head is zero, or NULL and why.
attnsmith_buffer* zeroed_buffer(const Library& library, attnsmith_runtime* runtime, std::int32_t device,
                                std::size_t bytes, attnsmith_code& code, attnsmith_error*& error) {
    static constexpr std::array<char, ATTNSMITH_WORKSPACE_ZEROED_BYTES> kZeros{};
    attnsmith_buffer* buffer = nullptr;
    code = library.call.buffer_allocate(runtime, device, bytes, &buffer, &error);
    if (code == ATTNSMITH_OK)
        code = library.call.buffer_upload(buffer, kZeros.data(), kZeros.size(), 0, &error);
    if (code == ATTNSMITH_OK) return buffer;
    library.call.buffer_free(buffer);
    return nullptr;
}

}  // namespace

Kernel Kernels::get(const Library& library, std::int32_t device, const std::string& request) {
    const std::pair key(device, request);
    {
        const std::lock_guard lock(mutex_);
        if (const auto found = kernels_.find(key); found != kernels_.end()) return found->second;
    }
    attnsmith_spec spec{};
    attnsmith_sizes sizes{};
    spec.size = sizeof spec;
    sizes.size = sizeof sizes;
    attnsmith_error* error = nullptr;
    library.check(library.call.parse_request(request.c_str(), &spec, &sizes, &error), error);
    attnsmith_kernel* made = nullptr;
    library.check(library.call.prepare(library.runtime, &spec, &sizes, device, &made, &error), error);
    const Kernel kernel(made, library.call.kernel_free);
    const std::lock_guard lock(mutex_);
    if (kernels_.size() >= kMost) kernels_.clear();
    return kernels_.emplace(key, kernel).first->second;  // or another thread's, which came first
}

attnsmith_buffer* Workspaces::allocate(const Library& library, std::int32_t device, std::size_t bytes) {
    attnsmith_code code = ATTNSMITH_OK;
    attnsmith_error* error = nullptr;
    if (functions()->TVMFFIEnvGetDLPackManagedTensorAllocator() != nullptr) {
        if (of_environment_ == nullptr) {
            attnsmith_runtime_options options{};
            options.allocate_memory = allocate_tensor;
            options.release_memory = free_tensor;
            options.no_cache = 1;
            of_environment_ = library.new_runtime(options);
        }
        if (attnsmith_buffer* const made =
                zeroed_buffer(library, of_environment_, device, bytes, code, error))
            return made;
        library.call.error_free(error);
        error = nullptr;
    }
    attnsmith_buffer* const made = zeroed_buffer(library, library.runtime, device, bytes, code, error);
    library.check(code, error);
    return made;
}

std::shared_ptr<python::Workspace> Workspaces::at_least(const Library& library, Recipes& recipes,
                                                        std::int32_t device, void* stream,
                                                        std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    std::size_t has = 0;
    if (const auto known = recipes.workspace(device, stream)) {
        const std::lock_guard in_order(known->mutex);
        has = known->bytes;
        if (has >= std::max<std::size_t>(bytes, 1)) return known;
    }
    if (library.is_captured(stream))
        throw Failure{"RuntimeError", "the workspace of this stream has " + std::to_string(has) +
                                          " bytes, the call needs " + std::to_string(bytes) +
                                          ", and a stream that is being captured cannot be given more: make "
                                          "the call once before the capture"};
    bytes = std::max({bytes, 2 * has, kLeastWorkspace});
    attnsmith_buffer* const buffer = allocate(library, device, bytes);
    recipes.set_workspace(device, stream, library.call.buffer_data(buffer),
                          library.call.buffer_bytes(buffer));
    return recipes.workspace(device, stream);
}

}  // namespace attnsmith::tvm_ffi
