// A CTA on the host: a thread of the host for each of its threads, which wait for each other and trade words
// as on the GPU. Included before the device headers that a test compiles.
#pragma once

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstdint>
#include <memory>
#include <vector>

namespace {

struct Index {
    unsigned x = 0;
};
thread_local Index threadIdx, blockIdx;
[[maybe_unused]] Index gridDim;

// A CTA's threads wait for each other, and those of a warp trade words.
struct Block {
    explicit Block(unsigned threads) : all(threads), words(threads) {
        for (unsigned i = 0; i < threads / 32; ++i) warps.push_back(std::make_unique<std::barrier<>>(32));
    }
    // What the warp's lanes say, by their numbers.
    template <class Use>
    auto trade(std::uint32_t word, const Use& use) {
        const unsigned warp = threadIdx.x / 32;
        words[threadIdx.x] = word;
        warps[warp]->arrive_and_wait();
        const auto found = use(&words[warp * 32]);
        warps[warp]->arrive_and_wait();
        return found;
    }

    std::barrier<> all;
    std::vector<std::unique_ptr<std::barrier<>>> warps;
    std::vector<std::uint32_t> words;
};
thread_local Block* block = nullptr;

[[maybe_unused]] void __syncthreads() { block->all.arrive_and_wait(); }
[[maybe_unused]] void __syncwarp() { block->warps[threadIdx.x / 32]->arrive_and_wait(); }
[[maybe_unused]] unsigned __ballot_sync(unsigned, bool value) {
    return block->trade(value, [](const std::uint32_t* lanes) {
        unsigned bits = 0;
        for (unsigned lane = 0; lane < 32; ++lane) bits |= lanes[lane] << lane;
        return bits;
    });
}
[[maybe_unused]] std::uint32_t atomicOr(std::uint32_t* word, std::uint32_t value) {
    return std::atomic_ref(*word).fetch_or(value);
}

}  // namespace
