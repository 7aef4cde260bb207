// Binding, launching, and what a call tells.
#include "attnsmith/error.hpp"
#include "c_api/arguments.hpp"
#include "c_api/error.hpp"
#include "c_api/objects.hpp"
#include "c_api/tensors.hpp"

namespace attnsmith::c_api {
namespace {

// DLPack calls a rank ndim.
[[noreturn]] void rethrow_in_dlpack_words(const InvalidRequest& error) {
    constexpr std::string_view kRank = ".rank";
    if (!error.field().ends_with(kRank)) throw error;
    const std::string tensor = error.field().substr(0, error.field().size() - kRank.size());
    throw InvalidRequest(tensor + ".ndim", error.value(), error.accepted());
}

// `read` makes the op's tensors of those of the C ABI.
template <auto read, class Given>
Call bind(const Kernel& kernel, const Given* given, const attnsmith_batch* batch,
          const attnsmith_workspace* workspace) {
    const auto tensors = read(given, kernel.device());
    const Batch bound_batch = read_batch(batch, kernel.device());
    try {
        return workspace == nullptr ? kernel.bind(tensors, bound_batch)
                                    : kernel.bind(tensors, bound_batch, read_workspace(workspace));
    } catch (const InvalidRequest& error) {
        rethrow_in_dlpack_words(error);
    }
}

Call bind_merge(const Kernel& kernel, const attnsmith_merge_tensors* tensors) {
    const MergeTensors bound = read_merge_tensors(tensors, kernel.device());
    try {
        return kernel.bind(bound);
    } catch (const InvalidRequest& error) {
        rethrow_in_dlpack_words(error);
    }
}

Stream stream_of(void* stream) { return static_cast<Stream>(stream); }

// attnsmith_call_copy_status() hands out the kernels' own word.
static_assert(std::uint32_t{ATTNSMITH_Q_LEN_CLAMPED} == kStatusQueryLengthClamped);
static_assert(std::uint32_t{ATTNSMITH_KV_LEN_CLAMPED} == kStatusKeyLengthClamped);
static_assert(std::uint32_t{ATTNSMITH_PAGE_OUT_OF_RANGE} == kStatusPageOutOfRange);
static_assert(std::uint32_t{ATTNSMITH_WORKSPACE_NOT_ZEROED} == kStatusWorkspaceNotZeroed);
static_assert(std::uint32_t{ATTNSMITH_SCALE_NOT_POSITIVE} == kStatusScaleNotPositive);
static_assert(std::uint32_t{ATTNSMITH_SLOT_OUT_OF_RANGE} == kStatusSlotOutOfRange);
static_assert(std::uint32_t{ATTNSMITH_POSITION_OUT_OF_RANGE} == kStatusPositionOutOfRange);
static_assert(std::uint32_t{ATTNSMITH_SLOT_WRITTEN_TWICE} == kStatusSlotWrittenTwice);
static_assert(std::size_t{ATTNSMITH_WORKSPACE_ZEROED_BYTES} == kWorkspaceZeroedBytes);

std::uint32_t bits_of(const CallStatus& status) {
    return (status.q_len_clamped ? std::uint32_t{ATTNSMITH_Q_LEN_CLAMPED} : 0) |
           (status.kv_len_clamped ? std::uint32_t{ATTNSMITH_KV_LEN_CLAMPED} : 0) |
           (status.page_out_of_range ? std::uint32_t{ATTNSMITH_PAGE_OUT_OF_RANGE} : 0) |
           (status.workspace_not_zeroed ? std::uint32_t{ATTNSMITH_WORKSPACE_NOT_ZEROED} : 0) |
           (status.scale_not_positive ? std::uint32_t{ATTNSMITH_SCALE_NOT_POSITIVE} : 0) |
           (status.slot_out_of_range ? std::uint32_t{ATTNSMITH_SLOT_OUT_OF_RANGE} : 0) |
           (status.position_out_of_range ? std::uint32_t{ATTNSMITH_POSITION_OUT_OF_RANGE} : 0) |
           (status.slot_written_twice ? std::uint32_t{ATTNSMITH_SLOT_WRITTEN_TWICE} : 0);
}

}  // namespace
}  // namespace attnsmith::c_api

using namespace attnsmith;
using namespace attnsmith::c_api;

attnsmith_code attnsmith_bind(const attnsmith_kernel* kernel, const attnsmith_tensors* tensors,
                              const attnsmith_batch* batch, const attnsmith_workspace* workspace,
                              attnsmith_call** call, attnsmith_error** error) {
    return guarded(error, [&] {
        const Kernel& of = required(kernel, "kernel").kernel;
        attnsmith_call*& result = required(call, "call");
        result = new attnsmith_call{bind<read_tensors>(of, tensors, batch, workspace)};
    });
}

