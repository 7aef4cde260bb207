#include "families/attention_cuda_core/family.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "families/attention_cuda_core/kernel.hpp"

namespace attnsmith::families::attention_cuda_core {
namespace {

constexpr std::int64_t kMostHeadDim = 256;  // eight columns a lane

class CudaCore final : public TiledAttention {
  public:
    std::string_view name() const override { return "attention_cuda_core"; }
    Backend backend() const override { return Backend::cuda_core; }

    std::optional<std::string> refusal(const AttentionSpec& spec, const SmTraits&) const override {
        if (problem::is_latent(spec))
            return "loads keys and values apart; of op mla values are a part of the keys";
        if (spec.precision != Precision::high)
            return "multiplies on CUDA cores, for precision \"high\" alone; tensor cores are faster";
        if (std::max(spec.head_dim_qk, spec.head_dim_vo) > kMostHeadDim)
            return fmt::format("head dims {} and {}: its lanes have the columns of {} and less",
                               spec.head_dim_qk, spec.head_dim_vo, kMostHeadDim);
        if (auto reason = stored_keys_refusal(spec)) return reason;
        return changing_shape_refusal(spec);
    }

    SourceParts source(const KernelConfig&) const override {
        return {.header = "attention/cuda_core/kernel.cuh",
                .members =
                    "    static constexpr abi::CudaCoreLayout layout = abi::cuda_core_layout(\n"
                    "        abi::cuda_core_shape(Constants{}, abi::storage_bytes<Constants>()));\n",
                .arguments = "AttentionArguments",
                .shared_bytes = "attnsmith::Config::layout.total"};
    }

    AttentionCost cost(const KernelConfig& kernel, const SmTraits& sm) const override {
        return attention_cuda_core::cost_of(kernel.as<Kernel>(), sm, kernel.ctas_per_sm);
    }

  private:
    std::vector<Candidate> serving(const AttentionSpec& spec, const SmTraits& sm, const TuningTable&,
                                   std::vector<Refusal>& rejected) const override {
        return attention_cuda_core::candidates(spec, sm, rejected);
    }
};

}  // namespace

const Family& family() {
    static constexpr CudaCore kFamily;
    return kFamily;
}

}  // namespace attnsmith::families::attention_cuda_core
