// The kernels whose machine code is looked at and compared: those of the kernel sets of many specs.
#pragma once

#include <set>
#include <utility>
#include <vector>

#include "attnsmith/spec.hpp"
#include "families/config.hpp"

namespace attnsmith::test {

using Kernels = std::set<families::KernelConfig>;
using HeadDims = std::vector<std::pair<int, int>>;  // of QK, of VO

inline const HeadDims kMainHeadDims{{64, 64}, {128, 128}, {256, 256}, {512, 512}};
inline const HeadDims kOtherHeadDims{{96, 96}, {192, 128}, {72, 72}, {200, 200}, {384, 384}, {448, 264}};

// Those of the specs' sets for one SM.
Kernels kernels_of(const std::vector<AttentionSpec>& specs, int sm);

// Each head dim in either storage with every tile; and the logit transforms, small alignments and wide
// indices at one head dim.
Kernels kernels_on(int sm, const HeadDims& head_dims);

// Keys and values of 8 bits whose tokens have scales of their own: in each kind of kernel, and in latents
// with one scale or several.
Kernels token_scales_on(int sm, const std::vector<int>& dims);

// Op merge: what head dims and alignments make of it, with both dtypes.
Kernels merges_on(int sm);

// Op append: what is done to a row, how wide it is, what it is stored as, and where it goes.
Kernels appends_on(int sm);

// Op top_k, with indices of either type.
Kernels top_k_on(int sm);

// Kernels that write O as fp32: attentions with one tile for O in shared memory and with several, and the
// merge of their splits.
Kernels fp32_kernels_on(int sm, const HeadDims& head_dims);

// Op mla: DeepSeek's latents in pages, and others without some of what they have.
Kernels latent_kernels_on(int sm);

// wgmma's kernels as planned over head dims, storage and what is done to logits, in either index type; of
// `few`, those without softcap, wide indices, bitwise results or widened keys.
Kernels wgmma_kernels(const HeadDims& head_dims, bool few = false);

// All of these, at more head dims.
Kernels every_kernel(int sm);

}  // namespace attnsmith::test
