// What XLA calls for attnsmith.jax: an FFI handler of two stages. It is a library of its own, which links to
// neither jaxlib nor libattnsmith: the Python package, which has opened both, gives it the functions that it
// needs by their addresses, so that the libattnsmith that it calls is the very one that the rest of the
// process has.
//
// A program names a kernel by its request, as text, and not by an address: it may come from JAX's compilation
// cache or from jax.export, out of another process. The two stages share the kernels of this process by
// (device, request).
//
// Stage `initialize` runs on the host before each execution and is never captured. A request that is new for
// a device is prepared there, by the package. Nearly always it was prepared already when the program was
// lowered, which took the size of its workspace from the kernel. Stage `execute` only looks up: XLA may
// capture its first call into a command buffer, where nothing can be compiled or loaded, so a kernel that is
// not there is an error.
//
// The workspace is a result of the call that the program drops. XLA then has it among its temporary buffers,
// knows who else uses them, and captures anew where they move. ffi::ScratchAllocator would not do: what it
// gives is freed when the handler returns, while a captured launch uses its address at each replay. Others
// write to a temporary buffer between two executions, so its head is zeroed before each launch, by a node of
// the command buffer where there is one.
#include <xla/ffi/api/ffi.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <new>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <utility>

#include "attnsmith/attnsmith.h"
#include "python/fields.hpp"

namespace ffi = xla::ffi;
using attnsmith::python::kBatch;
using attnsmith::python::kTensors;

// Why a kernel was not prepared.
struct attnsmith_jax_failure {
    std::int32_t code;  // an attnsmith_code
    char message[4092];
};

// What the package gives, by address. Its mirror is in attnsmith/_jax/handler.py.
struct attnsmith_jax_functions {
    std::size_t size;
    decltype(&attnsmith_run) run;
    decltype(&attnsmith_error_message) error_message;
    decltype(&attnsmith_error_free) error_free;
    // cuMemsetD8Async of the CUDA driver. The context of the device is current while XLA runs a handler.
    std::int32_t (*fill_async)(std::uint64_t address, unsigned char value, std::size_t bytes, void* stream);
    // The kernel for a request, which lives as long as the process, or NULL and why.
    const attnsmith_kernel* (*prepare)(std::int32_t device, const char* request,
                                       attnsmith_jax_failure* failure);
};

namespace {

attnsmith_jax_functions functions{};  // written once, before XLA knows of the handlers

constexpr std::uintptr_t kWorkspaceAlignment = 256;

ffi::Error failed(attnsmith_code code, std::string_view message) {
    struct Kind {
        attnsmith_code code;
        const char* name;
        ffi::ErrorCode error;
    };
    static constexpr Kind kKinds[] = {
        {ATTNSMITH_CODE_INVALID_REQUEST, "invalid_request", ffi::ErrorCode::kInvalidArgument},
        {ATTNSMITH_CODE_UNSUPPORTED, "unsupported", ffi::ErrorCode::kUnimplemented},
        {ATTNSMITH_CODE_COMPILE_ERROR, "compile_error", ffi::ErrorCode::kInternal},
        {ATTNSMITH_CODE_DRIVER_ERROR, "driver_error", ffi::ErrorCode::kInternal},
        {ATTNSMITH_CODE_LIBRARY_MISSING, "library_missing", ffi::ErrorCode::kNotFound},
        {ATTNSMITH_CODE_CACHE_ERROR, "cache_error", ffi::ErrorCode::kInternal},
        {ATTNSMITH_CODE_OUT_OF_MEMORY, "out_of_memory", ffi::ErrorCode::kResourceExhausted},
        {ATTNSMITH_CODE_KERNEL_MISSING, "kernel_missing", ffi::ErrorCode::kFailedPrecondition},
    };
    Kind found{ATTNSMITH_CODE_FAILED, "failed", ffi::ErrorCode::kInternal};
    for (const Kind& kind : kKinds)
        if (kind.code == code) found = kind;
    return {found.error, "attnsmith (" + std::string(found.name) + "): " + std::string(message)};
}

// The kernels that were prepared, by device and request. Nothing is ever taken out.
class Kernels {
  public:
    const attnsmith_kernel* find(std::int32_t device, std::string_view request) const {
        const std::shared_lock lock(mutex_);
        const auto of_device = kernels_.find(device);
        if (of_device == kernels_.end()) return nullptr;
        const auto found = of_device->second.find(request);
        return found == of_device->second.end() ? nullptr : found->second;
    }

    void add(std::int32_t device, std::string request, const attnsmith_kernel* kernel) {
        const std::unique_lock lock(mutex_);
        kernels_[device].emplace(std::move(request), kernel);
    }

