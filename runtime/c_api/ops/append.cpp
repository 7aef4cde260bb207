// Op append.
#include "c_api/bind.hpp"

namespace attnsmith::c_api {

template <>
inline constexpr std::size_t kFirstSize<attnsmith_append_tensors> = 136;
static_assert(sizeof(attnsmith_append_tensors) == kFirstSize<attnsmith_append_tensors>);

namespace {

AppendTensors read_append_tensors(const attnsmith_append_tensors* given, int device) {
    const attnsmith_append_tensors c = read_struct(given, "tensors");
    return {.q = read_tensor(c.q, "q", device),
            .k = read_tensor(c.k, "k", device),
            .v = read_tensor(c.v, "v", device),
            .q_out = read_tensor(c.q_out, "q_out", device),
            .k_cache = read_tensor(c.k_cache, "k_cache", device),
            .v_cache = read_tensor(c.v_cache, "v_cache", device),
            .kpe = read_tensor(c.kpe, "kpe", device),
            .kpe_cache = read_tensor(c.kpe_cache, "kpe_cache", device),
            .slot_mapping = read_tensor(c.slot_mapping, "slot_mapping", device),
            .positions = read_tensor(c.positions, "positions", device),
            .rope_table = read_tensor(c.rope_table, "rope_table", device),
            .q_norm_weight = read_tensor(c.q_norm_weight, "q_norm_weight", device),
            .k_norm_weight = read_tensor(c.k_norm_weight, "k_norm_weight", device),
            .k_scale = read_tensor(c.k_scale, "k_scale", device),
            .v_scale = read_tensor(c.v_scale, "v_scale", device),
            .q_scale = read_tensor(c.q_scale, "q_scale", device)};
}

}  // namespace
}  // namespace attnsmith::c_api

using namespace attnsmith;
using namespace attnsmith::c_api;

attnsmith_code attnsmith_bind_append(const attnsmith_kernel* kernel, const attnsmith_append_tensors* tensors,
                                     const attnsmith_batch* batch, const attnsmith_workspace* workspace,
                                     attnsmith_call** call, attnsmith_error** error) noexcept {
    return bind<read_append_tensors>(kernel, tensors, batch, workspace, call, error);
}

attnsmith_code attnsmith_run_append(const attnsmith_kernel* kernel, const attnsmith_append_tensors* tensors,
                                    const attnsmith_batch* batch, const attnsmith_workspace* workspace,
                                    void* stream, attnsmith_error** error) noexcept {
    return run<read_append_tensors>(kernel, tensors, batch, workspace, stream, error);
}
