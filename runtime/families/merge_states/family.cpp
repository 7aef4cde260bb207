#include "families/merge_states/family.hpp"

#include <fmt/format.h>

#include <bit>

#include "abi/merge_arguments.h"
#include "families/attention.hpp"
#include "families/cost.hpp"

namespace attnsmith::families::merge_states {
namespace {

constexpr int kWarps = 4;
// 1024 threads with four 16-byte loads under way each: twice what hides the latency of device memory.
constexpr int kCtasPerSm = 8;
constexpr int kElementsPerLane = 8;  // 16 bytes

struct Kernel {
    DType output{};  // of the states, too
    int head_dim_vo = 0;
    int tile_q = 0;  // rows [token][head] of a CTA
    int threads = 0;
    int alignment = 16;

    template <class Self, class Visitor>
    static void visit(Self& self, Visitor& visitor) {
        visitor.element("Output", self.output);
        visitor.integer("head_dim_vo", self.head_dim_vo);
        visitor.integer("tile_q", self.tile_q);
        visitor.integer("threads", self.threads);
        visitor.integer("alignment", self.alignment);
    }
};

// Lanes that share a row: a power of two, so that rows tile a warp.
int lanes_per_row(std::int64_t head_dim_vo) {
    return static_cast<int>(std::bit_ceil(static_cast<std::uint64_t>(head_dim_vo) / kElementsPerLane));
}

std::int64_t merged_rows(const LaunchContext& context) {
    return context.shape.q_tokens * context.problem.spec.q_heads;
}

}  // namespace

std::optional<std::string> MergeStates::refusal(const AttentionSpec&, const SmTraits&) const {
    return std::nullopt;
}

std::vector<Candidate> MergeStates::candidates(const AttentionSpec& spec, const SmTraits& sm,
                                               const TuningTable&, std::vector<Refusal>&) const {
    const Kernel kernel{.output = spec.dtype,
                        .head_dim_vo = static_cast<int>(spec.head_dim_vo),
                        .tile_q = kWarps * 32 / lanes_per_row(spec.head_dim_vo),
                        .threads = kWarps * 32,
                        .alignment = spec.alignment};
    return {{{.family = &kFamily,
              .sm = sm.sm,
              .target = fmt::format("sm_{}", sm.sm),
              .constants = Constants::of(kernel),
              .threads = kernel.threads,
              .ctas_per_sm = kCtasPerSm}}};
}

std::string MergeStates::kernel_name(const KernelConfig& config) const {
    const auto kernel = config.as<Kernel>();
    return fmt::format("merge states {} {}{}", attnsmith::to_string(kernel.output), kernel.head_dim_vo,
                       name_suffix(kernel.alignment, DType::i32));
}

// Every state is read once, and one is written.
double MergeStates::clocks(const KernelConfig& config, const DeviceTraits& device, const Work& work,
                           std::int64_t splits) const {
    const auto kernel = config.as<Kernel>();
    const auto rows =
        static_cast<double>(work.of_each.rows()) * static_cast<double>(work.sequences_and_heads);
    const double bytes = 2.0 * rows * static_cast<double>(splits + 1) * kernel.head_dim_vo;
    return kStartClocks + transfer_clocks(bytes, device.dram_bytes, device.sm_count);
}

// One grid over all rows [token][head]; nothing without tokens.
Extent MergeStates::extent(const KernelConfig& kernel, const LaunchContext& context) const {
    const std::int64_t ctas = problem::ceil_div(merged_rows(context), kernel.tile_q());
    return {.ctas = ctas, .items = ctas};
}

SourceParts MergeStates::source(const KernelConfig&) const {
    return {.header = "attention/merge/states.cuh", .arguments = "MergeArguments"};
}

Bound MergeStates::bind(const KernelConfig&, const LaunchContext& context, const Binding& binding) const {
    const MergeTensors& tensors = std::get<MergeBinding>(binding).tensors;
    static_assert(abi::kMaxMergeStates == MergeTensors::kMaxStates);
    abi::MergeArguments a{};
    for (std::size_t i = 0; i < tensors.o_states.size(); ++i) {
        const Tensor &o = tensors.o_states[i], &lse = tensors.lse_states[i];
        a.state[i] = {o.data,         static_cast<const float*>(lse.data),
                      o.strides[0],   o.strides[1],
                      lse.strides[0], lse.strides[1]};
    }
    a.o = tensors.o.data;
    a.lse = static_cast<float*>(tensors.lse.data);
    a.o_token_stride = tensors.o.strides[0], a.o_head_stride = tensors.o.strides[1];
    a.lse_token_stride = tensors.lse.strides[0], a.lse_head_stride = tensors.lse.strides[1];
    a.rows = merged_rows(context);
    a.heads = static_cast<std::int32_t>(context.problem.spec.q_heads);
    a.states = static_cast<std::int32_t>(tensors.o_states.size());
    return {ArgumentBlock(a)};
}

}  // namespace attnsmith::families::merge_states
