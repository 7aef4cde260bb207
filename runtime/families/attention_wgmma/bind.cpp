// The wgmma kernel's arguments: the attention's, and the tensors as the copy engine reads them.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <string_view>

#include "abi/widen_arguments.h"
#include "families/attention_arguments.hpp"
#include "families/attention_wgmma/kernel.hpp"
#include "families/attention_wgmma/schedule.hpp"
#include "families/widening.hpp"

namespace attnsmith::families::attention_wgmma {
namespace {

using problem::Operand;

// Weights of up to 2^8 lose nothing: they are rounded relative to their size.
constexpr float kSlack = 8.0F;

struct Axis {
    std::int64_t extent;
    std::int64_t stride;  // elements; of an axis of extent 1 anything
    std::int64_t box;
    int tensor_axis;  // of the caller's tensor, for messages
};

// Strides are from 0 and multiples of 16 bytes: check_operands() has seen to that.
std::uint64_t stride_bytes(std::string_view name, const Axis& axis, std::int64_t element_bytes) {
    constexpr std::uint64_t kAnyStride = 16;  // the driver checks it, and nothing steps by it
    if (axis.extent <= 1) return kAnyStride;
    const std::int64_t end = static_cast<std::int64_t>(kTensorMapStrideEnd) / element_bytes;
    if (axis.stride < end) return static_cast<std::uint64_t>(axis.stride * element_bytes);
    throw InvalidRequest(fmt::format("{}.strides[{}]", name, axis.tensor_axis), std::to_string(axis.stride),
                         fmt::format("a stride below {} elements, which TMA can step by; copy the tensor, or "
                                     "plan with alignment 8, whose kernels go without TMA",
                                     end));
}

// `axes` are those from the second on. A tile without keys is loaded all the same, from outside of the tensor
// or to be cleared: a tensor without elements has a map with its boxes over 16 bytes of q, whatever its
// elements are.
TensorMapRequest map_of(std::size_t offset, Operand tensor, const AttentionTensors& tensors,
                        std::int64_t head_dim, std::initializer_list<Axis> axes) {
    const bool empty =
        std::any_of(axes.begin(), axes.end(), [](const Axis& axis) { return axis.extent == 0; });
    const Operand mapped = empty ? Operand::q : tensor;
    const DType dtype = tensor_of(tensors, tensor).dtype;
    TensorMapRequest map{.offset = offset,
                         .data = tensor_of(tensors, mapped).data,
                         .operand = mapped,
                         .dtype = dtype,
                         .rank = 1};
    const std::int64_t element_bytes = size_of(dtype);
    map.extents[0] = static_cast<std::uint64_t>(empty ? 16 / element_bytes : head_dim);
    map.box[0] = static_cast<std::uint32_t>(abi::panel_elements(static_cast<std::int32_t>(element_bytes)));
    for (Axis axis : axes) {
        if (empty) axis.extent = 1;
        const auto at = static_cast<std::size_t>(map.rank++);
        map.extents[at] = static_cast<std::uint64_t>(axis.extent);
        map.strides[at - 1] = stride_bytes(name_of(tensor), axis, element_bytes);
        map.box[at] = static_cast<std::uint32_t>(axis.box);
    }
    return map;
}

// The queries; in latent attention with the position's columns behind the others, or these apart.
void add_maps_of_queries(const AttentionSpec& spec, const AttentionTensors& tensors,
                         const abi::PersistentArguments& arguments, std::vector<TensorMapRequest>& maps) {
    const abi::AttentionArguments& a = arguments.attention;
    const bool ragged = a.q_indptr != nullptr;
    const int token = ragged ? 0 : 1;
    const auto add = [&](std::size_t offset, Operand operand, std::int64_t columns, std::int64_t head_stride,
                         std::int64_t token_stride, std::int64_t batch_stride) {
        maps.push_back(
            map_of(offset, operand, tensors, columns,
                   {{a.q_heads, head_stride, a.group, token + 1},
                    {ragged ? a.q_tokens : a.max_q_len, token_stride, arguments.warpgroup_tokens, token},
                    {ragged ? 1 : a.batch, batch_stride, 1, 0}}));
    };
    const std::int64_t columns = !problem::is_latent(spec) ? spec.head_dim_qk
                                 : tensors.q_pe            ? spec.head_dim_ckv
                                                           : spec.head_dim_ckv + spec.head_dim_kpe;
    add(offsetof(abi::PersistentArguments, q), Operand::q, columns, a.q_head_stride, a.q_token_stride,
        a.q_batch_stride);
    if (tensors.q_pe)
        add(offsetof(abi::PersistentArguments, q_pe), Operand::q_pe, spec.head_dim_kpe, a.q_pe_head_stride,
            a.q_pe_token_stride, a.q_pe_batch_stride);
}

// K and V; or latents with the position's columns behind them, or these apart: where there is such a tensor,
// even without elements, since a launch may have its address.
void add_maps_of_keys(const AttentionSpec& spec, const AttentionTensors& tensors,
                      const abi::PersistentArguments& arguments, std::vector<TensorMapRequest>& maps) {
    const abi::AttentionArguments& a = arguments.attention;
    const bool paged = spec.kv == KvStorage::paged, ragged = spec.kv == KvStorage::ragged;
    const bool heads_first = paged && spec.page_order == PageOrder::HND;
    const int token = ragged ? 0 : heads_first ? 2 : 1;
    const int head = ragged || heads_first ? 1 : 2;
    const std::int64_t tokens = paged ? a.page_size : a.kv_tokens;
    const std::int64_t outer = paged ? a.pages : ragged ? 1 : a.batch;
    const auto add_k = [&](Operand operand, std::int64_t columns) {
        maps.push_back(map_of(offsetof(abi::PersistentArguments, k), operand, tensors, columns,
                              {{tokens, a.k_token_stride, arguments.box_keys, token},
                               {spec.kv_heads, a.k_head_stride, 1, head},
                               {outer, a.k_batch_stride, 1, 0}}));
    };
    const auto add_v = [&](Operand operand, std::int64_t columns) {
        maps.push_back(map_of(offsetof(abi::PersistentArguments, v), operand, tensors, columns,
                              {{tokens, a.v_token_stride, arguments.box_keys, token},
                               {spec.kv_heads, a.v_head_stride, 1, head},
                               {outer, a.v_batch_stride, 1, 0}}));
    };
    if (problem::is_latent(spec)) {
        const bool apart = tensors.kpe.rank != 0;
        add_v(Operand::k, spec.head_dim_ckv + (apart ? 0 : spec.head_dim_kpe));
        if (apart) add_k(Operand::kpe, spec.head_dim_kpe);
    } else {
        add_k(Operand::k, spec.head_dim_qk);
        add_v(Operand::v, spec.head_dim_vo);
    }
}

// What was widened before: [batch, max_kv_len, kv_heads, head_dim], as abi/widen_arguments.h has it.
void add_maps_of_workspace(const LaunchContext& context, const Binding& binding,
                           const abi::PersistentArguments& arguments, std::vector<TensorMapRequest>& maps) {
    const AttentionSpec& spec = context.problem.spec;
    const std::int64_t tokens = widened_tokens(context.shape);
    const auto add = [&](std::size_t offset, Region region, std::int64_t head_dim) {
        TensorMapRequest map{.offset = offset,
                             .data = context.workspace.address(binding.workspace, region),
                             .dtype = kWidenedTo,
                             .rank = 4};
        const std::int64_t row = head_dim * abi::kWidenedBytes;
        const auto size = [](std::int64_t value) { return static_cast<std::uint64_t>(value); };
        map.extents = {size(head_dim), size(tokens), size(spec.kv_heads), size(context.shape.batch)};
        map.strides = {size(row * spec.kv_heads), size(row), size(row * spec.kv_heads * tokens)};
        map.box = {static_cast<std::uint32_t>(abi::panel_elements(abi::kWidenedBytes)),
                   static_cast<std::uint32_t>(arguments.box_keys), 1, 1};
        maps.push_back(map);
    };
    add(offsetof(abi::PersistentArguments, k), Region::widened_k, spec.head_dim_qk);
    add(offsetof(abi::PersistentArguments, v), Region::widened_v, spec.head_dim_vo);
}

void set_schedule(const Schedule& schedule, abi::PersistentArguments& arguments) {
    arguments.draws = static_cast<std::uint32_t>(schedule.draws);
    arguments.paired_draws = static_cast<std::uint32_t>(schedule.paired_draws);
    arguments.mixed_streams = static_cast<std::uint32_t>(schedule.mixed_streams);
}

}  // namespace

Bound bind(const KernelConfig& config, const LaunchContext& context, const Binding& binding) {
    const auto kernel = config.as<Kernel>();
    const Schedule schedule = schedule_of(config, context);
    const AttentionSpec& spec = context.problem.spec;
    abi::PersistentArguments arguments{};
    abi::AttentionArguments& a = arguments.attention;
    const AttentionTensors& tensors = binding.operands.as<AttentionTensors>();
    a = attention_arguments(context, binding, schedule.tiles);
    arguments.kv_head_shares = static_cast<std::int32_t>(schedule.tiling.shares);
    arguments.whole_group = a.group;
    a.kv_heads *= arguments.kv_head_shares;
    a.group = abi::divisor_of(static_cast<std::int32_t>(schedule.tiling.group));
    static_assert(offsetof(abi::PersistentArguments, attention) == 0);  // as attention_addresses() has it
    Bound bound{.arguments = {}, .addresses = attention_addresses(spec)};
    if (schedule.ctas == 0) {  // no queries, and nothing to launch
        bound.arguments = ArgumentBlock(arguments);
        return bound;
    }
    arguments.warpgroup_tokens = abi::kWgmmaRows / a.group;
    set_schedule(schedule, arguments);
    set_share(context, kernel.tile_kv, schedule.items, a);
    arguments.slack = kSlack / a.scale_log2;
    arguments.box_keys = box_keys(kernel, a.page_size);
    add_maps_of_queries(spec, tensors, arguments, bound.maps);
    if (kernel.reads_workspace())
        add_maps_of_workspace(context, binding, arguments, bound.maps);
    else if (!kernel.gather)  // gathered ones are read by their addresses
        add_maps_of_keys(spec, tensors, arguments, bound.maps);
    bound.arguments = ArgumentBlock(arguments);
    return bound;
}

}  // namespace attnsmith::families::attention_wgmma
