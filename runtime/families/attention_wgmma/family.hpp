// Attention by wgmma and TMA, in persistent kernels: sm_90.
#pragma once

#include "families/family.hpp"

namespace attnsmith::families::attention_wgmma {

class Wgmma final : public Family {
  public:
    constexpr Wgmma() = default;

    std::string_view name() const override { return "attention_wgmma"; }
    Backend backend() const override { return Backend::wgmma; }
    Role role() const override { return Role::attention; }
    std::optional<std::string> refusal(const AttentionSpec& spec, const SmTraits& sm) const override;
    // By rising rows: each for what has more than the one before. With the first of the table's tiles for the
    // spec and so many rows that is legal; ranges may share a tile.
    std::vector<Candidate> candidates(const AttentionSpec& spec, const SmTraits& sm,
                                      const TuningTable& tuning,
                                      std::vector<Refusal>& rejected) const override;
    bool is_tuned() const override { return true; }
    std::vector<KernelConfig> tunable(const AttentionSpec& spec, const SmTraits& sm) const override;
    std::string kernel_name(const KernelConfig& kernel) const override;
    int producer_warps() const override;
    double clocks(const KernelConfig& kernel, const DeviceTraits& device, const Work& work,
                  std::int64_t splits) const override;
    Extent extent(const KernelConfig& kernel, const LaunchContext& context) const override;
    SourceParts source(const KernelConfig& kernel) const override;
    Bound bind(const KernelConfig& kernel, const LaunchContext& context,
               const Binding& binding) const override;
};

inline constexpr Wgmma kFamily;

}  // namespace attnsmith::families::attention_wgmma
