// Op top_k.
#include "c_api/bind.hpp"

namespace attnsmith::c_api {

template <>
inline constexpr std::size_t kFirstSize<attnsmith_top_k_tensors> = 40;
static_assert(sizeof(attnsmith_top_k_tensors) == kFirstSize<attnsmith_top_k_tensors>);

namespace {

TopKTensors read_top_k_tensors(const attnsmith_top_k_tensors* given, int device) {
    const attnsmith_top_k_tensors c = read_struct(given, "tensors");
    return {.scores = read_tensor(c.scores, "scores", device),
            .row_starts = read_tensor(c.row_starts, "row_starts", device),
            .row_ends = read_tensor(c.row_ends, "row_ends", device),
            .indices = read_tensor(c.indices, "indices", device)};
}

}  // namespace
}  // namespace attnsmith::c_api

using namespace attnsmith;
using namespace attnsmith::c_api;

attnsmith_code attnsmith_bind_top_k(const attnsmith_kernel* kernel, const attnsmith_top_k_tensors* tensors,
                                    const attnsmith_batch* batch, const attnsmith_workspace* workspace,
                                    attnsmith_call** call, attnsmith_error** error) noexcept {
    return bind<read_top_k_tensors>(kernel, tensors, batch, workspace, call, error);
}

attnsmith_code attnsmith_run_top_k(const attnsmith_kernel* kernel, const attnsmith_top_k_tensors* tensors,
                                   const attnsmith_batch* batch, const attnsmith_workspace* workspace,
                                   void* stream, attnsmith_error** error) noexcept {
    return run<read_top_k_tensors>(kernel, tensors, batch, workspace, stream, error);
}