attnsmith_code attnsmith_bind_merge(const attnsmith_kernel* kernel, const attnsmith_merge_tensors* tensors,
                                    attnsmith_call** call, attnsmith_error** error) {
    return guarded(error, [&] {
        const Kernel& of = required(kernel, "kernel").kernel;
        attnsmith_call*& result = required(call, "call");
        result = new attnsmith_call{bind_merge(of, tensors)};
    });
}

attnsmith_code attnsmith_bind_append(const attnsmith_kernel* kernel, const attnsmith_append_tensors* tensors,
                                     const attnsmith_batch* batch, const attnsmith_workspace* workspace,
                                     attnsmith_call** call, attnsmith_error** error) {
    return guarded(error, [&] {
        const Kernel& of = required(kernel, "kernel").kernel;
        attnsmith_call*& result = required(call, "call");
        result = new attnsmith_call{bind<read_append_tensors>(of, tensors, batch, workspace)};
    });
}

void attnsmith_call_free(attnsmith_call* call) { delete call; }

attnsmith_code attnsmith_launch(const attnsmith_call* call, void* stream, attnsmith_error** error) {
    return guarded(error, [&] { required(call, "call").call.launch(stream_of(stream)); });
}

attnsmith_code attnsmith_launch_at(const attnsmith_call* call, const attnsmith_tensor_addresses* addresses,
                                   void* stream, attnsmith_error** error) {
    return guarded(error, [&] {
        const Call& of = required(call, "call").call;
        const auto a = read_struct(addresses, "addresses");
        of.launch({.q = a.q,
                   .k = a.k,
                   .v = a.v,
                   .o = a.o,
                   .lse = a.lse,
                   .sinks = a.sinks,
                   .alibi_slopes = a.alibi_slopes,
                   .q_pe = a.q_pe,
                   .kpe = a.kpe,
                   .k_scale = a.k_scale,
                   .v_scale = a.v_scale},
                  stream_of(stream));
    });
}

attnsmith_code attnsmith_call_keep_alive(const attnsmith_call* call, attnsmith_kept** kept,
                                         attnsmith_error** error) {
    return guarded(error, [&] {
        const Call& of = required(call, "call").call;
        attnsmith_kept*& result = required(kept, "kept");
        result = new attnsmith_kept{of.keep_alive()};
    });
}

void attnsmith_kept_free(attnsmith_kept* kept) { delete kept; }

attnsmith_code attnsmith_run(const attnsmith_kernel* kernel, const attnsmith_tensors* tensors,
                             const attnsmith_batch* batch, const attnsmith_workspace* workspace, void* stream,
                             attnsmith_error** error) {
    return guarded(error, [&] {
        const Kernel& of = required(kernel, "kernel").kernel;
        bind<read_tensors>(of, tensors, batch, &required(workspace, "workspace")).launch(stream_of(stream));
    });
}

attnsmith_code attnsmith_run_merge(const attnsmith_kernel* kernel, const attnsmith_merge_tensors* tensors,
                                   void* stream, attnsmith_error** error) {
    return guarded(error,
                   [&] { bind_merge(required(kernel, "kernel").kernel, tensors).launch(stream_of(stream)); });
}

attnsmith_code attnsmith_run_append(const attnsmith_kernel* kernel, const attnsmith_append_tensors* tensors,
                                    const attnsmith_batch* batch, const attnsmith_workspace* workspace,
                                    void* stream, attnsmith_error** error) {
    return guarded(error, [&] {
        const Kernel& of = required(kernel, "kernel").kernel;
        bind<read_append_tensors>(of, tensors, batch, &required(workspace, "workspace"))
            .launch(stream_of(stream));
    });
}

attnsmith_code attnsmith_call_copy_status(const attnsmith_call* call, std::uint32_t* word, void* stream,
                                          attnsmith_error** error) {
    return guarded(error, [&] {
        const Call& of = required(call, "call").call;
        of.copy_status(&required(word, "word"), stream_of(stream));
    });
}

attnsmith_code attnsmith_call_status(const attnsmith_call* call, void* stream, std::uint32_t* bits,
                                     attnsmith_error** error) {
    return guarded(error, [&] {
        const Call& of = required(call, "call").call;
        std::uint32_t& result = required(bits, "bits");
        result = bits_of(of.status(stream_of(stream)));
    });
}

attnsmith_code attnsmith_call_clear_status(const attnsmith_call* call, void* stream,
                                           attnsmith_error** error) {
    return guarded(error, [&] { required(call, "call").call.clear_status(stream_of(stream)); });
}

attnsmith_code attnsmith_call_describe(const attnsmith_call* call, char** text, attnsmith_error** error) {
    return guarded(error, [&] {
        const Call& of = required(call, "call").call;
        char*& result = required(text, "text");
        result = copy_text(of.describe());
    });
}
