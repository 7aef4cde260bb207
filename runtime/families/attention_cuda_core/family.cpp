#include "families/attention_cuda_core/family.hpp"

#include "families/attention_arguments.hpp"
#include "families/attention_cuda_core/kernel.hpp"

namespace attnsmith::families::attention_cuda_core {

std::optional<std::string> CudaCore::refusal(const AttentionSpec& spec, const SmTraits&) const {
    if (const auto reason = changing_shape_refusal(spec)) return reason;
    if (spec.precision != Precision::high)
        return "multiplies on CUDA cores, for precision \"high\" alone; tensor cores are faster";
    return std::nullopt;
}

std::vector<Candidate> CudaCore::candidates(const AttentionSpec& spec, const SmTraits& sm, const TuningTable&,
                                            std::vector<Refusal>& rejected) const {
    if (const auto reason = refusal(spec, sm)) {
        rejected.push_back({"cuda_core", *reason});
        return {};
    }
    return attention_cuda_core::candidates(spec, sm, rejected);
}

std::string CudaCore::kernel_name(const KernelConfig& kernel) const {
    const auto constants = kernel.as<Kernel>();
    return attention_name(backend(), constants, constants.paged ? "paged" : "contiguous",
                          constants.alignment);
}

double CudaCore::clocks(const KernelConfig& kernel, const DeviceTraits& device, const Work& work,
                        std::int64_t splits) const {
    const auto constants = kernel.as<Kernel>();
    const std::int64_t query_tiles = problem::ceil_div(work.of_each.rows(), constants.tile_q);
    return clocks_of(constants, device, kernel.ctas_per_sm,
                     cta_work(work, splits, query_tiles, constants.tile_kv, device.sm_count));
}

Extent CudaCore::extent(const KernelConfig& kernel, const LaunchContext& context) const {
    return grid_of_tiles(context, kernel.tile_q());
}

SourceParts CudaCore::source(const KernelConfig&) const {
    return {.header = "attention/cuda_core/kernel.cuh",
            .members =
                "    static constexpr abi::CudaCoreLayout layout = abi::cuda_core_layout({\n"
                "        head_dim_qk, head_dim_vo, rows, tile_kv, stages, warps_q, warps_kv, paged,\n"
                "        {sizeof(Query), sizeof(KeyValue), sizeof(Output)}});\n",
            .arguments = "AttentionArguments",
            .shared_bytes = "attnsmith::Config::layout.total"};
}

Bound CudaCore::bind(const KernelConfig& kernel, const LaunchContext& context, const Binding& binding) const {
    const std::int64_t tiles = query_tiles(context.shape, context.problem.group_size(), kernel.tile_q());
    return {ArgumentBlock(attention_arguments(context, std::get<AttentionBinding>(binding), tiles))};
}

}  // namespace attnsmith::families::attention_cuda_core
