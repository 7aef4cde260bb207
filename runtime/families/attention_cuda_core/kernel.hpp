// The kernels of the family: their constants, and what an SM holds of one.
#pragma once

#include "abi/attention_cuda_core.h"
#include "families/tiled_attention.hpp"

namespace attnsmith::families::attention_cuda_core {

struct Kernel : TiledKernel {
    int rows = 0;  // packed query rows of a warp; where warps divide the keys, they have the same ones

    template <class Self, class Visitor>
    static void visit(Self& self, Visitor& visitor) {
        TiledKernel::visit(self, visitor);
        visitor.integer("rows", self.rows);
    }

    abi::CudaCoreShape shape() const { return abi::cuda_core_shape(*this, storage_bytes(*this)); }
};

// Registers that a thread of the kernel is expected to need, without spills.
int registers_of(const Kernel& kernel);

// What ranks the kernel, of which an SM holds `ctas_per_sm`.
AttentionCost cost_of(const Kernel& kernel, const SmTraits& sm, int ctas_per_sm);

// The family's part of a kernel set: one for each number of rows, fewest first.
std::vector<Candidate> candidates(const AttentionSpec& spec, const SmTraits& sm,
                                  std::vector<Refusal>& rejected);

}  // namespace attnsmith::families::attention_cuda_core
