// What the attention families have in common whose kernels have a CTA for each tile of packed query rows and
// KV head, or CTAs with equal shares of the keys (attention/shares.cuh), and take AttentionArguments.
#pragma once

#include "families/attention.hpp"
#include "families/attention_family.hpp"

namespace attnsmith::families {

struct TiledKernel : AttentionConstants {
    int warps_q = 0, warps_kv = 0;  // warps divide the tile's query rows, or the keys
    int load_warps = 0;             // that take part in loads alone
    int alignment = 16;

    template <class Self, class Visitor>
    static void visit(Self& self, Visitor& visitor) {
        AttentionConstants::visit(self, visitor);
        visitor.integer("warps_q", self.warps_q);
        visitor.integer("warps_kv", self.warps_kv);
        visitor.integer("load_warps", self.load_warps);
        visitor.integer("alignment", self.alignment);
    }

    int threads() const { return (warps_q * warps_kv + load_warps) * 32; }
};

// Tiles of rows that are packed without a gap: AttentionCost::query_tiles.
std::int64_t packed_query_tiles(int tile_q, const HeadWork& work);

class TiledAttention : public AttentionFamily {
  public:
    bool takes(const KernelConfig& kernel, SplitPolicy policy) const final;
    int softmax_keys(const KernelConfig& kernel) const final;
    std::string kernel_name(const KernelConfig& kernel) const final;
    std::int64_t most_tiles(const KernelConfig& kernel, const problem::Problem& problem,
                            const problem::BoundShape& shape) const final;
    Extent extent(const KernelConfig& kernel, const LaunchContext& context) const final;
    Bound bind(const KernelConfig& kernel, const LaunchContext& context, const Binding& binding) const final;

  protected:
    constexpr TiledAttention() = default;
    constexpr ~TiledAttention() = default;
};

}  // namespace attnsmith::families
