// Long KV for few queries, where KV is split over the GPU and merged; and extreme numbers.
#include <fmt/format.h>

#include <algorithm>

#include "catalogue.hpp"

namespace attnsmith::gpu_tests {
namespace {

using check::Values;

Case decode_one(Case test, std::int64_t kv_len, std::int64_t q_len = 1) {
    test.spec.lse = true;
    test.sizes = PlanSizes{1, q_len, kv_len};
    return with_lengths(std::move(test), {q_len}, {kv_len});
}

void add_split_lengths(Catalogue& catalogue) {
    for (const std::int64_t n :
         {1, 2, 63, 64, 65, 127, 129, 255, 257, 1000, 4095, 4097, 10007, 32768, 50021, 100003}) {
        const Case base = attention(n % 2 ? DType::bf16 : DType::fp16, 128, 16, 2);
        add(catalogue, "split", fmt::format("paged {}", n), decode_one(paged(causal(base)), n));
        add(catalogue, "split", fmt::format("ragged {}", n), decode_one(ragged(base), n));
    }
    for (const std::int64_t n : {777, 8191, 40001})
        add(catalogue, "split", fmt::format("dense {}", n),
            decode_one(dense(attention(DType::fp16, 64, 8, 1)), n));
}

void add_split_features(Catalogue& catalogue) {
    for (const std::int64_t n : {1500, 12345}) {
        const Case base = paged(causal(attention(DType::bf16, 64, 8, 2)));
        Case sink = decode_one(base, n);
        sink.spec.sink = true;
        add(catalogue, "split", fmt::format("sink {}", n), sink);
        Case window = decode_one(base, n);
        window.spec.window_left = n / 2;
        add(catalogue, "split", fmt::format("window {}", n), window);
        window.spec.window_left = 127;
        window.spec.sink = true;
        add(catalogue, "split", fmt::format("small window and sink {}", n), window);
        Case softcap = decode_one(base, n);
        softcap.spec.softcap = 10.0;
        softcap.values = Values::peaked;
        add(catalogue, "split", fmt::format("softcap {}", n), softcap);
        Case alibi = decode_one(base, n);
        alibi.spec.alibi = true;
        add(catalogue, "split", fmt::format("alibi {}", n), alibi);
        add(catalogue, "split", fmt::format("speculative {}", n), decode_one(base, n, 5));
        add(catalogue, "split", fmt::format("chunk of 100 {}", n), decode_one(base, n, 100));
    }
    for (const auto& [qk, vo] :
         {std::pair<std::int64_t, std::int64_t>{192, 128}, {256, 256}, {96, 96}, {40, 72}})
        add(catalogue, "split", fmt::format("dims {}/{}", qk, vo),
            decode_one(paged(attention(DType::fp16, qk, vo, 8, 2)), 7001));
}

void add_split_mismatch(Catalogue& catalogue) {
    const Case base = paged(causal(attention(DType::bf16, 128, 8, 2)));
    Case planned_long = with_lengths(base, {1, 1, 1}, {100, 1, 40});
    planned_long.sizes = PlanSizes{1, 1, 100000};
    add(catalogue, "split", "planned for 100000, run with 100", planned_long);
    Case planned_short = with_lengths(base, {1, 1, 1}, {20000, 1, 4000});
    planned_short.sizes = PlanSizes{1, 1, 64};
    add(catalogue, "split", "planned for 64, run with 20000", planned_short);
    Case uneven = with_lengths(base, {1, 1, 1, 1}, {30000, 0, 5, 1025});
    uneven.spec.lse = uneven.spec.sink = true;
    uneven.sizes = PlanSizes{4, 1, 30000};
    add(catalogue, "split", "one long sequence among short ones", uneven);
    Case many_queries =
        with_lengths(ragged(causal(attention(DType::fp16, 64, 2, 1))), {300, 1, 20}, {9000, 9000, 20});
    many_queries.sizes = PlanSizes{3, 16, 9000};
    many_queries.spec.lse = true;
    add(catalogue, "split", "planned for 16 queries, run with 300", many_queries);
    Case unbounded = with_lengths(base, {1, 1}, {5000, 33});
    unbounded.give_bounds = false;
    unbounded.sizes = PlanSizes{2, 1, 5000};
    add(catalogue, "split", "no bounds", unbounded);
    Case own = with_lengths(base, {1, 1}, {5000, 33});
    own.call_owns_workspace = true;
    own.sizes = PlanSizes{2, 1, 5000};
    add(catalogue, "split", "the call's own workspace", own);
}

struct NamedValues {
    Values values;
    const char* name;
    bool exact;      // needs check's exact scale
    bool bf16_only;  // the inputs are past fp16's largest number
};

constexpr NamedValues kValues[] = {
    {Values::peaked, "peaked", false, false},
    {Values::equal_logits, "equal logits", false, false},
    {Values::zero_queries, "zero queries", false, false},
    {Values::large_v, "large v", false, false},
    {Values::offset_1e4, "logits near 1e4", true, false},
    {Values::offset_minus_1e4, "logits near -1e4", true, false},
    {Values::offset_3e4, "logits near 3e4", true, false},
    {Values::offset_1e5, "logits near 1.3e5", true, false},
    {Values::offset_1e6, "logits near 1e6", true, false},
    {Values::spread_1e4, "logits to +-1e4", true, false},
    {Values::spread_1e6, "logits to +-1e6", true, false},
    {Values::spread_1e9, "logits to +-1e9", true, false},
    {Values::spread_1e12, "logits to +-1e12", true, true},
    {Values::spread_1e30, "logits to +-1e30", true, true},
};

Case with_values(Case test, const NamedValues& values) {
    test.values = values.values;
    test.spec.lse = true;
    if (values.exact) test.spec.scale = 0.125;
    test.plain_overflows = values.exact && test.spec.dtype == DType::fp16;  // q k^T is past 65504
    return test;
}

}  // namespace

void add_split(Catalogue& catalogue) {
    add_split_lengths(catalogue);
    add_split_features(catalogue);
    add_split_mismatch(catalogue);
}

void add_extremes(Catalogue& catalogue) {
    for (const NamedValues& values : kValues) {
        for (const DType dtype : {DType::fp16, DType::bf16}) {
            if (values.bf16_only && dtype == DType::fp16) continue;
            const Case base = with_values(attention(dtype, 64, 4, 2), values);
            const std::string name = word(dtype) + " " + values.name;
            // The larger spreads pick one key; what a split could lose there, the smaller ones show.
            const Splitting splitting =
                values.values <= Values::spread_1e4 ? Splitting::alternate : Splitting::never;
            add_over_kernels(catalogue, "extreme", name + " prefill",
                             with_lengths(ragged(causal(base)), {140, 20, 65}, {140, 300, 129}), splitting);
            add_over_kernels(catalogue, "extreme", name + " decode",
                             with_lengths(paged(base), {1, 1, 1, 1}, {500, 64, 1, 129}), splitting);
            Case sink = with_lengths(ragged(base), {140, 20}, {140, 300});
            sink.spec.sink = true;
            add(catalogue, "extreme", name + " sink", sink);
            if (values.values <= Values::spread_1e4)
                add(catalogue, "extreme", name + " split", decode_one(paged(base), 6001));
        }
    }
    Case capped = with_lengths(ragged(causal(attention(DType::bf16, 64, 4, 2))), {140, 20}, {140, 300});
    capped.spec.softcap = 50.0;
    capped.spec.scale = 0.125;
    capped.values = Values::spread_1e30;
    add(catalogue, "extreme", "bf16 logits to +-1e30 under a softcap", capped);
}

}  // namespace attnsmith::gpu_tests
