#include "families/merge_splits/family.hpp"

#include <fmt/format.h>

#include "families/attention.hpp"
#include "families/attention_arguments.hpp"

namespace attnsmith::families::merge_splits {
namespace {

constexpr int kRows = 4;  // packed rows of a CTA, one a warp
constexpr int kCtasPerSm = 4;

struct Kernel {
    DType output = DType::bf16, index = DType::int32;
    int head_dim_vo = 0;
    int tile_q = 0;
    int alignment = 16;
    bool paged = false;
    bool value_scale = true;  // whatever the keys of its partial results were

    template <class Self, class Visitor>
    static void visit(Self& self, Visitor& visitor) {
        visitor.element("Output", self.output);
        visitor.index("Index", self.index);
        visitor.integer("head_dim_vo", self.head_dim_vo);
        visitor.integer("tile_q", self.tile_q);
        visitor.integer("alignment", self.alignment);
        visitor.flag("paged", self.paged);
        visitor.flag("value_scale", self.value_scale);
    }
};

// The merge does not divide a group, whatever the attention does with it.
QueryTiles tiles_of(const LaunchContext& context) {
    return query_tiles(context.shape, context.problem.group_size(), kRows);
}

class MergeSplits final : public Family {
  public:
    std::string_view name() const override { return "merge_splits"; }
    Backend backend() const override { return Backend::cuda_core; }
    Role role() const override { return Role::merge_splits; }

    std::string kernel_name(const KernelConfig& config) const override {
        const auto kernel = config.as<Kernel>();
        return fmt::format("merge {} {}{}{}", attnsmith::to_string(kernel.output), kernel.head_dim_vo,
                           kernel.paged ? " paged" : "", name_suffix(kernel.alignment, kernel.index));
    }

    Extent extent(const KernelConfig&, const LaunchContext& context) const override {
        if (context.split.chunks() == 1) return {};
        const std::int64_t ctas = tiles_of(context).all * context.problem.spec.kv_heads;
        return {.ctas = ctas, .items = ctas};
    }

    void add_regions(const KernelConfig&, const LaunchContext& context,
                     WorkspaceLayout& workspace) const override {
        add_partial_results(context, workspace);
    }

    SourceParts source(const KernelConfig&) const override {
        return {.header = "attention/merge/splits.cuh", .arguments = "AttentionArguments"};
    }

    Bound bind(const KernelConfig&, const LaunchContext& context, const Binding& binding) const override {
        return {.arguments = ArgumentBlock(attention_arguments(context, binding, tiles_of(context))),
                .addresses = attention_addresses(context.problem.spec)};
    }

  private:
    std::vector<Candidate> serving(const AttentionSpec& spec, const SmTraits& sm, const TuningTable&,
                                   std::vector<Refusal>&) const override {
        const Kernel kernel{.output = problem::output_dtype(spec),
                            .index = spec.index_dtype,
                            .head_dim_vo = static_cast<int>(problem::value_dim(spec)),
                            .tile_q = kRows,
                            .alignment = spec.alignment,
                            .paged = spec.kv == KvStorage::paged};
        return {{{.family = &family(),
                  .sm = sm.sm,
                  .target = fmt::format("sm_{}", sm.sm),
                  .constants = Constants::of(kernel),
                  .threads = kRows * 32,
                  .ctas_per_sm = kCtasPerSm}}};
    }
};

}  // namespace

const Family& family() {
    static constexpr MergeSplits kFamily;
    return kFamily;
}

}  // namespace attnsmith::families::merge_splits
