// Op merge: joins attention states over disjoint keys.
#pragma once

#include "families/family.hpp"

namespace attnsmith::families::merge_states {

class MergeStates final : public Family {
  public:
    constexpr MergeStates() = default;

    std::string_view name() const override { return "merge_states"; }
    Backend backend() const override { return Backend::cuda_core; }
    Role role() const override { return Role::merge_states; }
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

inline constexpr MergeStates kFamily;

}  // namespace attnsmith::families::merge_states
