// O in fp32, and precision "high": each kernel by itself, and what 1e-5 has to survive. Cases of other groups
// have a twin with precision "high" besides (catalogue.cpp).
#include <fmt/format.h>

#include <tuple>

#include "catalogue.hpp"

namespace attnsmith::gpu_tests {
namespace {

using check::Layout;
using check::Values;

// Continued from a cache, more queries than keys, no keys, no queries, and one query.
Case mixed(Case test) {
    test.spec.lse = true;
    return with_lengths(std::move(test), {70, 150, 33, 40, 0, 1, 129}, {300, 60, 33, 0, 40, 270, 17});
}

struct Dims {
    std::int64_t qk, vo;
};

std::string word(const Dims& dims) {
    return dims.qk == dims.vo ? fmt::format("{}", dims.qk) : fmt::format("{}/{}", dims.qk, dims.vo);
}

Case unrounded(Case test) {
    test.spec.o_dtype = DType::fp32;
    return test;
}

Case precise(Case test) {
    test.spec.precision = Precision::high;
    return test;
}

constexpr Dims kDims[] = {{8, 8},   {16, 16},   {24, 40},   {40, 24},   {64, 64},   {72, 72},   {80, 80},
                          {96, 96}, {120, 120}, {128, 128}, {192, 128}, {200, 200}, {248, 248}, {256, 256}};

// The kernels of one spec, with KV split and not. Three heads to a KV head leave tiles partly empty.
void add_kernels_of(Catalogue& catalogue, const std::string& group, const Case& test, const Dims& dims,
                    int n) {
    const std::int64_t heads = n % 3 == 0 ? 2 : n % 3 == 1 ? 6 : 16;
    Case base = attention(n % 2 ? DType::fp16 : DType::bf16, dims.qk, dims.vo, heads, 2);
    base.spec.o_dtype = test.spec.o_dtype;
    base.spec.precision = test.spec.precision;
    base.spec.sink = n % 2 == 0;
    base.spec.alibi = n % 5 == 1;
    if (n % 5 == 2) base.spec.softcap = 20.0;
    if (n % 4 == 3) base.spec.window_left = 45;
    add_over_kernels(catalogue, group, "ragged " + word(dims), mixed(ragged(causal(base))), Splitting::both);
    add_over_kernels(catalogue, group, "paged " + word(dims),
                     mixed(paged(base, n % 3 ? 16 : 7, n % 2 ? PageOrder::HND : PageOrder::NHD)),
                     Splitting::both);
}

// Rows of O at each class of addresses, and with gaps between them.
void add_places(Catalogue& catalogue, const std::string& group, const Case& test) {
    for (const int alignment : {16, 8, 4, 2}) {
        const std::int64_t unit = alignment / 2;
        Case base = attention(DType::bf16, 72, 4, 2);
        base.spec.o_dtype = test.spec.o_dtype;
        base.spec.precision = test.spec.precision;
        base.spec.alignment = alignment;
        base.layout = {.pad = unit, .o_pad = unit, .lse_pad = 1, .base = unit};
        const std::string name = fmt::format("{} bytes", alignment);
        add(catalogue, group, name + " dense", mixed(dense(causal(base))));
        add(catalogue, group, name + " paged", mixed(paged(base)));
        add(catalogue, group, name + " decode",
            with_lengths(paged(causal(base)), {1, 1, 1, 1}, {3000, 1, 0, 257}));
    }
    Case transposed = attention(DType::fp16, 128, 4, 2);
    transposed.spec.o_dtype = test.spec.o_dtype;
    transposed.spec.precision = test.spec.precision;
    transposed.layout = {.o_order = check::MemoryOrder::bhsd, .lse_heads_first = true};
    add(catalogue, group, "[b, h, s, d]", mixed(dense(causal(transposed))));
}

// Long sums, whose rounding must not add up: of equal values and weights, of one sign, and of many keys.
void add_long_sums(Catalogue& catalogue) {
    for (const Values values : {Values::normal, Values::peaked, Values::equal_logits}) {
        for (const std::int64_t keys : {4096, 65536}) {
            for (const std::int64_t queries : {1, 5, 70}) {
                Case test = precise(unrounded(paged(causal(attention(DType::bf16, 128, 4, 2)))));
                test.values = values;
                test.spec.lse = true;
                test.sizes = PlanSizes{1, queries, keys};
                add(catalogue, "high",
                    fmt::format("{} queries, {} keys, values {}", queries, keys, static_cast<int>(values)),
                    with_lengths(test, {queries}, {keys}));
                test.sizes = PlanSizes{200, queries, keys};  // not split
                add(catalogue, "high",
                    fmt::format("{} queries, {} keys, values {}, not split", queries, keys,
                                static_cast<int>(values)),
                    with_lengths(test, {queries}, {keys}));
            }
        }
    }
}

// A soft cap multiplies tanh's error.
void add_soft_caps(Catalogue& catalogue) {
    for (const double softcap : {1.0, 30.0, 50.0}) {
        Case test = precise(unrounded(attention(DType::fp16, 64, 4, 2)));
        test.spec.softcap = softcap;
        test.values = Values::peaked;
        add(catalogue, "high", fmt::format("softcap {}", softcap), mixed(ragged(causal(test))));
        add(catalogue, "high", fmt::format("softcap {} decode", softcap),
            with_lengths(paged(test), {1, 1, 1}, {1000, 3, 77}));
    }
}

}  // namespace

void add_precision(Catalogue& catalogue) {
    const Case fp32 = unrounded({});
    const Case high = precise({});
    int n = 0;
    for (const Dims& dims : kDims) {
        add_kernels_of(catalogue, "o_dtype", fp32, dims, n);
        add_kernels_of(catalogue, "high", n % 3 ? unrounded(high) : high, dims, n);
        ++n;
    }
    for (const auto& [group, base] : {std::tuple{"o_dtype", fp32}, std::tuple{"high", unrounded(high)}})
        add_places(catalogue, group, base);
    add_long_sums(catalogue);
    add_soft_caps(catalogue);
}

}  // namespace attnsmith::gpu_tests
