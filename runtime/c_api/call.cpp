// Launching, and what a call tells.
#include "c_api/arguments.hpp"
#include "c_api/error.hpp"
#include "c_api/objects.hpp"
#include "c_api/tensors.hpp"

namespace attnsmith::c_api {
namespace {

// attnsmith_call_copy_status() hands out the kernels' own word.
static_assert(std::uint32_t{ATTNSMITH_STATUS_Q_LEN_CLAMPED} == kStatusQLenClamped);
static_assert(std::uint32_t{ATTNSMITH_STATUS_KV_LEN_CLAMPED} == kStatusKvLenClamped);
static_assert(std::uint32_t{ATTNSMITH_STATUS_PAGE_OUT_OF_RANGE} == kStatusPageOutOfRange);
static_assert(std::uint32_t{ATTNSMITH_STATUS_WORKSPACE_NOT_ZEROED} == kStatusWorkspaceNotZeroed);
static_assert(std::uint32_t{ATTNSMITH_STATUS_SCALE_NOT_POSITIVE} == kStatusScaleNotPositive);
static_assert(std::uint32_t{ATTNSMITH_STATUS_SLOT_OUT_OF_RANGE} == kStatusSlotOutOfRange);
static_assert(std::uint32_t{ATTNSMITH_STATUS_POSITION_OUT_OF_RANGE} == kStatusPositionOutOfRange);
static_assert(std::uint32_t{ATTNSMITH_STATUS_SLOT_WRITTEN_TWICE} == kStatusSlotWrittenTwice);
static_assert(std::size_t{ATTNSMITH_WORKSPACE_ZEROED_BYTES} == kWorkspaceZeroedBytes);

}  // namespace
}  // namespace attnsmith::c_api

using namespace attnsmith;
using namespace attnsmith::c_api;

void attnsmith_call_free(attnsmith_call* call) noexcept { delete call; }

attnsmith_code attnsmith_launch(const attnsmith_call* call, void* stream, attnsmith_error** error) noexcept {
    return guarded(error, [&] { required(call, "call").call.launch(stream_of(stream)); });
}

attnsmith_code attnsmith_call_keep_alive(const attnsmith_call* call, attnsmith_kept** kept,
                                         attnsmith_error** error) noexcept {
    return guarded(error, [&] {
        const Call& of = required(call, "call").call;
        attnsmith_kept*& result = required(kept, "kept");
        result = new attnsmith_kept{of.keep_alive()};
    });
}

void attnsmith_kept_free(attnsmith_kept* kept) noexcept { delete kept; }

attnsmith_code attnsmith_call_copy_status(const attnsmith_call* call, std::uint32_t* word, void* stream,
                                          attnsmith_error** error) noexcept {
    return guarded(error, [&] {
        const Call& of = required(call, "call").call;
        of.copy_status(&required(word, "word"), stream_of(stream));
    });
}

attnsmith_code attnsmith_call_status(const attnsmith_call* call, void* stream, std::uint32_t* bits,
                                     attnsmith_error** error) noexcept {
    return guarded(error, [&] {
        const Call& of = required(call, "call").call;
        std::uint32_t& result = required(bits, "bits");
        result = of.status(stream_of(stream)).bits;
    });
}

attnsmith_code attnsmith_call_clear_status(const attnsmith_call* call, void* stream,
                                           attnsmith_error** error) noexcept {
    return guarded(error, [&] { required(call, "call").call.clear_status(stream_of(stream)); });
}

attnsmith_code attnsmith_call_synchronize(const attnsmith_call* call, void* stream,
                                          attnsmith_error** error) noexcept {
    return guarded(error, [&] { required(call, "call").call.synchronize(stream_of(stream)); });
}

attnsmith_code attnsmith_call_describe(const attnsmith_call* call, char** text,
                                       attnsmith_error** error) noexcept {
    return guarded(error, [&] {
        const Call& of = required(call, "call").call;
        char*& result = required(text, "text");
        result = copy_text(of.describe());
    });
}
