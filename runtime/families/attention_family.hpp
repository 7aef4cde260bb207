// What planning asks of families whose kernels are attentions, and of no others.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "families/cost.hpp"
#include "families/family.hpp"

namespace attnsmith::families {

class AttentionFamily : public Family {
  public:
    Role role() const final { return Role::attention; }
    const AttentionFamily* attention() const final { return this; }

    // Whether keys can be divided for the kernel like that; or left whole, with SplitPolicy::none.
    virtual bool takes(const KernelConfig& kernel, SplitPolicy policy) const = 0;
    void add_regions(const KernelConfig&, const LaunchContext& context,
                     WorkspaceLayout& workspace) const override {
        add_partial_results(context, workspace);
    }
    // The join of chunks, where the kernel takes these.
    bool needs(const KernelConfig& kernel, Role other) const override {
        return other == Role::merge_splits && takes(kernel, SplitPolicy::chunks);
    }
    // Keys that the running softmax takes at a time, where rows are cut at absolute positions.
    virtual int softmax_keys(const KernelConfig& kernel) const = 0;
    // Query tiles of all sequences and KV heads, at most, for these bounds and any below.
    virtual std::int64_t most_tiles(const KernelConfig& kernel, const problem::Problem& problem,
                                    const problem::BoundShape& shape) const = 0;
    // Whether the kernel is made for decode, which kernels for more rows leave to it.
    virtual bool is_for_decode(const KernelConfig&) const { return false; }
    // A value where the family's own candidates serve all sizes beyond decode, as fast as other families
    // would by measurement: then other families' kernels are compiled only for tiles of up to this many rows.
    virtual std::optional<int> most_rows_of_other_families(const AttentionSpec&,
                                                           std::span<const Candidate>) const {
        return std::nullopt;
    }
    // What it is ranked by.
    virtual AttentionCost cost(const KernelConfig& kernel, const SmTraits& sm) const = 0;
    // Of the kernel's warps, those that only load.
    virtual int producer_warps(const KernelConfig&) const { return 0; }

    // The phase for which tuning tables decide on the family's tiles; nothing where they do for none.
    virtual std::optional<Phase> tuned_phase() const { return std::nullopt; }
    // Every kernel that is legal there: what is measured to make a table.
    virtual std::vector<KernelConfig> tunable(const AttentionSpec&, const SmTraits&) const { return {}; }

  protected:
    constexpr AttentionFamily() = default;
    constexpr ~AttentionFamily() = default;
};

// REQUIRES: the kernel is an attention.
inline const AttentionFamily& attention_of(const KernelConfig& kernel) { return *kernel.family->attention(); }

// AttentionFamily::takes(), of any kernel: others divide no keys.
inline bool takes(const KernelConfig& kernel, SplitPolicy policy) {
    const AttentionFamily* const attention = kernel.family->attention();
    return attention != nullptr ? attention->takes(kernel, policy) : policy == SplitPolicy::none;
}

}  // namespace attnsmith::families