  private:
    mutable std::shared_mutex mutex_;
    std::map<std::int32_t, std::map<std::string, const attnsmith_kernel*, std::less<>>> kernels_;
};

Kernels& kernels() {
    static auto* const all = new Kernels;  // not destroyed: threads of XLA's may outlive static objects
    return *all;
}

ffi::Error initialize(std::int32_t device, ffi::RemainingArgs, ffi::RemainingRets, std::string_view request,
                      ffi::Span<const std::int64_t>, std::int64_t, std::int64_t) {
    if (kernels().find(device, request) != nullptr) return ffi::Error::Success();
    std::string text(request);
    attnsmith_jax_failure failure{};
    // Two threads may both come here: the package has one kernel for a request, so both are given the same.
    const attnsmith_kernel* const kernel = functions.prepare(device, text.c_str(), &failure);
    if (kernel == nullptr) return failed(failure.code, failure.message);
    kernels().add(device, std::move(text), kernel);
    return ffi::Error::Success();
}

// The arguments of one launch, from what the attribute `layouts` says of each tensor: its number, the buffer
// that it is in (of the arguments, then of the results), where in it it begins, its dtype as DLPack has it,
// its rank, its shape and its strides.
class Launch {
  public:
    Launch(ffi::RemainingArgs args, ffi::RemainingRets rets) : args_(args), rets_(rets) {
        tensors_.size = sizeof tensors_;
        batch_.size = sizeof batch_;
    }

    bool read(ffi::Span<const std::int64_t> words, std::int32_t device) {
        for (std::size_t at = 0; at != words.size();) {
            constexpr std::size_t kHead = 5;
            if (count_ == memory_.size() || words.size() - at < kHead) return false;
            const std::int64_t *const head = words.begin() + at, rank = head[4];
            if (rank < 0 || static_cast<std::uint64_t>(rank) > (words.size() - at - kHead) / 2) return false;
            at += kHead + 2 * static_cast<std::size_t>(rank);
            if (!add(head, rank, device)) return false;
        }
        return true;
    }

    ffi::Error run(const attnsmith_kernel* kernel, std::int64_t max_q_len, std::int64_t max_kv_len,
                   void* stream) {
        batch_.max_q_len = max_q_len;
        batch_.max_kv_len = max_kv_len;
        attnsmith_workspace workspace{sizeof workspace, nullptr, 0};
        auto given = rets_.get<ffi::AnyBuffer>(rets_.size() - 1);  // the last result
        if (!given) return failed(ATTNSMITH_CODE_FAILED, given.error().message());
        if (!take(**given, workspace))
            return failed(ATTNSMITH_CODE_FAILED, "the workspace is too small to be one");
        const auto address = reinterpret_cast<std::uintptr_t>(workspace.data);
        const std::int32_t filled =
            functions.fill_async(address, 0, ATTNSMITH_WORKSPACE_ZEROED_BYTES, stream);
        if (filled != 0)
            return failed(ATTNSMITH_CODE_DRIVER_ERROR,
                          "cuMemsetD8Async failed with " + std::to_string(filled));
        attnsmith_error* error = nullptr;
        const attnsmith_code code = functions.run(kernel, &tensors_, &batch_, &workspace, stream, &error);
        if (code == ATTNSMITH_OK) return ffi::Error::Success();
        ffi::Error said = failed(code, functions.error_message(error));
        functions.error_free(error);
        return said;
    }

  private:
    bool add(const std::int64_t* head, std::int64_t rank, std::int32_t device) {
        const auto field = static_cast<std::uint64_t>(head[0]), number = static_cast<std::uint64_t>(head[1]);
        if (field >= kTensors.size() + kBatch.size()) return false;
        attnsmith_dl_tensor& tensor = memory_[count_++];
        tensor.device = {ATTNSMITH_DL_CUDA, device};
        tensor.ndim = static_cast<std::int32_t>(rank);
        tensor.dtype = {static_cast<std::uint8_t>(head[3]), static_cast<std::uint8_t>(head[3] >> 8),
                        static_cast<std::uint16_t>(head[3] >> 16)};
        tensor.shape = const_cast<std::int64_t*>(head + 5);  // which nobody writes to
        tensor.strides = tensor.shape + rank;
        tensor.byte_offset = static_cast<std::uint64_t>(head[2]);
        std::size_t bytes = 0;
        if (number < args_.size()) {
            const auto buffer = args_.get<ffi::AnyBuffer>(number);
            if (!buffer) return false;
            tensor.data = buffer->untyped_data();
            bytes = buffer->size_bytes();
        } else {
            auto buffer = rets_.get<ffi::AnyBuffer>(number - args_.size());
            if (!buffer) return false;
            tensor.data = (*buffer)->untyped_data();
            bytes = (*buffer)->size_bytes();
        }
        if (!reaches(tensor, bytes)) return false;
        if (field < kTensors.size())
            tensors_.*kTensors[field] = &tensor;
        else
            batch_.*kBatch[field - kTensors.size()] = &tensor;
        return true;
    }

