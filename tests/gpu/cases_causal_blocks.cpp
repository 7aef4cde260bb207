// causal_block: a query of a causal mask sees the keys up to the end of its own block.
#include <fmt/format.h>

#include "catalogue.hpp"

namespace attnsmith::gpu_tests {
namespace {

constexpr const char* kGroup = "causal_block";

Case blocked(Case test, std::int64_t block) {
    test.spec.causal_block = block;
    test.spec.lse = true;
    return test;
}

// Blocks shorter than a tile, no multiple of one, as long as one, and longer than some of the sequences.
constexpr std::int64_t kBlocks[] = {2, 4, 7, 16, 32, 63, 64, 65, 128, 129, 200, 512};

void add_lengths_of_blocks(Catalogue& catalogue) {
    for (const std::int64_t block : kBlocks) {
        const Case base = causal(attention(block % 2 ? DType::fp16 : DType::bf16, 64, 4, 2));
        add(catalogue, kGroup, fmt::format("ragged {}", block),
            with_mixed_lengths(blocked(ragged(base), block)));
        add(catalogue, kGroup, fmt::format("paged dim 128 {}", block),
            with_mixed_lengths(blocked(paged(causal(attention(DType::bf16, 128, 8, 2))), block)));
        Case sliding = blocked(paged(base, 1), block);
        sliding.spec.window_left = 90;
        add(catalogue, kGroup, fmt::format("window 90, block {}", block), with_mixed_lengths(sliding));
        Case chunked = blocked(ragged(base), block);
        chunked.spec.attention_chunk = 100;
        add(catalogue, kGroup, fmt::format("chunk 100, block {}", block), with_mixed_lengths(chunked));
        Case bitwise = blocked(paged(base), block);
        bitwise.spec.consistency = Consistency::bitwise;
        add(catalogue, kGroup, fmt::format("bitwise {}", block), with_mixed_lengths(bitwise));
    }
}

// A block that is generated step by step over all keys before it, as block diffusion does.
void add_generation(Catalogue& catalogue) {
    const Case base = paged(causal(attention(DType::bf16, 128, 32, 8)));
    for (const std::int64_t block : {4, 32, 64})
        add(catalogue, kGroup, fmt::format("generation of {}", block),
            with_lengths(blocked(base, block), {block, block, block}, {block, 32 * block, 8192}));
    add(catalogue, kGroup, "a long prefill, frames of 1560 tokens",
        with_lengths(blocked(dense(causal(attention(DType::bf16, 128, 8, 8))), 1560), {6240}));
    for (const std::int64_t dim : {96, 256})
        add(catalogue, kGroup, fmt::format("head dim {}", dim),
            with_mixed_lengths(blocked(ragged(causal(attention(DType::fp16, dim, 4, 2))), 48)));
}

void add_kernels_of_blocks(Catalogue& catalogue) {
    add_over_kernels(catalogue, "kernels", "paged 64 causal_block 37",
                     with_mixed_lengths(blocked(paged(causal(attention(DType::bf16, 64, 4, 2))), 37)),
                     Splitting::both);
    add_over_kernels(catalogue, "kernels", "ragged 128 causal_block 200",
                     with_mixed_lengths(blocked(ragged(causal(attention(DType::fp16, 128, 4, 2))), 200)),
                     Splitting::both);
}

}  // namespace

void add_causal_blocks(Catalogue& catalogue) {
    add_lengths_of_blocks(catalogue);
    add_generation(catalogue);
    add_kernels_of_blocks(catalogue);
}

}  // namespace attnsmith::gpu_tests
