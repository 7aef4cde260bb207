// The kernels of the mma family: their constants, and what a thread of one needs.
#pragma once

#include "abi/attention_mma.h"
#include "families/tiled_attention.hpp"

namespace attnsmith::families::attention_mma {

// 16 query rows a warp; where warps divide the keys, tile_q is 16, or the kernel is a wide one.
struct Kernel : TiledKernel {
    bool wide = false;  // of the second product warps divide V's columns (attention/mma/wide_kernel.cuh)

    template <class Self, class Visitor>
    static void visit(Self& self, Visitor& visitor) {
        TiledKernel::visit(self, visitor);
        visitor.flag("wide", self.wide);
    }

    abi::MmaShape shape() const { return abi::mma_shape(*this, storage_bytes(*this)); }
};

// Registers that a thread of the kernel is expected to need, without spills.
int registers_of(const Kernel& kernel);

// What ranks the kernel, of which an SM holds `ctas_per_sm`.
AttentionCost cost_of(const Kernel& kernel, const SmTraits& sm, int ctas_per_sm);

// The family's part of a kernel set: one for each query tile that fits, smallest tile first. The tile for
// decode is the first of the table's that is legal; without one, and else, the model's best.
std::vector<Candidate> candidates(const AttentionSpec& spec, const SmTraits& sm, const TuningTable& tuning,
                                  std::vector<Refusal>& rejected);

// Every legal kernel of the tile for decode. None where rows are cut at absolute positions.
std::vector<KernelConfig> tunable(const AttentionSpec& spec, const SmTraits& sm);

}  // namespace attnsmith::families::attention_mma
