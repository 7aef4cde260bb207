// Ops attention and mla.
#include "c_api/bind.hpp"

namespace attnsmith::c_api {

template <>
inline constexpr std::size_t kFirstSize<attnsmith_tensors> = 64;
static_assert(sizeof(attnsmith_tensors) > kFirstSize<attnsmith_tensors>);
template <>
inline constexpr std::size_t kFirstSize<attnsmith_tensor_addresses> = 64;
static_assert(sizeof(attnsmith_tensor_addresses) > kFirstSize<attnsmith_tensor_addresses>);

namespace {

AttentionTensors read_tensors(const attnsmith_tensors* given, int device) {
    const attnsmith_tensors c = read_struct(given, "tensors");
    return {.q = read_tensor(c.q, "q", device),
            .k = read_tensor(c.k, "k", device),
            .v = read_tensor(c.v, "v", device),
            .o = read_tensor(c.o, "o", device),
            .lse = read_tensor(c.lse, "lse", device),
            .sinks = read_tensor(c.sinks, "sinks", device),
            .alibi_slopes = read_tensor(c.alibi_slopes, "alibi_slopes", device),
            .q_pe = read_tensor(c.q_pe, "q_pe", device),
            .kpe = read_tensor(c.kpe, "kpe", device),
            .k_scale = read_tensor(c.k_scale, "k_scale", device),
            .v_scale = read_tensor(c.v_scale, "v_scale", device)};
}

}  // namespace
}  // namespace attnsmith::c_api

using namespace attnsmith;
using namespace attnsmith::c_api;

attnsmith_code attnsmith_bind(const attnsmith_kernel* kernel, const attnsmith_tensors* tensors,
                              const attnsmith_batch* batch, const attnsmith_workspace* workspace,
                              attnsmith_call** call, attnsmith_error** error) noexcept {
    return bind<read_tensors>(kernel, tensors, batch, workspace, call, error);
}

attnsmith_code attnsmith_run(const attnsmith_kernel* kernel, const attnsmith_tensors* tensors,
                             const attnsmith_batch* batch, const attnsmith_workspace* workspace, void* stream,
                             attnsmith_error** error) noexcept {
    return run<read_tensors>(kernel, tensors, batch, workspace, stream, error);
}

attnsmith_code attnsmith_call_launch_at(const attnsmith_call* call,
                                        const attnsmith_tensor_addresses* addresses, void* stream,
                                        attnsmith_error** error) noexcept {
    return guarded(error, [&] {
        const Call& of = required(call, "call").call;
        const auto a = read_struct(addresses, "addresses");
        of.launch_at({.q = a.q,
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
