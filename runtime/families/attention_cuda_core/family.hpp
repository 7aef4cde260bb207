// Attention on CUDA cores, with products, weights and sums in fp32: precision "high", on every SM from 80 on.
#pragma once

#include "families/family.hpp"

namespace attnsmith::families::attention_cuda_core {

class CudaCore final : public Family {
  public:
    constexpr CudaCore() = default;

    std::string_view name() const override { return "attention_cuda_core"; }
    Backend backend() const override { return Backend::cuda_core; }
    Role role() const override { return Role::attention; }
    std::optional<std::string> refusal(const AttentionSpec& spec, const SmTraits& sm) const override;
    std::vector<Candidate> candidates(const AttentionSpec& spec, const SmTraits& sm,
                                      const TuningTable& tuning,
                                      std::vector<Refusal>& rejected) const override;
    std::string kernel_name(const KernelConfig& kernel) const override;
    double clocks(const KernelConfig& kernel, const DeviceTraits& device, const Work& work,
                  std::int64_t splits) const override;
    Extent extent(const KernelConfig& kernel, const LaunchContext& context) const override;
    SourceParts source(const KernelConfig& kernel) const override;
    Bound bind(const KernelConfig& kernel, const LaunchContext& context,
               const Binding& binding) const override;
};

inline constexpr CudaCore kFamily;

}  // namespace attnsmith::families::attention_cuda_core
