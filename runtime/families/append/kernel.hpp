// The constants of kernels that append, and their arguments.
#pragma once

#include "abi/append_arguments.h"
#include "families/family.hpp"

namespace attnsmith::families::append {

inline constexpr int kHalf = 1, kInterleaved = 2;  // what `rope` is; 0: none

// With latents, k is the columns of the position and v the latent: what norms and weights they have follows.
struct Kernel {
    DType element = DType::bf16;  // of what is read, and of what is written unless it has 8 bits
    DType index = DType::int32;
    int columns_q = 0, columns_k = 0, columns_v = 0;
    // Bits of 8-bit floats: 3 of e4m3, 2 of e5m2; 0: as the element.
    int q_significand = 0, k_significand = 0, v_significand = 0;
    // How many columns share a scale that the kernel computes; 0: scales are given, or there are none.
    int k_scale_columns = 0, v_scale_columns = 0;
    bool joint_scale = false;  // of latents: the computed scale is of k and v together
    bool paged = false;
    bool by_table = false;
    int rope = 0;
    int rotary_dim = 0;
    bool frequencies = false;
    bool norm_q = false, norm_k = false, norm_v = false, weighted_v = false;
    bool check_slots = false;
    int tile_q = 0;  // rows of v that a CTA has at a time
    int threads = 0;
    int alignment = 16;

    template <class Self, class Visitor>
    static void visit(Self& self, Visitor& visitor) {
        visitor.element("Element", self.element);
        visitor.index("Index", self.index);
        visitor.integer("columns_q", self.columns_q);
        visitor.integer("columns_k", self.columns_k);
        visitor.integer("columns_v", self.columns_v);
        visitor.integer("q_significand", self.q_significand);
        visitor.integer("k_significand", self.k_significand);
        visitor.integer("v_significand", self.v_significand);
        visitor.integer("k_scale_columns", self.k_scale_columns);
        visitor.integer("v_scale_columns", self.v_scale_columns);
        visitor.flag("joint_scale", self.joint_scale);
        visitor.flag("paged", self.paged);
        visitor.flag("by_table", self.by_table);
        visitor.integer("rope", self.rope);
        visitor.integer("rotary_dim", self.rotary_dim);
        visitor.flag("frequencies", self.frequencies);
        visitor.flag("norm_q", self.norm_q);
        visitor.flag("norm_k", self.norm_k);
        visitor.flag("norm_v", self.norm_v);
        visitor.flag("weighted_v", self.weighted_v);
        visitor.flag("check_slots", self.check_slots);
        visitor.integer("tile_q", self.tile_q);
        visitor.integer("threads", self.threads);
        visitor.integer("alignment", self.alignment);
    }
};

// With what the spec decides.
Kernel kernel_of(const AttentionSpec& spec);

// Rows of so many columns that a warp has side by side. `rotated_by_halves`: how many of them are.
int rows_at_a_time(int columns, int rotated_by_halves);

// Warps that a launch has: one for each piece of a token's heads, and those that compare slots.
std::int64_t items(const KernelConfig& config, const LaunchContext& context);

abi::AppendArguments append_arguments(const KernelConfig& config, const LaunchContext& context,
                                      const Binding& binding);

}  // namespace attnsmith::families::append
