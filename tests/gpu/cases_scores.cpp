// What happens to a score: masks, windows, softcap, sinks, ALiBi, the scale.
#include <fmt/format.h>

#include <limits>
#include <tuple>

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
        const Case base = attention(DType::fp16, 64, 4, 2);
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
        for (const DType dtype : {DType::fp16, DType::bf16}) {
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

// Sinks that are all of the denominator or nothing of it, and slopes that favour far keys.
void add_unusual_vectors(Catalogue& catalogue) {
    for (const DType dtype : {DType::fp16, DType::bf16}) {
        Case sink = attention(dtype, 64, 8, 2);
        sink.spec.sink = sink.spec.lse = true;
        sink.sinks = {1e4f, -1e4f, -std::numeric_limits<float>::infinity(), 0.0f, 80.0f};
        Case slopes = attention(dtype, 64, 8, 2);
        slopes.spec.alibi = slopes.spec.lse = true;
        slopes.alibi_slopes = {-0.5f, 0.0f, 0.25f, -0.03f, 1.0f};
        for (const auto& [group, name, base] : {std::tuple{"sink", " +-1e4, -inf", sink},
                                                std::tuple{"alibi", " slopes below 0 and 0", slopes}}) {
            add(catalogue, group, word(dtype) + name + " causal", mixed_lengths(ragged(causal(base))));
            add(catalogue, group, word(dtype) + name + " full", mixed_lengths(paged(base)));
            Case split = with_lengths(paged(base), {1}, {700});
            split.sizes = PlanSizes{1, 1, 8000};
            add(catalogue, group, word(dtype) + name + " split", split);
            add_over_kernels(catalogue, group, word(dtype) + name + " decode",
                             with_lengths(paged(base), {1, 1, 1, 2}, {300, 0, 1, 170}), Splitting::alternate);
        }
    }
}

// A scale at the end of fp32's range is refused, or right.
void add_far_scales(Catalogue& catalogue) {
    for (const double scale : {3e38, 3.4028e38, 1.2e-38}) {
        Case test = with_lengths(ragged(attention(DType::bf16, 64, 4, 2)), {70, 9}, {130, 40});
        test.spec.scale = scale;
        test.spec.lse = true;
        if (scale > 1) test.values = check::Values::zero_queries;
        const std::string name = fmt::format("{} of queries that are {}", scale, scale > 1 ? "0" : "not");
        add(catalogue, "scale", name, test);
        auto run = std::move(catalogue.back().run);
        catalogue.back().run = [spec = test.spec, name, run = std::move(run)](const Context& context) {
            try {
                (void)context.runtime.prepare(spec, {});
            } catch (const InvalidRequest& error) {
                CaseResult refused;
                refused.group = "scale";
                refused.name = name;
                if (error.field() == "scale") return refused;
            }
            return run(context);
        };
    }
}

void add_scales(Catalogue& catalogue) {
    for (const double scale : {1.0, 0.01, 1e-6, 0.125, 0.13522}) {
        Case test = with_lengths(ragged(causal(attention(DType::fp16, 64, 4, 2))), {100, 9}, {130, 40});
        test.spec.scale = scale;
        test.spec.lse = true;
        add(catalogue, "scale", fmt::format("{}", scale), test);
    }
}

}  // namespace

const std::vector<ScoreChange>& score_changes() {
    static const std::vector<ScoreChange> kChanges{
        {"full", [](AttentionSpec&) {}},
        {"window 37", [](AttentionSpec& spec) { spec.mask = Mask::causal, spec.window_left = 37; }},
        {"window 20, 5", [](AttentionSpec& spec) { spec.window_left = 20, spec.window_right = 5; }},
        {"chunk 100", [](AttentionSpec& spec) { spec.mask = Mask::causal, spec.attention_chunk = 100; }},
        {"softcap", [](AttentionSpec& spec) { spec.mask = Mask::causal, spec.softcap = 20.0; }},
        {"alibi", [](AttentionSpec& spec) { spec.alibi = true; }},
        {"sink", [](AttentionSpec& spec) { spec.mask = Mask::causal, spec.sink = true; }},
        {"all at once",
         [](AttentionSpec& spec) {
             spec.mask = Mask::causal, spec.window_left = 90, spec.softcap = 20.0;
             spec.alibi = spec.sink = true;
         }},
        {"to fp32", [](AttentionSpec& spec) { spec.mask = Mask::causal, spec.o_dtype = DType::fp32; }}};
    return kChanges;
}

void add_masks(Catalogue& catalogue) {
    for (const std::int64_t dim : {64, 96, 128, 256})
        add(catalogue, "causal", fmt::format("mixed lengths, dim {}", dim),
            mixed_lengths(paged(causal(attention(DType::bf16, dim, 4, 1)))));
    add_windows(catalogue);
}

void add_scores(Catalogue& catalogue) {
    add_combinations(catalogue);
    for (const double cap : {0.5, 5.0, 30.0, 50.0, 1000.0}) {
        Case test = with_lengths(ragged(causal(attention(DType::fp16, 256, 2, 1))), {120, 8}, {120, 200});
        test.spec.softcap = cap;
        test.values = check::Values::peaked;
        add(catalogue, "softcap", fmt::format("cap {}", cap), test);
    }
    // A cap so large that it should change nothing: tanh of very little, times very much.
    for (const double cap : {1e4, 1e5, 1e6}) {
        for (const DType dtype : {DType::fp16, DType::bf16}) {
            Case test = causal(attention(dtype, 64, 4, 2));
            test.spec.softcap = cap;
            test.spec.lse = true;
            test.values = check::Values::peaked;
            const std::string name = fmt::format("{} cap {:.0e}", word(dtype), cap);
            add(catalogue, "softcap", name, with_lengths(ragged(test), {120, 8}, {120, 200}));
            add(catalogue, "softcap", name + " decode", with_lengths(paged(test), {1, 1, 1}, {700, 1, 64}));
        }
    }
    add_unusual_vectors(catalogue);
    add_scales(catalogue);
    add_far_scales(catalogue);
}

}  // namespace attnsmith::gpu_tests
