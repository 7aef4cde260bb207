// What happens to a score: masks, windows, softcap, sinks, ALiBi, the scale.
#include <fmt/format.h>

#include "catalogue.hpp"

namespace attnsmith::gpu_tests {
namespace {

struct Window {
    std::optional<std::int64_t> left, right;
};

std::string window_word(const Window& window) {
    std::string text;
    if (window.left) text += fmt::format(" left {}", *window.left);
    if (window.right) text += fmt::format(" right {}", *window.right);
    return text;
}

Case windowed(Case test, const Window& window) {
    test.spec.window_left = window.left;
    test.spec.window_right = window.right;
    test.spec.lse = true;
    return test;
}

// Same lengths, a cache in front, more queries than keys (rows without a key), and single queries.
Case mixed_lengths(Case test) {
    return with_lengths(std::move(test), {200, 40, 150, 1, 0}, {200, 333, 60, 270, 9});
}

void add_windows(Catalogue& catalogue) {
    const Window windows[] = {{0, {}}, {1, {}}, {15, {}},   {64, {}},  {100, {}},  {127, {}}, {1000, {}},
                              {{}, 0}, {{}, 1}, {{}, 64},   {{}, 100}, {{}, 1000}, {0, 0},    {1, 1},
                              {16, 3}, {3, 65}, {128, 128}, {0, 100},  {100, 0}};
    for (const Window& window : windows) {
        const Case base = attention(DType::f16, 64, 4, 2);
        add(catalogue, "window", "full" + window_word(window), mixed_lengths(windowed(ragged(base), window)));
        if (window.right.value_or(0) > 0)
            continue;  // a causal mask looks at nothing ahead: refused, see group "input"
        add(catalogue, "window", "causal" + window_word(window),
            mixed_lengths(windowed(paged(causal(base)), window)));
    }
    for (const std::int64_t left : {0, 127, 128, 4095}) {
        const Case decode = windowed(paged(causal(attention(DType::bf16, 128, 8, 2))), {left, {}});
        add(catalogue, "window", fmt::format("decode left {}", left),
            with_lengths(decode, {1, 1, 1, 1}, {9000, 128, 129, 4096}));
    }
    // The window moves far past the first tiles of KV, which then are not read at all.
    add(catalogue, "window", "long prefill",
        with_lengths(windowed(dense(causal(attention(DType::bf16, 64, 2, 1))), {100, {}}), {3000}));
}

Case scored(Case test, bool softcap, bool sink, bool alibi) {
    if (softcap) test.spec.softcap = 20.0;
    test.spec.sink = sink;
    test.spec.alibi = alibi;
    test.spec.lse = true;
    test.values = check::Values::peaked;
    return test;
}

std::string score_word(bool softcap, bool sink, bool alibi) {
    return std::string(softcap ? " softcap" : "") + (sink ? " sink" : "") + (alibi ? " alibi" : "");
}

void add_combinations(Catalogue& catalogue) {
    for (int bits = 1; bits < 8; ++bits) {
        const bool softcap = bits & 1, sink = bits & 2, alibi = bits & 4;
        const std::string words = score_word(softcap, sink, alibi);
        const std::string group = bits == 1   ? "softcap"
                                  : bits == 2 ? "sink"
                                  : bits == 4 ? "alibi"
                                              : "combined";
        for (const DType dtype : {DType::f16, DType::bf16}) {
            const Case base = scored(attention(dtype, 128, 6, 2), softcap, sink, alibi);
            const std::string name = word(dtype) + (group == "combined" ? words : "");
            add(catalogue, group, name + " full", mixed_lengths(ragged(base)));
            add(catalogue, group, name + " causal", mixed_lengths(dense(causal(base))));
            add(catalogue, group, name + " decode",
                with_lengths(paged(causal(base)), {1, 1, 1}, {1500, 1, 77}));
            add(catalogue, group, name + " causal window",
                mixed_lengths(windowed(paged(causal(base)), {70, {}})));
        }
    }
}

void add_scales(Catalogue& catalogue) {
    for (const double scale : {1.0, 0.01, 1e-6, 0.125, 0.13522}) {
        Case test = with_lengths(ragged(causal(attention(DType::f16, 64, 4, 2))), {100, 9}, {130, 40});
        test.spec.scale = scale;
        test.spec.lse = true;
        add(catalogue, "scale", fmt::format("{}", scale), test);
    }
}

}  // namespace

void add_masks(Catalogue& catalogue) {
    for (const std::int64_t dim : {64, 96, 128, 256})
        add(catalogue, "causal", fmt::format("mixed lengths, dim {}", dim),
            mixed_lengths(paged(causal(attention(DType::bf16, dim, 4, 1)))));
    add_windows(catalogue);
}

void add_scores(Catalogue& catalogue) {
    add_combinations(catalogue);
    for (const double cap : {0.5, 5.0, 30.0, 50.0, 1000.0}) {
        Case test = with_lengths(ragged(causal(attention(DType::f16, 256, 2, 1))), {120, 8}, {120, 200});
        test.spec.softcap = cap;
        test.values = check::Values::peaked;
        add(catalogue, "softcap", fmt::format("cap {}", cap), test);
    }
    add_scales(catalogue);
}

}  // namespace attnsmith::gpu_tests