    // Whether the tensor lies in a buffer of so many bytes, all of it.
    static bool reaches(const attnsmith_dl_tensor& tensor, std::size_t bytes) {
        std::int64_t last = 0;
        for (std::int32_t axis = 0; axis < tensor.ndim; ++axis) {
            if (tensor.shape[axis] < 0 || tensor.strides[axis] < 0) return false;
            if (tensor.shape[axis] == 0) return true;
            std::int64_t step = 0;
            if (__builtin_mul_overflow(tensor.shape[axis] - 1, tensor.strides[axis], &step) ||
                __builtin_add_overflow(last, step, &last))
                return false;
        }
        std::uint64_t end = 0;
        return !__builtin_mul_overflow(static_cast<std::uint64_t>(last) + 1, tensor.dtype.bits / 8, &end) &&
               !__builtin_add_overflow(end, tensor.byte_offset, &end) && end <= bytes;
    }

    // XLA aligns its buffers to fewer bytes than a workspace needs, so that it is given some more.
    static bool take(ffi::AnyBuffer buffer, attnsmith_workspace& workspace) {
        const auto address = reinterpret_cast<std::uintptr_t>(buffer.untyped_data());
        const std::size_t skipped =
            (kWorkspaceAlignment - address % kWorkspaceAlignment) % kWorkspaceAlignment;
        if (buffer.size_bytes() < skipped + ATTNSMITH_WORKSPACE_ZEROED_BYTES) return false;
        workspace.data = static_cast<std::byte*>(buffer.untyped_data()) + skipped;
        workspace.bytes = buffer.size_bytes() - skipped;
        return true;
    }

    ffi::RemainingArgs args_;
    ffi::RemainingRets rets_;
    attnsmith_tensors tensors_{};
    attnsmith_batch batch_{};
    std::array<attnsmith_dl_tensor, kTensors.size() + kBatch.size()> memory_{};
    std::size_t count_ = 0;
};

ffi::Error execute(std::int32_t device, ffi::RemainingArgs args, ffi::RemainingRets rets,
                   std::string_view request, ffi::Span<const std::int64_t> layouts, std::int64_t max_q_len,
                   std::int64_t max_kv_len, void* stream) {
    const attnsmith_kernel* const kernel = kernels().find(device, request);
    if (kernel == nullptr)
        return failed(
            ATTNSMITH_CODE_KERNEL_MISSING,
            "no kernel is ready on GPU " + std::to_string(device) +
                ", since this XLA did not initialize the call before it executed it, and the call may be "
                "part "
                "of a command buffer, where nothing is compiled: take a newer jaxlib. The request: " +
                std::string(request));
    Launch launch(args, rets);
    if (!launch.read(layouts, device))
        return failed(ATTNSMITH_CODE_FAILED,
                      "the layouts are not those of the buffers: the program is of another version of "
                      "attnsmith, or was "
                      "partitioned, which jax.shard_map does instead");
    return launch.run(kernel, max_q_len, max_kv_len, stream);
}

// A call of a handler, out of which nothing is thrown.
template <class Handler>
XLA_FFI_Error* called(const Handler& handler, XLA_FFI_CallFrame* frame) noexcept {
    XLA_FFI_Error_Create_Args error{XLA_FFI_Error_Create_Args_STRUCT_SIZE, nullptr,
                                    "attnsmith (failed): an exception in the handler",
                                    XLA_FFI_Error_Code_INTERNAL};
    try {
        return handler.Call(frame);
    } catch (const std::bad_alloc&) {
        error.message = "attnsmith (out_of_memory): the host has no memory left";
        error.errc = XLA_FFI_Error_Code_RESOURCE_EXHAUSTED;
    } catch (...) {
        // The message above is all that can be said of it.
    }
    return frame->api->XLA_FFI_Error_Create(&error);
}

template <ffi::ExecutionStage stage>
auto bound() {
    return ffi::Ffi::Bind<stage>()
        .template Ctx<ffi::DeviceOrdinal>()
        .RemainingArgs()
        .RemainingRets()
        .template Attr<std::string_view>("request")
        .template Attr<ffi::Span<const std::int64_t>>("layouts")
        .template Attr<std::int64_t>("max_q_len")
        .template Attr<std::int64_t>("max_kv_len");
}

// Each call enqueues the same launches for the same attributes, allocates nothing on the device and waits for
// nothing.
constexpr auto kTraits = {ffi::Traits::kCmdBufferCompatible};

}  // namespace

extern "C" {

ATTNSMITH_API XLA_FFI_Error* attnsmith_jax_initialize(XLA_FFI_CallFrame* frame) {
    static const auto* const handler =
        bound<ffi::ExecutionStage::kInitialize>().To(initialize, kTraits).release();
    return called(*handler, frame);
}

ATTNSMITH_API XLA_FFI_Error* attnsmith_jax_execute(XLA_FFI_CallFrame* frame) {
    static const auto* const handler = bound<ffi::ExecutionStage::kExecute>()
                                           .Ctx<ffi::PlatformStream<void*>>()
                                           .To(execute, kTraits)
                                           .release();
    return called(*handler, frame);
}

// Before the handlers are registered. 0 where the two sides do not agree on the struct, else 1.
ATTNSMITH_API std::int32_t attnsmith_jax_use(const attnsmith_jax_functions* given) {
    if (given->size != sizeof functions) return 0;
    functions = *given;
    return 1;
}

}  // extern "C"
