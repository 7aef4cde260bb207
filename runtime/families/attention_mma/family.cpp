#include "families/attention_mma/family.hpp"

#include "families/attention_arguments.hpp"
#include "families/attention_mma/kernel.hpp"

namespace attnsmith::families::attention_mma {

std::optional<std::string> Mma::refusal(const AttentionSpec& spec, const SmTraits&) const {
    return tensor_core_refusal(spec);
}

std::vector<Candidate> Mma::candidates(const AttentionSpec& spec, const SmTraits& sm, const TuningTable&,
                                       std::vector<Refusal>& rejected) const {
    if (const auto reason = refusal(spec, sm)) {
        rejected.push_back({"mma", *reason});
        return {};
    }
    return attention_mma::candidates(spec, sm, rejected);
}

std::string Mma::kernel_name(const KernelConfig& kernel) const {
    const auto constants = kernel.as<Kernel>();
    return attention_name(backend(), constants, constants.paged ? "paged" : "contiguous",
                          constants.alignment);
}

double Mma::clocks(const KernelConfig& kernel, const DeviceTraits& device, const Work& work,
                   std::int64_t splits) const {
    const auto constants = kernel.as<Kernel>();
    const std::int64_t query_tiles = problem::ceil_div(work.of_each.rows(), constants.tile_q);
    return clocks_of(constants, device, kernel.ctas_per_sm,
                     cta_work(work, splits, query_tiles, constants.tile_kv, device.sm_count));
}

Extent Mma::extent(const KernelConfig& kernel, const LaunchContext& context) const {
    return grid_of_tiles(context, kernel.tile_q());
}

SourceParts Mma::source(const KernelConfig&) const {
    return {.header = "attention/mma/kernel.cuh",
            .members =
                "    static constexpr abi::MmaLayout layout = abi::mma_layout({\n"
                "        head_dim_qk, head_dim_vo, tile_q, tile_kv, stages, warps_q, warps_kv, paged,\n"
                "        {sizeof(Query), sizeof(KeyValue), sizeof(Output)}});\n",
            .arguments = "AttentionArguments",
            .shared_bytes = "attnsmith::Config::layout.total"};
}

Bound Mma::bind(const KernelConfig& kernel, const LaunchContext& context, const Binding& binding) const {
    const std::int64_t tiles = query_tiles(context.shape, context.problem.group_size(), kernel.tile_q());
    return {ArgumentBlock(attention_arguments(context, std::get<AttentionBinding>(binding), tiles))};
}

}  // namespace attnsmith::families::attention_mma
