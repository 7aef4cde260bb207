// Op merge.
#include <fmt/format.h>

#include <span>
#include <string>
#include <vector>

#include "c_api/bind.hpp"

namespace attnsmith::c_api {

template <>
inline constexpr std::size_t kFirstSize<attnsmith_merge_tensors> = 48;
static_assert(sizeof(attnsmith_merge_tensors) == kFirstSize<attnsmith_merge_tensors>);

namespace {

std::vector<Tensor> read_states(const attnsmith_dl_tensor* const* states, std::size_t count,
                                std::string_view name, int device) {
    const std::span<const attnsmith_dl_tensor* const> given = list(states, count, name);
    std::vector<Tensor> tensors;
    tensors.reserve(given.size());
    for (const attnsmith_dl_tensor* const state : given) {
        const std::string item = fmt::format("{}[{}]", name, tensors.size());
        tensors.push_back(read_tensor(&required(state, item), item, device));
    }
    return tensors;
}

MergeTensors read_merge_tensors(const attnsmith_merge_tensors* given, int device) {
    const attnsmith_merge_tensors c = read_struct(given, "tensors");
    return {.o_states = read_states(c.o_states, c.state_count, "o_states", device),
            .lse_states = read_states(c.lse_states, c.state_count, "lse_states", device),
            .o = read_tensor(c.o, "o", device),
            .lse = read_tensor(c.lse, "lse", device)};
}

}  // namespace
}  // namespace attnsmith::c_api

using namespace attnsmith;
using namespace attnsmith::c_api;

attnsmith_code attnsmith_bind_merge(const attnsmith_kernel* kernel, const attnsmith_merge_tensors* tensors,
                                    const attnsmith_batch* batch, const attnsmith_workspace* workspace,
                                    attnsmith_call** call, attnsmith_error** error) noexcept {
    return bind<read_merge_tensors>(kernel, tensors, batch, workspace, call, error);
}

attnsmith_code attnsmith_run_merge(const attnsmith_kernel* kernel, const attnsmith_merge_tensors* tensors,
                                   const attnsmith_batch* batch, const attnsmith_workspace* workspace,
                                   void* stream, attnsmith_error** error) noexcept {
    return run<read_merge_tensors, RunWorkspace::optional>(kernel, tensors, batch, workspace, stream, error);
}
