// Keys and values of 8 bits whose tokens have scales of their own: one for each head of a token, or one for
// each 128 columns of it, in tensors of their own or behind the columns in the rows of the cache. What is
// right is fp64 on the numbers that are stored, within the bounds of keys and values of 16 bits.
#include <fmt/format.h>

#include <limits>

#include "catalogue.hpp"
#include "check/kernel_choice.hpp"

namespace attnsmith::gpu_tests {
namespace {

using check::MemoryOrder;
using check::PageList;
using check::Planted;
using check::SpoiledScale;
using check::Values;
using Numbers = std::vector<std::int64_t>;

constexpr const char* kGroup = "token_scales";

struct Types {
    DType query, stored;
};

constexpr Types kTypes[] = {{DType::bf16, DType::e4m3},
                            {DType::fp16, DType::e4m3},
                            {DType::bf16, DType::e5m2},
                            {DType::fp16, DType::e5m2}};

struct Dims {
    std::int64_t qk, vo;
};

constexpr Dims kDims[] = {{64, 64}, {96, 96}, {128, 128}, {192, 128}, {192, 192}, {256, 256}, {512, 512}};

std::string word(const Types& types) {
    return fmt::format("{} {}", gpu_tests::word(types.query), to_string(types.stored));
}

std::string word(const Dims& dims) {
    return dims.qk == dims.vo ? fmt::format("{}", dims.qk) : fmt::format("{}/{}", dims.qk, dims.vo);
}

Case token_scales(const Types& types, const Dims& dims, std::int64_t q_heads, std::int64_t kv_heads) {
    Case test = attention(types.query, dims.qk, dims.vo, q_heads, kv_heads);
    test.spec.kv_dtype = types.stored;
    test.spec.kv_scale = KvScale::token_head;
    test.spec.lse = true;
    return test;
}

// What cases have that show something else than dtypes and head dims: the n-th of them.
Case token_scales(int n, std::int64_t q_heads = 8, std::int64_t kv_heads = 2) {
    return token_scales(kTypes[n % 4], {128, 128}, q_heads, kv_heads);
}

// In blocks of 128 columns, which such heads are.
Case in_blocks(Case test) {
    test.spec.kv_scale = KvScale::block128;
    return test;
}

// Behind the columns of each head, in rows that are multiples of so many bytes.
Case with_inline_scales(Case test, int alignment) {
    test.layout.inline_scales = true;
    test.spec.alignment = alignment;
    return test;
}

// Storage by turns.
Case stored(Case test, int n) {
    switch (n % 6) {
        case 0:
            return paged(std::move(test), 16);
        case 1:
            return dense(std::move(test));
        case 2:
            return paged(std::move(test), 64, PageOrder::HND);
        case 3:
            return ragged(std::move(test));
        case 4:
            return paged(std::move(test), 1);
        default:
            return paged(std::move(test), 64);
    }
}

Case decode(Case test) { return with_lengths(std::move(test), {1, 1, 1, 1, 1}, {1, 700, 0, 255, 1025}); }
Case few_queries(Case test) { return with_lengths(std::move(test), {2, 5, 16, 0, 9}, {2, 700, 300, 17, 64}); }
Case prefill(Case test) { return with_lengths(std::move(test), {70, 1, 0, 33, 129}, {300, 64, 17, 33, 100}); }

void add_types_and_dims(Catalogue& catalogue) {
    int n = 0;
    for (const Dims& dims : kDims) {
        for (const Types& types : kTypes) {
            const std::int64_t kv_heads = n % 2 ? 3 : 2, group = n % 4 + 1;
            const Case base = causal(token_scales(types, dims, group * kv_heads, kv_heads));
            const std::string name = fmt::format("{} {}", word(types), word(dims));
            add(catalogue, kGroup, name + " decode", decode(stored(base, n)));
            add(catalogue, kGroup, name + " prefill", prefill(stored(base, n + 2)));
            if (n % 2 == 0) add(catalogue, kGroup, name + " few queries", few_queries(stored(base, n + 1)));
            ++n;
        }
    }
}

void add_blocks(Catalogue& catalogue) {
    int n = 0;
    for (const Dims& dims : {Dims{64, 64}, Dims{96, 64}, Dims{128, 128}}) {
        const Case base = causal(in_blocks(token_scales(kTypes[n % 4], dims, 8, 2)));
        const std::string name = fmt::format("blocks, {}", word(dims));
        add(catalogue, kGroup, name + " decode", decode(stored(base, n)));
        add(catalogue, kGroup, name + " prefill", prefill(stored(base, n + 1)));
        add(catalogue, kGroup, name + " behind the columns",
            few_queries(paged(with_inline_scales(base, 4), 16)));
        ++n;
    }
}

void add_groups(Catalogue& catalogue) {
    int n = 0;
    for (const std::int64_t group : {1, 4, 8, 71}) {
        for (const std::int64_t page : {1, 16, 64}) {
            const Dims dims = group == 71 ? Dims{64, 64} : kDims[2 * (n % 2) + n % 3];
            Case test = causal(token_scales(kTypes[n % 4], dims, 2 * group, 2));
            test = paged(std::move(test), page, n % 2 ? PageOrder::HND : PageOrder::NHD);
            test.page_list = n % 3 ? PageList::padded : PageList::compressed;
            test.spec.index_dtype = n % 5 < 2 ? DType::int64 : DType::int32;
            const std::string name = fmt::format("{} heads to one, pages of {}", group, page);
            add(catalogue, kGroup, name + " decode", decode(test));
            if (page != 1 || group == 71)
                add(catalogue, kGroup, name + " prefill", with_lengths(test, {70, 1, 33}, {300, 64, 33}));
            ++n;
        }
    }
}

// Strides of their own, other than those of keys and values, and places behind the columns.
void add_places(Catalogue& catalogue) {
    int n = 0;
    int turn = 0;
    const auto with = [&](const std::string& name, const Case& test) {
        if (turn++ % 2)
            add(catalogue, kGroup, name + " prefill", prefill(test));
        else
            add(catalogue, kGroup, name + " decode", decode(test));
    };
    for (int storage = 0; storage < 4; ++storage) {
        Case padded = stored(causal(token_scales(n)), storage);
        padded.layout.scale_pad = 3;
        padded.layout.pad = 8;
        padded.layout.scales_transposed = storage % 2 == 0;
        with(fmt::format("scales with strides of their own {}", storage), padded);
        for (const int alignment : {16, 4}) {
            Case behind = with_inline_scales(causal(token_scales(n++)), alignment);
            behind.layout.kv_as_bytes = true;
            with(fmt::format("scales behind the columns {}, aligned to {} bytes", storage, alignment),
                 stored(behind, storage));
        }
    }
    Case transposed = dense(causal(token_scales(n++)));
    transposed.layout.order = MemoryOrder::bhsd;
    transposed.layout.scales_transposed = true;
    with("[b, h, s, d] with scales of [b, s, h]", transposed);
    Case one = with_inline_scales(paged(causal(token_scales(n++)), 16), 4);
    one.layout.one_kv_tensor = true;
    one.layout.pad = 2;
    with("keys, values and scales in one tensor", one);
    Case rows = with_inline_scales(causal(token_scales(kTypes[n % 4], {192, 128}, 8, 2)), 8);
    rows = paged(std::move(rows), 64, PageOrder::HND);
    rows.spare_table_rows = 5;
    rows.layout.pad = 4;
    with("192/128 with scales behind the columns by table rows", rows);
    for (const std::int64_t dim : {256, 512})
        with(fmt::format("{} with scales behind the columns", dim),
             paged(with_inline_scales(causal(token_scales(kTypes[n++ % 4], {dim, dim}, 8, 2)), 4), 16));
}

void add_masks_and_scores(Catalogue& catalogue) {
    int n = 0;
    const auto with = [&](const std::string& name, const std::function<void(AttentionSpec&)>& change) {
        for (const Dims& dims : {Dims{64, 64}, Dims{128, 128}}) {
            Case test = token_scales(kTypes[n % 4], dims, 6, 2);
            change(test.spec);
            if (test.spec.softcap || test.spec.alibi) test.values = Values::peaked;
            add(catalogue, kGroup, fmt::format("{} {} prefill", word(dims), name), prefill(stored(test, n)));
            add(catalogue, kGroup, fmt::format("{} {} decode", word(dims), name),
                decode(stored(test, n + 3)));
            ++n;
        }
    };
    for (const ScoreChange& one : score_changes()) with(one.name, one.change);
}

// Every kernel that planning could choose on any SM, whole and divided.
void add_over_dims(Catalogue& catalogue) {
    int n = 0;
    for (const Dims& dims : {Dims{64, 64}, Dims{128, 128}, Dims{192, 128}, Dims{256, 256}, Dims{512, 512}}) {
        Case base = token_scales({n % 2 ? DType::fp16 : DType::bf16, n % 3 == 2 ? DType::e5m2 : DType::e4m3},
                                 dims, n % 2 ? 6 : 16, 2);
        base.spec.sink = n % 2 == 0;
        if (n % 2 == 1) base.spec.window_left = 145;
        base = paged(causal(std::move(base)), n % 2 ? 16 : 64);
        base.layout.scale_pad = n % 2;
        add_over_kernels(catalogue, kGroup, "any kernel, " + word(dims),
                         with_lengths(base, {70, 150, 33, 40, 0, 1, 129}, {700, 260, 33, 0, 40, 1500, 17}),
                         Splitting::alternate);
        ++n;
    }
}

// Keys that are divided over CTAs, and whose parts are merged.
void add_long_keys(Catalogue& catalogue) {
    int n = 0;
    for (const Dims& dims : {Dims{64, 64}, Dims{128, 128}, Dims{256, 256}, Dims{512, 512}}) {
        for (const Consistency consistency : {Consistency::standard, Consistency::bitwise}) {
            Case test = paged(causal(token_scales(kTypes[n % 4], dims, 8, 2)), n % 2 ? 16 : 64);
            test.spec.consistency = consistency;
            if (n % 3 == 1) test = with_inline_scales(std::move(test), 4);
            add(catalogue, kGroup,
                fmt::format("long keys, {}{}", word(dims),
                            consistency == Consistency::bitwise ? " bitwise" : ""),
                with_lengths(test, {1, 0, 3, 1, 1}, {9000, 33, 4097, 1, 700}));
            ++n;
        }
    }
    add(catalogue, kGroup, "one decode of 30001 keys",
        with_lengths(paged(causal(token_scales(0)), 16), {1}, {30001}));
    add(catalogue, kGroup, "a chunk beside decodes",
        with_lengths(paged(causal(token_scales(1)), 16), {1, 1, 300, 1, 0, 33}, {5000, 1, 3000, 0, 70, 33}));
    Case changing = with_lengths(paged(causal(token_scales(2)), 16), {64, 1, 100, 17}, {64, 300, 100, 40});
    changing = with_lengths(changing, {1, 1, 1, 1}, {1, 300, 2, 299});
    changing = with_lengths(changing, {0, 0, 0, 0}, {0, 0, 0, 0});
    add(catalogue, kGroup, "one call, many lengths",
        with_lengths(changing, {3, 70, 65, 1}, {128, 64, 65, 7}));
}

// Scales of neighbours that are far apart, and numbers at the ends of what 8 bits can tell apart.
void add_values(Catalogue& catalogue) {
    int n = 0;
    for (const Types& types : kTypes) {
        const auto with = [&](const std::string& name, const std::function<void(Case&)>& change) {
            Case test = causal(token_scales(types, {128, 128}, 4, 2));
            change(test);
            const std::string what = fmt::format("{}: {}", word(types), name);
            if (n++ % 2)
                add(catalogue, kGroup, what + " prefill", prefill(ragged(test)));
            else
                add(catalogue, kGroup, what + " decode", decode(paged(test)));
        };
        with("scales 2^20 apart", [](Case& test) {
            test.k_scales = {1, 0x1p-20F}, test.v_scales = {0x1p-20F, 1, 0.1F};
        });
        with("scales 2^20 apart about 1", [](Case& test) {
            test.k_scales = {0x1p-10F, 0x1p10F, 0.3F}, test.v_scales = {0x1p10F, 0x1p-10F};
        });
        with("large values", [](Case& test) { test.values = Values::large_v, test.v_scales = {200, 300}; });
        with("tiny scales", [](Case& test) { test.k_scales = test.v_scales = {1e-25F, 1e-30F}; });
        with("peaked", [](Case& test) { test.values = Values::peaked; });
    }
}

void add_planted(Catalogue& catalogue) {
    constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
    using Where = Planted::Where;
    int n = 0;
    for (const Types& types : kTypes) {
        const Case base = causal(token_scales(types, {128, 128}, 4, 2));
        const auto plant = [&](const std::string& what, const Case& test, std::vector<Planted> numbers) {
            Case with = with_lengths(test, {40, 3, 1, 150}, {300, 200, 150, 60});
            with.steps.back().planted = std::move(numbers);
            add(catalogue, kGroup, fmt::format("{}: {}", word(types), what), with);
        };
        plant("NaN in a key and in a value", paged(base),
              {{Where::k, 0, 280, 0, 3, kNaN}, {Where::v, 1, 197, -1, 0, kNaN}});
        // Nor are the scales of tokens that were given back numbers.
        Case evicted = base;
        evicted.spec.window_left = 30;
        evicted = stored(evicted, n % 2 ? 0 : 4);
        evicted = with_lengths(evicted, {1, 3, 40}, {700, 300, 300});
        evicted = with_lengths(evicted, {1, 3, 40}, {700, 300, 300});
        evicted.steps.back().same_data = evicted.steps.back().evicted = true;
        add(catalogue, kGroup, word(types) + ": keys left of the window", evicted);
        ++n;
    }
}

// Lengths and page ids beyond their bounds.
void add_hostile(Catalogue& catalogue) {
    int n = 0;
    for (auto [name, test] : hostile_cases()) {
        // Its pages are another sequence's, or nobody's, whose scales are read and may be told of.
        if (name == "page_indptr that falls") continue;
        if (n++ % 3 != 0) continue;
        test.spec.kv_dtype = n % 2 ? DType::e5m2 : DType::e4m3;
        test.spec.kv_scale = KvScale::token_head;
        add(catalogue, kGroup, "clamp " + name, test);
    }
}

struct BadScale {
    std::string name;
    float value;
};

const BadScale kBadScales[] = {{"NaN", std::numeric_limits<float>::quiet_NaN()},
                               {"infinite", std::numeric_limits<float>::infinity()},
                               {"0", 0.0F},
                               {"negative", -0.5F}};

// The same data twice, with scales spoiled at the second time, and others with good scales behind it.
Case spoiled(const Case& base, const Numbers& queries, const Numbers& keys, std::vector<SpoiledScale> scales,
             bool is_seen = true) {
    Case test = with_lengths(with_lengths(with_lengths(base, queries, keys), queries, keys), queries, keys);
    Step& step = test.steps[1];
    step.same_data = true;
    step.status.bits |= is_seen ? kStatusScaleNotPositive : 0;
    step.spoiled_scales = std::move(scales);
    return test;
}

void add_bad_scales(Catalogue& catalogue) {
    int n = 0, turn = 0;
    for (const BadScale& bad : kBadScales) {
        for (const bool of_key : {true, false}) {
            const auto with = [&](const std::string& what, const Case& test, const Numbers& queries,
                                  const Numbers& keys, std::vector<SpoiledScale> scales) {
                for (SpoiledScale& scale : scales) scale.of_key = of_key, scale.value = bad.value;
                add(catalogue, kGroup,
                    fmt::format("a {} scale of {}, {}", bad.name, of_key ? "keys" : "values", what),
                    spoiled(test, queries, keys, std::move(scales)));
            };
            const auto base = [&](const Dims& dims) {
                return causal(token_scales(kTypes[n++ % 4], dims, 9, 3));
            };
            // The last queries alone see the one, all of a sequence the other.
            with("prefill", ragged(base({128, 128})), {70, 1, 0, 33}, {300, 64, 17, 33},
                 {{.sequence = 0, .token = 283, .head = 1}, {.sequence = 3, .token = 0, .head = 2}});
            with("decode", paged(base({64, 64})), {1, 1, 1}, {1, 700, 255},
                 {{.sequence = 1, .token = 699, .head = 0}});
            if (turn % 3 == 0) {
                Case bitwise = paged(base({128, 128}));
                bitwise.spec.consistency = Consistency::bitwise;
                with("decode of long keys, bitwise", bitwise, {1, 1}, {9000, 40},
                     {{.sequence = 0, .token = 4444}});
            }
            if (turn++ % 3 == 1)
                with("512", dense(base({512, 512})), {40, 1, 3}, {300, 64, 17},
                     {{.sequence = 0, .token = 299, .head = 2}});
        }
    }
    // Nobody sees these.
    Case windowed = causal(token_scales(0, 8, 2));
    windowed.spec.window_left = 30;
    add(catalogue, kGroup, "bad scales left of the window",
        spoiled(paged(windowed, 16), {1, 3}, {700, 300},
                {{.sequence = 0, .token = 668, .value = 0}, {.of_key = false, .sequence = 1, .value = -1}},
                false));
    // Some rows of a tile see them, and others do not.
    add(catalogue, kGroup, "bad scales that few rows of a tile see",
        spoiled(paged(windowed, 16), {200, 64}, {200, 200},
                {{.sequence = 0, .token = 100, .head = 1, .value = 0},
                 {.of_key = false, .sequence = 1, .token = 190, .head = 0, .value = 0}}));
    Case whole = spoiled(dense(token_scales(1)), {20, 3}, {300, 64}, {{.sequence = 1, .token = 63}});
    add(catalogue, kGroup, "a bad scale that all rows see", whole);
    add(catalogue, kGroup, "a bad scale behind the columns",
        spoiled(paged(with_inline_scales(causal(token_scales(2)), 4), 16), {20, 1}, {300, 64},
                {{.sequence = 0, .token = 290, .head = 1}}));
}

// A Call serves layers that have scales of their own.
void add_scales_at_launch(Catalogue& catalogue) {
    int n = 0;
    for (const Dims& dims : {Dims{64, 64}, Dims{128, 128}, Dims{512, 512}}) {
        Case test = causal(token_scales(kTypes[n % 4], dims, 8, 2));
        test.scales_at_launch = true;
        test.layout.scale_pad = n;
        add(catalogue, kGroup, fmt::format("scales at launch, {} prefill", word(dims)),
            prefill(ragged(test)));
        if (n++ % 2) test = with_inline_scales(std::move(test), 4);
        add(catalogue, kGroup, fmt::format("scales at launch, {} decode", word(dims)), decode(paged(test)));
    }
}

// Op mla, whose values are columns of the keys and have their scale.
Case latent(int n, KvScale scale, std::int64_t q_heads, std::int64_t ckv = 512, std::int64_t kpe = 64) {
    Case test;
    test.spec.op = Op::mla;
    test.spec.dtype = kTypes[n % 4].query;
    test.spec.kv_dtype = kTypes[n % 4].stored;
    test.spec.kv_scale = scale;
    test.spec.head_dim_ckv = ckv;
    test.spec.head_dim_kpe = kpe;
    test.spec.q_heads = q_heads;
    test.spec.scale = 0.05;
    test.spec.lse = true;
    test.layout.latents_apart = n % 3 == 1;
    test.layout.latent_heads = n % 5 == 2;
    test.layout.kv_as_bytes = n % 2 == 0;
    return causal(std::move(test));
}

void add_latents(Catalogue& catalogue) {
    int n = 0;
    for (const KvScale scale : {KvScale::token_head, KvScale::block128}) {
        const auto name = [&](const std::string& what) {
            return fmt::format("latents, {}, {}", to_string(scale), what);
        };
        for (const std::int64_t heads : {1, 16, 64, 128}) {
            add(catalogue, kGroup, name(fmt::format("{} heads, pages of 64", heads)),
                decode(paged(latent(n++, scale, heads), 64)));
            // Rows of 580 and of 656 bytes.
            Case rows =
                with_inline_scales(paged(latent(n++, scale, heads), 64), scale == KvScale::block128 ? 16 : 4);
            add(catalogue, kGroup, name(fmt::format("{} heads, rows with scales", heads)), decode(rows));
        }
        add(catalogue, kGroup, name("dense"), few_queries(dense(latent(n++, scale, 16))));
        add(catalogue, kGroup, name("ragged"), few_queries(ragged(latent(n++, scale, 20))));
        add(catalogue, kGroup, name("pages of 1"), few_queries(paged(latent(n++, scale, 48), 1)));
        for (const auto& [ckv, kpe] : {std::pair{128, 16}, {256, 0}, {256, 64}})
            add(catalogue, kGroup, name(fmt::format("{}+{}", ckv, kpe)),
                decode(paged(
                    with_inline_scales(latent(n++, scale, 16, ckv, kpe), scale == KvScale::block128 ? 4 : 16),
                    16)));
        Case bitwise = paged(latent(n++, scale, 16), 64);
        bitwise.spec.consistency = Consistency::bitwise;
        add(catalogue, kGroup, name("bitwise"),
            with_lengths(bitwise, {1, 0, 3, 1, 1}, {9000, 33, 4097, 1, 700}));
        add(catalogue, kGroup, name("long"),
            with_lengths(with_inline_scales(paged(latent(n++, scale, 16), 64), 16), {1, 1, 5, 0},
                         {9000, 33, 8191, 700}));
        Case fp32 = dense(latent(n++, scale, 20));
        fp32.spec.o_dtype = DType::fp32;
        fp32.layout.pad = 8;
        fp32.layout.scale_pad = 1;
        add(catalogue, kGroup, name("dense to fp32"),
            with_lengths(fp32, {5, 1, 0, 17, 40}, {300, 2000, 64, 17, 39}));
        Case moved = paged(latent(n++, scale, 16), 64);
        moved.scales_at_launch = true;
        add(catalogue, kGroup, name("scales at launch"), decode(moved));
        Case apart = paged(latent(n++, scale, 16), 64);
        apart.k_scales = {1, 0x1p-20F, 0.2F};
        add(catalogue, kGroup, name("scales 2^20 apart"), decode(apart));
        add(catalogue, kGroup, name("a bad scale"),
            spoiled(paged(latent(n++, scale, 16), 64), {1, 20, 1}, {900, 300, 4000},
                    {{.sequence = 1, .token = 290}, {.sequence = 2, .token = 3999, .value = -1}}));
        add(catalogue, kGroup, name("a bad scale in rows with scales"),
            spoiled(with_inline_scales(paged(latent(n++, scale, 64), 64), 16), {1, 20, 1}, {900, 300, 4000},
                    {{.sequence = 1,
                      .token = 290,
                      .block = scale == KvScale::block128 ? 3 : 0,
                      .value = std::numeric_limits<float>::quiet_NaN()}}));
        Case any = paged(latent(n++, scale, 48), 64);
        add_over_kernels(catalogue, kGroup, name("any kernel"),
                         with_lengths(any, {1, 2, 9, 0}, {5000, 1, 300, 20}), Splitting::alternate);
    }
}

}  // namespace

void add_token_scales(Catalogue& catalogue) {
    add_types_and_dims(catalogue);
    add_blocks(catalogue);
    add_groups(catalogue);
    add_places(catalogue);
    add_masks_and_scores(catalogue);
    add_over_dims(catalogue);
    add_long_keys(catalogue);
    add_values(catalogue);
    add_planted(catalogue);
    add_hostile(catalogue);
    add_bad_scales(catalogue);
    add_scales_at_launch(catalogue);
    add_latents(catalogue);
}

}  // namespace attnsmith::gpu_tests
