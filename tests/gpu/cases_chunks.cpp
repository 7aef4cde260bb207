// attention_chunk: a query sees the keys of its own chunk alone, of those that mask and windows let through.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "catalogue.hpp"
#include "check/storage.hpp"

namespace attnsmith::gpu_tests {
namespace {

Case chunked(Case test, std::int64_t chunk) {
    test.spec.attention_chunk = chunk;
    test.spec.lse = true;
    return test;
}

// Chunks shorter than a tile, no multiple of one, as long as one, and longer than some of the sequences.
constexpr std::int64_t kChunks[] = {1, 2, 7, 16, 63, 64, 65, 100, 128, 129, 176, 256, 300, 512};

void add_lengths_of_chunks(Catalogue& catalogue) {
    for (const std::int64_t chunk : kChunks) {
        const Case base = attention(chunk % 2 ? DType::fp16 : DType::bf16, 64, 4, 2);
        add(catalogue, "chunk", fmt::format("full {}", chunk),
            with_mixed_lengths(chunked(ragged(base), chunk)));
        add(catalogue, "chunk", fmt::format("causal {}", chunk),
            with_mixed_lengths(chunked(paged(causal(base)), chunk)));
        add(catalogue, "chunk", fmt::format("causal dim 128 {}", chunk),
            with_mixed_lengths(chunked(paged(causal(attention(DType::bf16, 128, 8, 2))), chunk)));
        Case window = chunked(ragged(base), chunk);
        window.spec.window_left = 50;
        window.spec.window_right = 20;
        add(catalogue, "chunk", fmt::format("window 50, 20 chunk {}", chunk), with_mixed_lengths(window));
        Case sliding = chunked(paged(causal(base), 1), chunk);
        sliding.spec.window_left = 90;
        add(catalogue, "chunk", fmt::format("causal window 90 chunk {}", chunk), with_mixed_lengths(sliding));
    }
}

void add_decodes(Catalogue& catalogue) {
    const Case base = paged(causal(attention(DType::bf16, 128, 40, 8)));
    for (const std::int64_t chunk : {1, 100, 512, 4096, 8192})
        add(catalogue, "chunk", fmt::format("decode {}", chunk),
            with_lengths(chunked(base, chunk), {1, 1, 1, 1, 1}, {chunk, chunk + 1, 9000, 8192, 8193}));
    for (const std::int64_t chunk : {777, 8192})
        add(catalogue, "chunk", fmt::format("speculative {}", chunk),
            with_lengths(chunked(base, chunk), {5, 4, 6}, {8194, 2 * chunk + 2, 20001}));
    add(catalogue, "chunk", "split decode 8192", with_lengths(chunked(base, 8192), {1}, {100003}));
    add(catalogue, "chunk", "split decode, one key of the last chunk",
        with_lengths(chunked(base, 8192), {1}, {65537}));
    // All of the chunk in the middle of a split's keys.
    add(catalogue, "chunk", "split decode 333", with_lengths(chunked(base, 333), {1, 1}, {50001, 49950}));
}

void add_scores_of_chunks(Catalogue& catalogue) {
    for (const std::int64_t chunk : {48, 200}) {
        const Case base = chunked(paged(causal(attention(DType::fp16, 64, 4, 2))), chunk);
        Case sink = base, alibi = base, softcap = base;
        sink.spec.sink = true;
        add(catalogue, "chunk", fmt::format("sink {}", chunk), with_mixed_lengths(sink));
        alibi.spec.alibi = true;
        add(catalogue, "chunk", fmt::format("alibi {}", chunk), with_mixed_lengths(alibi));
        softcap.spec.softcap = 20.0;
        softcap.spec.sink = true;
        softcap.values = check::Values::peaked;
        add(catalogue, "chunk", fmt::format("softcap and sink {}", chunk), with_mixed_lengths(softcap));
    }
}

void add_kernels_of_chunks(Catalogue& catalogue) {
    add_over_kernels(catalogue, "kernels", "paged 64 chunk 37",
                     with_mixed_lengths(chunked(paged(causal(attention(DType::bf16, 64, 4, 2))), 37)),
                     Splitting::both);
    add_over_kernels(catalogue, "kernels", "ragged 128 chunk 200",
                     with_mixed_lengths(chunked(ragged(attention(DType::fp16, 128, 4, 2)), 200)),
                     Splitting::both);
    Case window = chunked(paged(causal(attention(DType::fp16, 192, 128, 4, 2))), 150);
    window.spec.window_left = 100;
    window.spec.sink = true;
    add_over_kernels(catalogue, "kernels", "paged 192/128 chunk 150 window 100 sink",
                     with_mixed_lengths(window), Splitting::both);
}

check::Storage::Outputs outputs_of(const Context& context, const Case& test) {
    check::Storage storage(context.runtime, test, context.seed);
    storage.load(test.steps.at(0));
    storage.poison_outputs();
    const Kernel kernel = context.runtime.prepare(test.spec, test.plan_sizes());
    kernel.bind(storage.tensors(), storage.batch()).launch();
    context.runtime.synchronize();
    return storage.read_outputs();
}

// A chunk that all lengths lie within changes no bit. (A query before the first key is of another chunk,
// which a full mask shows: no sequence has more queries than keys here.)
std::string one_chunk(const Context& context) {
    const Case wide = causal(attention(DType::bf16, 128, 8, 2));
    const Case cases[] = {
        with_lengths(ragged(attention(DType::fp16, 64, 4, 2)), {200, 40, 1}, {200, 333, 270}),
        with_mixed_lengths(paged(wide)), with_lengths(paged(wide), {1, 1, 1}, {5000, 333, 4096})};
    for (Case test : cases) {
        test.spec.lse = true;
        const auto without = outputs_of(context, test);
        for (const std::int64_t chunk : {5000, 8192, 1 << 29}) {
            const auto with = outputs_of(context, chunked(test, chunk));
            if (with.o != without.o || with.lse != without.lse)
                return fmt::format("{}: the bits differ with a chunk of {}", test.describe(), chunk);
        }
    }
    return {};
}

double seconds_of(const Context& context, const Case& test) {
    check::Storage storage(context.runtime, test, context.seed);
    storage.load(test.steps.at(0));
    const Kernel kernel = context.runtime.prepare(test.spec, test.plan_sizes());
    const Call call = kernel.bind(storage.tensors(), storage.batch());
    const auto launch = [&](int times) {
        const auto begin = std::chrono::steady_clock::now();
        for (int i = 0; i < times; ++i) call.launch();
        context.runtime.synchronize();
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    };
    launch(3);
    double least = launch(10);
    for (int i = 0; i < 4; ++i) least = std::min(least, launch(10));
    return least;
}

// Masking alone would take as long as no chunks do; skipping takes an eighth of the keys, and of the time at
// least half has to go.
std::string hidden_blocks_are_skipped(const Context& context) {
    Case test = with_lengths(dense(causal(attention(DType::bf16, 128, 8, 2))), {16384});
    const double all = seconds_of(context, test);
    test.spec.attention_chunk = 2048;
    const double chunks = seconds_of(context, test);
    if (chunks < all / 2) return {};
    return fmt::format("{:.0f} us with chunks of 2048, {:.0f} us without", chunks * 1e5, all * 1e5);
}

}  // namespace

void add_chunks(Catalogue& catalogue) {
    add_lengths_of_chunks(catalogue);
    add_decodes(catalogue);
    add_scores_of_chunks(catalogue);
    add_kernels_of_chunks(catalogue);
    add(catalogue, "chunk", "one chunk has the bits of none", one_chunk);
    add(catalogue, "chunk", "hidden blocks are skipped, by time", hidden_blocks_are_skipped);
}

}  // namespace attnsmith::gpu_tests
