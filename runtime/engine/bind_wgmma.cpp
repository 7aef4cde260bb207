#include "engine/bind_wgmma.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <initializer_list>

#include "attnsmith/error.hpp"
#include "driver/device.hpp"
#include "driver/tensor_map.hpp"
#include "planner/attention_wgmma.hpp"

namespace attnsmith::engine {
namespace {

constexpr std::int64_t kElementBytes = 2;

// Weights of up to 2^8 lose nothing: they are rounded relative to their size.
constexpr float kSlack = 8.0F;

static_assert(sizeof(abi::TensorMap) == driver::kTensorMapBytes);

struct Axis {
    std::int64_t extent;
    std::int64_t stride;  // elements; of an axis of extent 1 anything
    std::int64_t box;
    int tensor_axis;         // of the caller's tensor, for messages
    std::int64_t steps = 1;  // of the tensor's axis to one of the map's
};

// Strides are from 0 and multiples of 16 bytes: check_tensors() has seen to that.
std::uint64_t stride_bytes(const char* name, const Axis& axis) {
    constexpr std::uint64_t kAnyStride = 16;  // the driver checks it, and nothing steps by it
    if (axis.extent <= 1) return kAnyStride;
    const std::int64_t end = driver::kTensorMapStrideEnd / kElementBytes / axis.steps;
    if (axis.stride < end) return static_cast<std::uint64_t>(axis.stride * axis.steps * kElementBytes);
    throw InvalidRequest(fmt::format("{}.strides[{}]", name, axis.tensor_axis), std::to_string(axis.stride),
                         fmt::format("a stride below {} elements, which TMA can step by; copy the tensor, or "
                                     "plan with alignment 8, whose kernels go without TMA",
                                     end));
}

// `axes` are those from the second on. A tile without keys is loaded all the same, from outside of the tensor
// or to be cleared: a tensor without elements has a map with its boxes over 16 bytes of `filled`, a tensor of
// this dtype that has elements.
abi::TensorMap encode(const driver::Api& api, const char* name, const void* data, DType dtype,
                      std::int64_t head_dim, std::initializer_list<Axis> axes, const void* filled) {
    const bool empty =
        std::any_of(axes.begin(), axes.end(), [](const Axis& axis) { return axis.extent == 0; });
    driver::TensorMapRequest request{.data = empty ? filled : data, .dtype = dtype, .rank = 1};
    request.extents[0] = static_cast<std::uint64_t>(empty ? 16 / kElementBytes : head_dim);
    request.box[0] = abi::kWgmmaPanel;
    for (Axis axis : axes) {
        if (empty) axis.extent = 1;
        const auto at = static_cast<std::size_t>(request.rank++);
        request.extents[at] = static_cast<std::uint64_t>(axis.extent);
        request.strides[at - 1] = stride_bytes(name, axis);
        request.box[at] = static_cast<std::uint32_t>(axis.box);
    }
    abi::TensorMap map{};
    driver::encode_tensor_map(api, request, &map);
    return map;
}

}  // namespace

void make_wgmma_arguments(const driver::Api& api, int device, const AttentionSpec& spec,
                          const planner::KernelConfig& kernel, const planner::Launch& launch,
                          const abi::AttentionArguments& attention, abi::WgmmaArguments& arguments) {
    abi::AttentionArguments& a = arguments.attention;
    a = attention;
    arguments.kv_head_shares = static_cast<std::int32_t>(launch.kv_head_shares);
    a.kv_heads *= arguments.kv_head_shares;
    a.group /= arguments.kv_head_shares;
    if (launch.grid == 0) return;                   // no queries, and nothing to launch
    const driver::ContextScope scope(api, device);  // which encoding a map needs
    arguments.warpgroup_tokens = abi::kWgmmaRows / a.group;
    arguments.sequence_tiles = static_cast<std::int32_t>(launch.sequence_tiles);
    arguments.draws = static_cast<std::uint32_t>(launch.draws);
    arguments.paired_draws = static_cast<std::uint32_t>(launch.paired_draws);
    arguments.mixed_streams = static_cast<std::uint32_t>(launch.mixed_streams);
    arguments.slack = kSlack / a.scale_log2;
    arguments.box_keys = planner::wgmma_box_keys(kernel, a.page_size);
    if (a.page_size > 0) {
        // Exact for keys below 2^31: their product with the magic's error is less than 2^(31 + shift).
        const auto size = static_cast<std::uint32_t>(a.page_size);
        arguments.page_shift = std::bit_width(size - 1);
        arguments.page_magic =
            static_cast<std::uint32_t>((std::uint64_t{1} << (31 + arguments.page_shift)) / size + 1);
    }

    const bool ragged_q = a.q_indptr != nullptr;
    const int q_token = ragged_q ? 0 : 1;
    arguments.q =
        encode(api, "q", a.q, spec.dtype, spec.head_dim_qk,
               {{a.group, a.q_head_stride, a.group, q_token + 1},
                {ragged_q ? a.q_tokens : a.max_q_len, a.q_token_stride, arguments.warpgroup_tokens, q_token},
                {a.kv_heads, a.q_head_stride, 1, q_token + 1, a.group},
                {ragged_q ? 1 : a.batch, a.q_batch_stride, 1, 0}},
               a.q);

    if (kernel.gather) return;  // K and V by their addresses

    const bool paged = spec.kv == KvStorage::paged, ragged_kv = spec.kv == KvStorage::ragged;
    const bool heads_first = paged && spec.page_order == PageOrder::HND;
    const int kv_token = ragged_kv ? 0 : heads_first ? 2 : 1;
    const int kv_head = ragged_kv || heads_first ? 1 : 2;
    const std::int64_t tokens = paged ? a.page_size : a.kv_tokens;
    const std::int64_t outer = paged ? a.pages : ragged_kv ? 1 : a.batch;
    arguments.k = encode(api, "k", a.k, spec.dtype, spec.head_dim_qk,
                         {{tokens, a.k_token_stride, arguments.box_keys, kv_token},
                          {spec.kv_heads, a.k_head_stride, 1, kv_head},
                          {outer, a.k_batch_stride, 1, 0}},
                         a.q);
    arguments.v = encode(api, "v", a.v, spec.dtype, spec.head_dim_vo,
                         {{tokens, a.v_token_stride, arguments.box_keys, kv_token},
                          {spec.kv_heads, a.v_head_stride, 1, kv_head},
                          {outer, a.v_batch_stride, 1, 0}},
                         a.q);
}

}  // namespace attnsmith::engine
