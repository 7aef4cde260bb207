#include "families/attention_mma/family.hpp"

#include "families/attention_mma/kernel.hpp"

namespace attnsmith::families::attention_mma {
namespace {

class Mma final : public TiledAttention {
  public:
    std::string_view name() const override { return "attention_mma"; }
    Backend backend() const override { return Backend::mma; }

    std::optional<std::string> refusal(const AttentionSpec& spec, const SmTraits&) const override {
        return tensor_core_refusal(spec);
    }

    std::optional<Phase> tuned_phase() const override { return Phase::decode; }
    std::vector<KernelConfig> tunable(const AttentionSpec& spec, const SmTraits& sm) const override {
        return attention_mma::tunable(spec, sm);
    }

    SourceParts source(const KernelConfig& kernel) const override {
        return {
            .header = kernel.as<Kernel>().wide ? "attention/mma/wide_kernel.cuh" : "attention/mma/kernel.cuh",
            .members =
                "    static constexpr abi::MmaLayout layout =\n"
                "        abi::mma_layout(abi::mma_shape(Constants{}, abi::storage_bytes<Constants>()));\n",
            .arguments = "AttentionArguments",
            .shared_bytes = "attnsmith::Config::layout.total"};
    }

    bool is_for_decode(const KernelConfig& kernel) const override {
        return kernel.tile_q() == kDecodeRows && !kernel.as<Kernel>().absolute_cuts;
    }
    AttentionCost cost(const KernelConfig& kernel, const SmTraits& sm) const override {
        return attention_mma::cost_of(kernel.as<Kernel>(), sm, kernel.ctas_per_sm);
    }

  private:
    std::vector<Candidate> serving(const AttentionSpec& spec, const SmTraits& sm, const TuningTable& tuning,
                                   std::vector<Refusal>& rejected) const override {
        return attention_mma::candidates(spec, sm, tuning, rejected);
    }
};

}  // namespace

const Family& family() {
    static constexpr Mma kFamily;
    return kFamily;
}

}  // namespace attnsmith::families::attention_mma
