// Keys and values of 8 bits: both floats, with and without scales, through every storage, mask and kernel.
// What is right is fp64 on the numbers that are stored, within the bounds of keys and values of 16 bits.
#include <fmt/format.h>

#include <limits>

#include "catalogue.hpp"
#include "check/kernel_choice.hpp"

namespace attnsmith::gpu_tests {
namespace {

using check::Layout;
using check::MemoryOrder;
using check::PageList;
using check::Planted;
using check::Values;
using Numbers = std::vector<std::int64_t>;

constexpr const char* kGroup = "fp8";

struct Types {
    DType query, stored;
};

constexpr Types kTypes[] = {{DType::bf16, DType::e4m3},
                            {DType::fp16, DType::e4m3},
                            {DType::bf16, DType::e5m2},
                            {DType::fp16, DType::e5m2}};
constexpr KvScale kScales[] = {KvScale::none, KvScale::tensor, KvScale::head};

struct Dims {
    std::int64_t qk, vo;
};

constexpr Dims kDims[] = {{64, 64}, {80, 80}, {96, 96}, {128, 128}, {192, 128}, {256, 256}, {512, 512}};

std::string word(const Types& types) {
    return fmt::format("{} {}", gpu_tests::word(types.query), to_string(types.stored));
}

std::string word(const Dims& dims) {
    return dims.qk == dims.vo ? fmt::format("{}", dims.qk) : fmt::format("{}/{}", dims.qk, dims.vo);
}

Case fp8(const Types& types, KvScale scale, const Dims& dims, std::int64_t q_heads, std::int64_t kv_heads) {
    Case test = attention(types.query, dims.qk, dims.vo, q_heads, kv_heads);
    test.spec.kv_dtype = types.stored;
    test.spec.kv_scale = scale;
    return test;
}

// What most cases have that show something else than dtypes, scales and head dims: the n-th of them.
Case fp8(int n, std::int64_t q_heads = 8, std::int64_t kv_heads = 2) {
    return fp8(kTypes[n % 4], kScales[2 - n % 3], {128, 128}, q_heads, kv_heads);
}

// Storage by turns.
Case stored(Case test, int n) {
    switch (n % 5) {
        case 0:
            return paged(std::move(test), 16);
        case 1:
            return dense(std::move(test));
        case 2:
            return paged(std::move(test), 64, PageOrder::HND);
        case 3:
            return ragged(std::move(test));
        default:
            return paged(std::move(test), 8);
    }
}

Case decode(Case test) { return with_lengths(std::move(test), {1, 1, 1, 1, 1}, {1, 700, 0, 255, 1025}); }
Case few_queries(Case test) { return with_lengths(std::move(test), {2, 5, 16, 0, 9}, {2, 700, 300, 17, 64}); }
Case prefill(Case test) { return with_lengths(std::move(test), {70, 1, 0, 33, 129}, {300, 64, 17, 33, 100}); }

Case with_lse(Case test) {
    test.spec.lse = true;
    return test;
}

void add_types_and_dims(Catalogue& catalogue) {
    int n = 0;
    for (const Dims& dims : kDims) {
        for (const Types& types : kTypes) {
            for (const KvScale scale : kScales) {
                const std::int64_t kv_heads = n % 2 ? 3 : 2, group = n % 4 + 1;
                const Case base = fp8(types, scale, dims, group * kv_heads, kv_heads);
                const std::string name =
                    fmt::format("{} {}, scale {}", word(types), word(dims), to_string(scale));
                add(catalogue, kGroup, name + " decode", decode(with_lse(stored(causal(base), n))));
                add(catalogue, kGroup, name + " few queries", few_queries(stored(causal(base), n + 1)));
                add(catalogue, kGroup, name + " prefill", prefill(with_lse(stored(causal(base), n + 2))));
                ++n;
            }
        }
    }
}

// Query heads of a KV head fill a tile of few rows, or a part of one.
void add_groups(Catalogue& catalogue) {
    int n = 0;
    for (const std::int64_t group : {1, 4, 8, 16}) {
        for (const std::int64_t page : {1, 8, 16, 64}) {
            for (const PageOrder order : {PageOrder::NHD, PageOrder::HND}) {
                Case test = paged(causal(fp8(n, 2 * group, 2)), page, order);
                test.page_list = n % 3 ? PageList::padded : PageList::compressed;
                test.spec.index_dtype = n % 5 < 2 ? DType::int64 : DType::int32;
                test.layout.one_kv_tensor = n % 4 == 1;
                const std::string name =
                    fmt::format("decode, {} heads to one, pages of {} {}", group, page, to_string(order));
                add(catalogue, kGroup, name, decode(with_lse(test)));
                ++n;
            }
        }
    }
    for (const std::int64_t queries : {2, 3, 4, 5, 8, 12, 16}) {
        const Case test = with_lse(stored(causal(fp8(n)), n + 1));
        add(catalogue, kGroup, fmt::format("{} queries", queries),
            with_lengths(test, {queries, 1, queries, queries}, {queries, 500, 999, 64}));
        ++n;
    }
}

// Groups that a tile has no room for, which wgmma divides into parts: each head's scale is that of its KV
// head all the same. And pages whose keys are gathered.
void add_large_groups(Catalogue& catalogue) {
    int n = 0;
    for (const std::int64_t group : {17, 33, 64, 71, 130}) {
        for (const std::int64_t page : {1, 8, 16}) {
            for (const std::int64_t dim : {64, 128, 256}) {
                Case test = fp8(kTypes[n % 4], KvScale::head, {dim, dim}, 3 * group, 3);
                test = with_lse(paged(causal(std::move(test)), page));
                const std::string name = fmt::format("{}, {} heads to one, pages of {}", dim, group, page);
                add(catalogue, kGroup, name + " decode", decode(test));
                add(catalogue, kGroup, name + " prefill", with_lengths(test, {70, 1, 33}, {300, 64, 33}));
                ++n;
            }
        }
    }
}

void add_storages(Catalogue& catalogue) {
    int n = 0;
    const auto with = [&](const std::string& name, const Case& test) {
        for (const bool as_bytes : {false, true}) {
            Case given = test;
            given.layout.kv_as_bytes = as_bytes;
            const std::string what = name + (as_bytes ? ", given as uint8" : "");
            add(catalogue, kGroup, what + " prefill", prefill(given));
            add(catalogue, kGroup, what + " decode", decode(given));
        }
    };
    for (const DType index : {DType::int32, DType::int64}) {
        const auto base = [&] {
            Case test = causal(fp8(n++));
            test.spec.index_dtype = index;
            return test;
        };
        const std::string suffix = fmt::format(" {}", to_string(index));
        with("dense" + suffix, dense(base()));
        with("ragged" + suffix, ragged(base()));
        for (const std::int64_t page : {1, 3, 8, 16, 64, 256})
            with(fmt::format("pages of {}", page) + suffix, paged(base(), page));
        Case compressed = paged(base(), 16, PageOrder::HND);
        compressed.page_list = PageList::compressed;
        with("compressed HND" + suffix, compressed);
        Case rows = paged(base(), 64);
        rows.spare_table_rows = 5;
        rows.layout.table_pad = 3;
        with("table rows" + suffix, rows);
    }
}

void add_places(Catalogue& catalogue) {
    int n = 0;
    const auto with = [&](const std::string& name, Case test, const Layout& layout) {
        test.layout = layout;
        add(catalogue, kGroup, name + " prefill", prefill(with_lse(test)));
        add(catalogue, kGroup, name + " decode", decode(test));
    };
    with("[b, h, s, d] padded", dense(causal(fp8(n++))),
         {.order = MemoryOrder::bhsd, .o_order = MemoryOrder::sbhd, .pad = 24, .o_pad = 8, .lse_pad = 3});
    with("[s, b, h, d]", dense(causal(fp8(n++))), {.order = MemoryOrder::sbhd, .o_order = MemoryOrder::sbhd});
    with("[h, tokens, d]", ragged(causal(fp8(n++))), {.order = MemoryOrder::bhsd, .lse_heads_first = true});
    with("keys and values in one tensor", dense(causal(fp8(n++))), {.one_kv_tensor = true, .pad = 8});
    with("pages of both, padded", paged(causal(fp8(n++))), {.one_kv_tensor = true, .pad = 8, .table_pad = 2});
    for (const int alignment : {16, 8, 4, 2}) {
        const std::int64_t unit = alignment / 2;
        // Bases and strides that meet this class and no higher one.
        const Layout layout{.pad = unit, .o_pad = unit, .lse_pad = 1, .base = unit};
        for (const Dims& dims : {Dims{128, 128}, Dims{80, 48}, Dims{512, 512}}) {
            const std::string name = fmt::format("{} aligned to {} bytes", word(dims), alignment);
            const auto base = [&] {
                Case test = causal(fp8(kTypes[n % 4], kScales[n % 3], dims, 8, 2));
                test.spec.alignment = alignment;
                ++n;
                return test;
            };
            with(name + " dense", dense(base()), layout);
            with(name + " ragged", ragged(base()), layout);
            with(name + " paged", paged(base(), n % 2 ? 16 : 3, n % 3 ? PageOrder::NHD : PageOrder::HND),
                 layout);
        }
    }
}

void add_masks_and_scores(Catalogue& catalogue) {
    int n = 0;
    const auto with = [&](const std::string& name, const std::function<void(AttentionSpec&)>& change) {
        for (const Dims& dims : {Dims{64, 64}, Dims{128, 128}, Dims{512, 512}}) {
            Case test = with_lse(fp8(kTypes[n % 4], kScales[n % 3], dims, 6, 2));
            change(test.spec);
            if (test.spec.softcap || test.spec.alibi) test.values = Values::peaked;
            add(catalogue, kGroup, fmt::format("{} {} prefill", word(dims), name), prefill(stored(test, n)));
            add(catalogue, kGroup, fmt::format("{} {} decode", word(dims), name),
                decode(stored(test, n + 3)));
            ++n;
        }
    };
    for (const ScoreChange& one : score_changes()) with(one.name, one.change);
    with("scale 0.2", [](AttentionSpec& spec) { spec.scale = 0.2; });
}

// Every kernel that planning could choose on any SM, whole and divided, with both ways to divide keys.
void add_over_dims(Catalogue& catalogue) {
    int n = 0;
    for (const Consistency consistency : {Consistency::standard, Consistency::bitwise}) {
        for (const Dims& dims : kDims) {
            for (const DType dtype : {DType::e4m3, DType::e5m2}) {
                // Widening is all that differs, and other cases have it of each head dim.
                if (dtype == DType::e5m2 && dims.qk != 64 && dims.qk != 128) continue;
                Case base = with_lse(
                    fp8({n % 3 ? DType::bf16 : DType::fp16, dtype}, kScales[n % 3], dims, n % 2 ? 6 : 16, 2));
                base.spec.consistency = consistency;
                base.spec.sink = n % 2 == 0;
                if (n % 5 == 1) base.spec.softcap = 20.0;
                if (n % 4 == 3) base.spec.window_left = 145;
                if (n % 4 == 1) base.spec.o_dtype = DType::fp32;
                const std::string name =
                    fmt::format("{}{} {}", to_string(dtype),
                                consistency == Consistency::bitwise ? " bitwise" : "", word(dims));
                const Numbers queries{70, 150, 33, 40, 0, 1, 129}, keys{700, 260, 33, 0, 40, 1500, 17};
                const Splitting splitting = dtype == DType::e4m3 ? Splitting::both : Splitting::alternate;
                add_over_kernels(catalogue, kGroup, name + " ragged",
                                 with_lengths(ragged(n % 3 ? causal(base) : base), queries, keys), splitting);
                add_over_kernels(catalogue, kGroup, name + " paged",
                                 with_lengths(paged(causal(base), n % 3 ? 16 : 7), queries, keys), splitting);
                ++n;
            }
        }
    }
}

// Long keys over few CTAs and many, so that rows are joined from many parts.
void add_long_keys(Catalogue& catalogue) {
    int n = 0;
    for (const Dims& dims : {Dims{64, 64}, Dims{128, 128}, Dims{256, 256}, Dims{512, 512}}) {
        for (const Consistency consistency : {Consistency::standard, Consistency::bitwise}) {
            Case test = paged(causal(fp8(kTypes[n % 4], kScales[2 - n % 3], dims, 8, 2)), n % 2 ? 16 : 64);
            test.spec.consistency = consistency;
            test = with_lengths(test, {1, 0, 3, 1, 1}, {9000, 33, 4097, 1, 700});
            const std::string name = fmt::format("long keys, {}{}", word(dims),
                                                 consistency == Consistency::bitwise ? " bitwise" : "");
            add(catalogue, kGroup, name, test);
            for (check::KernelChoice choice : check::kernel_choices(test.spec)) {
                choice.chunk = check::chunk_of(choice, 128);
                for (const int ctas : {1, 7, 66}) {
                    choice.ctas = ctas;
                    test.kernel = choice;
                    add(catalogue, kGroup, fmt::format("{}, {}", name, to_string(choice)), test);
                }
            }
            ++n;
        }
    }
    Case single = with_lengths(paged(causal(fp8(0)), 16), {1}, {30001});
    add(catalogue, kGroup, "one decode of 30001 keys", single);
    Case beside =
        with_lengths(with_lse(paged(causal(fp8(1)), 16)), {1, 1, 300, 1, 0, 33}, {5000, 1, 3000, 0, 70, 33});
    add(catalogue, kGroup, "a chunk beside decodes", beside);
    Case changing = with_lengths(paged(causal(fp8(2)), 16), {64, 1, 100, 17}, {64, 300, 100, 40});
    changing = with_lengths(changing, {1, 1, 1, 1}, {1, 300, 2, 299});
    changing = with_lengths(changing, {0, 0, 0, 0}, {0, 0, 0, 0});
    changing = with_lengths(changing, {3, 70, 65, 1}, {128, 64, 65, 7});
    add(catalogue, kGroup, "one call, many lengths", with_lse(changing));
}

// Numbers at the ends of what 8 bits can tell apart.
void add_values(Catalogue& catalogue) {
    for (const Types& types : kTypes) {
        const auto with = [&](const std::string& name, const std::function<void(Case&)>& change) {
            Case test = with_lse(causal(fp8(types, KvScale::head, {128, 128}, 4, 2)));
            change(test);
            add(catalogue, kGroup, fmt::format("{}: {} prefill", word(types), name), prefill(ragged(test)));
            add(catalogue, kGroup, fmt::format("{}: {} decode", word(types), name), decode(paged(test)));
        };
        with("peaked", [](Case& test) { test.values = Values::peaked; });
        with("equal logits", [](Case& test) { test.values = Values::equal_logits; });
        with("zero queries", [](Case& test) { test.values = Values::zero_queries; });
        // What a row of zeros in bf16 is multiplied by, times such a scale, is no number of fp32.
        with("zero queries, tiny scales", [](Case& test) {
            test.values = Values::zero_queries;
            test.k_scales = {4e-7F, 1e-30F};
        });
        with("zero queries, huge scales", [](Case& test) {
            test.values = Values::zero_queries;
            test.k_scales = {9e37F, 1e30F};
        });
        with("large values", [](Case& test) { test.values = Values::large_v, test.v_scales = {200, 300}; });
        with("subnormals", [](Case& test) { test.k_scales = {300, 2000}, test.v_scales = {500, 900}; });
        with("numbers that are cut off", [](Case& test) {
            test.k_scales = {0.003F, 0.002F}, test.v_scales = {0.001F, 0.002F};
        });
        with("scales far from 1", [](Case& test) {
            test.k_scales = {1e-3F, 40}, test.v_scales = {50, 2e-3F};
        });
        // Each is an ordinary number; their product is none.
        with("tiny scales", [](Case& test) { test.k_scales = test.v_scales = {1e-25F, 1e-30F}; });
    }
}

void add_planted(Catalogue& catalogue) {
    constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    using Where = Planted::Where;
    for (const Types& types : kTypes) {
        const Case base = with_lse(causal(fp8(types, KvScale::head, {128, 128}, 4, 2)));
        const auto plant = [&](const std::string& what, const Case& test, std::vector<Planted> numbers) {
            Case with = with_lengths(test, {40, 3, 1, 150}, {300, 200, 150, 60});
            with.steps.back().planted = std::move(numbers);
            add(catalogue, kGroup, fmt::format("{}: {}", word(types), what), with);
        };
        plant("NaN in a key", paged(base), {{Where::k, 0, 280, 0, 3, kNaN}, {Where::k, 1, 199, -1, 0, kNaN}});
        plant("NaN in a value", ragged(base), {{Where::v, 0, 50, 1, 2, kNaN}});
        plant("NaN in a query", paged(base), {{Where::q, 0, 5, 1, 3, kNaN}, {Where::q, 2, 0, 3, 7, kNaN}});
        // e4m3 has no infinity.
        if (types.stored == DType::e5m2)
            plant("infinite values that all rows see", paged(base),
                  {{Where::v, 0, 100, 0, 3, kInfinity}, {Where::v, 1, 150, 1, 0, -kInfinity}});
        Case evicted = base;
        evicted.spec.window_left = 30;
        evicted = with_lengths(paged(evicted, 8), {1, 3, 40}, {700, 300, 300});
        evicted = with_lengths(evicted, {1, 3, 40}, {700, 300, 300});
        evicted.steps.back().same_data = evicted.steps.back().evicted = true;
        add(catalogue, kGroup, word(types) + ": keys left of the window", evicted);
    }
}

// Lengths and page ids beyond their bounds.
void add_hostile(Catalogue& catalogue) {
    int n = 0;
    for (auto [name, test] : hostile_cases()) {
        test.spec.kv_dtype = n % 2 ? DType::e5m2 : DType::e4m3;
        test.spec.kv_scale = kScales[n % 3];
        add(catalogue, kGroup, "clamp " + name, test);
        ++n;
    }
}

struct BadScale {
    std::string name;
    float value;
};

const BadScale kBadScales[] = {{"NaN", std::numeric_limits<float>::quiet_NaN()},
                               {"infinite", std::numeric_limits<float>::infinity()},
                               {"minus infinite", -std::numeric_limits<float>::infinity()},
                               {"0", 0.0F},
                               {"-0", -0.0F},
                               {"negative", -0.5F}};

// The same data twice, with the second head's scale spoiled at the second time, and others with good scales
// behind it.
Case spoiled(const Case& base, const Numbers& queries, const Numbers& keys, bool of_key, float value) {
    Case test = with_lengths(with_lengths(with_lengths(base, queries, keys), queries, keys), queries, keys);
    Step& step = test.steps[1];
    step.same_data = true;
    step.status.bits |= kStatusScaleNotPositive;
    step.spoil_scales = [of_key, value](std::vector<float>& k, std::vector<float>& v) {
        (of_key ? k : v).back() = value;
    };
    return test;
}

void add_bad_scales(Catalogue& catalogue) {
    int n = 0;
    for (const BadScale& bad : kBadScales) {
        for (const bool of_key : {true, false}) {
            const std::string name = fmt::format("a {} scale of {}", bad.name, of_key ? "keys" : "values");
            const auto with = [&](const std::string& what, const Case& test, const Numbers& queries,
                                  const Numbers& keys) {
                add(catalogue, kGroup, fmt::format("{}, {}", name, what),
                    spoiled(with_lse(test), queries, keys, of_key, bad.value));
            };
            const auto base = [&](KvScale scale, const Dims& dims) {
                return causal(fp8(kTypes[n++ % 4], scale, dims, 9, 3));
            };
            with("prefill", ragged(base(KvScale::head, {128, 128})), {70, 1, 0, 33}, {300, 64, 17, 33});
            with("decode", paged(base(KvScale::head, {64, 64})), {1, 1, 1}, {1, 700, 255});
            with("decode of long keys", paged(base(KvScale::head, {128, 128})), {1, 1}, {9000, 40});
            with("of all heads", paged(base(KvScale::tensor, {128, 128})), {1, 20, 1}, {9, 700, 4000});
            with("512", dense(base(KvScale::head, {512, 512})), {40, 1, 3}, {300, 64, 17});
            Case bitwise = paged(base(KvScale::head, {128, 128}));
            bitwise.spec.consistency = Consistency::bitwise;
            with("bitwise", bitwise, {1, 40, 3}, {5000, 300, 700});
            with("rows without a key", ragged(base(KvScale::head, {128, 128})), {5, 1, 70}, {0, 0, 20});
        }
    }
}

// A case of op mla, whose values are columns of the keys and have their scale.
Case latent(int n, std::int64_t q_heads) {
    Case test;
    test.spec.op = Op::mla;
    test.spec.dtype = kTypes[n % 4].query;
    test.spec.kv_dtype = kTypes[n % 4].stored;
    test.spec.kv_scale = kScales[2 - n % 3];
    test.spec.head_dim_ckv = 512;
    test.spec.head_dim_kpe = 64;
    test.spec.q_heads = q_heads;
    test.spec.scale = 0.05;
    test.spec.lse = true;
    test.layout.latents_apart = n % 2 == 0;
    test.layout.latent_heads = n % 3 == 0;
    test.layout.kv_as_bytes = n % 5 == 0;
    return test;
}

void add_latents_over_kernels(Catalogue& catalogue) {
    int n = 0;
    const Numbers queries{5, 1, 0, 17, 40}, keys{300, 2000, 64, 17, 39};
    for (const DType dtype : {DType::e4m3, DType::e5m2}) {
        for (const Consistency consistency : {Consistency::standard, Consistency::bitwise}) {
            Case test = paged(causal(latent(n, 48)), 64);
            test.spec.kv_dtype = dtype;
            test.spec.consistency = consistency;
            add_over_kernels(catalogue, kGroup,
                             fmt::format("latents of {} {}", to_string(dtype), to_string(consistency)),
                             with_lengths(test, {1, 2, 9, 0}, {5000, 1, 300, 20}), Splitting::both);
            ++n;
        }
        Case whole = dense(latent(n, 20));
        whole.spec.kv_dtype = dtype;
        whole.spec.o_dtype = DType::fp32;
        whole.layout.pad = 8;
        const std::string name = fmt::format("latents of {}", to_string(dtype));
        add(catalogue, kGroup, name + " dense to fp32", with_lengths(whole, queries, keys));
        Case tokens = ragged(causal(latent(n + 1, 20)));
        tokens.spec.kv_dtype = dtype;
        tokens.spec.index_dtype = DType::int64;
        add(catalogue, kGroup, name + " ragged int64", with_lengths(tokens, queries, keys));
        Case moved = paged(causal(latent(n, 16)), 64);
        moved.spec.kv_scale = KvScale::tensor;
        moved.scales_at_launch = true;
        add(catalogue, kGroup, name + ", scale at launch", with_lengths(moved, queries, keys));
        ++n;
    }
    for (const int alignment : {8, 4, 2}) {
        Case test = causal(latent(n++, 7));
        test.spec.alignment = alignment;
        test.layout.base = test.layout.pad = alignment / 2;
        add(catalogue, kGroup, fmt::format("latents aligned to {} bytes", alignment),
            with_lengths(dense(test), {3, 1, 20}, {500, 33, 20}));
    }
    for (const BadScale& bad : kBadScales) {
        Case test = paged(causal(latent(n++, 16)), 64);
        test.spec.kv_scale = KvScale::tensor;
        add(catalogue, kGroup, fmt::format("latents of 16 heads, a {} scale", bad.name),
            spoiled(test, {1, 20, 1}, {900, 300, 4000}, true, bad.value));
    }
}

// By the kernel that reads what another has widened before it, whatever planning would choose: its keys come
// from the workspace, and so all that is said of storages, of rows that nobody sees and of bad ids is the
// other's.
void add_widened_ahead(Catalogue& catalogue) {
    const auto with = [&](const std::string& name, Case test) {
        for (const check::KernelChoice& choice : check::kernel_choices(test.spec)) {
            if (!choice.widened_ahead) continue;
            test.kernel = choice;
            add(catalogue, kGroup, "widened ahead, " + name, test);
        }
    };
    int n = 0;
    for (const DType index : {DType::int32, DType::int64}) {
        const auto base = [&] {
            Case test = with_lse(causal(fp8(n++)));
            test.spec.index_dtype = index;
            return test;
        };
        const std::string suffix = fmt::format(" {}", to_string(index));
        with("dense" + suffix, prefill(dense(base())));
        with("ragged" + suffix, prefill(ragged(base())));
        for (const std::int64_t page : {1, 3, 16, 64, 256})
            with(fmt::format("pages of {}", page) + suffix, prefill(paged(base(), page)));
        Case compressed = paged(base(), 16, PageOrder::HND);
        compressed.page_list = PageList::compressed;
        with("compressed HND" + suffix, prefill(compressed));
        Case rows = paged(base(), 64);
        rows.spare_table_rows = 5;
        rows.layout.table_pad = 3;
        with("table rows" + suffix, decode(rows));
    }
    for (const Layout& layout :
         {Layout{.order = MemoryOrder::bhsd, .pad = 32, .o_pad = 8}, Layout{.order = MemoryOrder::sbhd},
          Layout{.one_kv_tensor = true, .pad = 16}}) {
        Case test = dense(causal(fp8(n++)));
        test.layout = layout;
        with(fmt::format("places {}", n), few_queries(test));
    }
    for (const ScoreChange& one : score_changes()) {
        for (const Dims& dims : {Dims{64, 64}, Dims{192, 128}, Dims{256, 256}}) {
            Case test = with_lse(fp8(kTypes[n % 4], kScales[n % 3], dims, 6, 2));
            one.change(test.spec);
            if (test.spec.softcap || test.spec.alibi) test.values = Values::peaked;
            with(fmt::format("{} {}", word(dims), one.name), prefill(stored(test, n)));
            ++n;
        }
    }
    for (const std::int64_t group : {17, 71, 130}) {
        Case test = fp8(kTypes[n++ % 4], KvScale::head, {128, 128}, 3 * group, 3);
        with(fmt::format("{} heads to one", group),
             with_lengths(paged(causal(test), 16), {70, 1, 33}, {300, 64, 33}));
    }
    for (auto [name, test] : hostile_cases()) {
        test.spec.kv_dtype = n % 2 ? DType::e5m2 : DType::e4m3;
        test.spec.kv_scale = kScales[n++ % 3];
        with("clamp " + name, test);
    }
    for (const BadScale& bad : kBadScales) {
        const bool of_key = n % 2 == 0;
        Case test = with_lse(causal(fp8(kTypes[n++ % 4], KvScale::head, {128, 128}, 9, 3)));
        with(fmt::format("a {} scale of {}", bad.name, of_key ? "keys" : "values"),
             spoiled(ragged(test), {70, 1, 0, 33}, {300, 64, 17, 33}, of_key, bad.value));
    }
    constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
    Case planted =
        with_lengths(paged(with_lse(causal(fp8(n++, 4, 2)))), {40, 3, 1, 150}, {300, 200, 150, 60});
    planted.steps.back().planted = {{Planted::Where::k, 0, 280, 0, 3, kNaN},
                                    {Planted::Where::v, 1, 50, 1, 2, kNaN}};
    with("NaN in a key and a value", planted);
    Case evicted = fp8(n++, 4, 2);
    evicted.spec.window_left = 30;
    evicted.spec.window_right = 0;
    evicted = with_lengths(paged(evicted, 8), {1, 3, 40}, {700, 300, 300});
    evicted = with_lengths(evicted, {1, 3, 40}, {700, 300, 300});
    evicted.steps.back().same_data = evicted.steps.back().evicted = true;
    with("keys left of the window", evicted);
    Case changing = with_lengths(paged(causal(fp8(n++)), 16), {64, 1, 100, 17}, {64, 300, 100, 40});
    changing = with_lengths(changing, {1, 1, 1, 1}, {1, 300, 2, 299});
    changing = with_lengths(changing, {0, 0, 0, 0}, {0, 0, 0, 0});
    changing = with_lengths(changing, {3, 70, 65, 1}, {128, 64, 65, 7});
    with("one call, many lengths", with_lse(changing));
    Case at_launch = causal(fp8(kTypes[n++ % 4], KvScale::head, {128, 128}, 8, 2));
    at_launch.scales_at_launch = true;
    with("scales at launch", prefill(ragged(at_launch)));
    with("long keys", with_lengths(paged(causal(fp8(n++)), 16), {1, 300, 3}, {9000, 3000, 4097}));
    // Where planning chooses it.
    add(catalogue, kGroup, "widened ahead, planned",
        with_lengths(with_lse(paged(causal(fp8(n++)), 16)), {1200}, {1500}));
}

// A Call serves layers that have scales of their own.
void add_scales_at_launch(Catalogue& catalogue) {
    int n = 0;
    for (const KvScale scale : {KvScale::tensor, KvScale::head}) {
        for (const Dims& dims : {Dims{64, 64}, Dims{128, 128}, Dims{512, 512}}) {
            const auto with = [&](const std::string& what, Case test) {
                test.scales_at_launch = true;
                add(catalogue, kGroup,
                    fmt::format("scales at launch, {} {} {}", word(dims), to_string(scale), what), test);
            };
            const auto base = [&] { return causal(fp8(kTypes[n++ % 4], scale, dims, 8, 2)); };
            with("prefill", prefill(ragged(base())));
            with("decode", decode(paged(base())));
        }
    }
}

// Latents of 8 bits, in rows of 576 bytes.
void add_latents(Catalogue& catalogue) {
    int n = 0;
    const auto latent = [&](std::int64_t q_heads, std::int64_t ckv = 512, std::int64_t kpe = 64) {
        Case test;
        test.spec.op = Op::mla;
        test.spec.dtype = kTypes[n % 4].query;
        test.spec.kv_dtype = kTypes[n % 4].stored;
        test.spec.kv_scale = kScales[2 - n % 3];
        test.spec.head_dim_ckv = ckv;
        test.spec.head_dim_kpe = kpe;
        test.spec.q_heads = q_heads;
        test.spec.scale = 0.05;
        test.spec.lse = true;
        test.layout.latents_apart = n % 4 == 2;
        test.layout.latent_heads = n % 5 == 1;
        ++n;
        return causal(test);
    };
    const auto with = [&](const std::string& name, const Case& test) {
        add(catalogue, kGroup, "latents, " + name + " decode", decode(test));
        add(catalogue, kGroup, "latents, " + name + " few queries", few_queries(test));
    };
    for (const std::int64_t heads : {1, 8, 16, 63, 64, 128}) {
        with(fmt::format("{} heads, pages of 64", heads), paged(latent(heads), 64));
        with(fmt::format("{} heads, pages of 1", heads), paged(latent(heads), 1));
        with(fmt::format("{} heads, dense", heads), dense(latent(heads)));
        with(fmt::format("{} heads, ragged", heads), ragged(latent(heads)));
    }
    for (const std::int64_t ckv : {64, 192, 256, 448})
        for (const std::int64_t kpe : {0, 16, 64})
            with(fmt::format("{}+{}", ckv, kpe), paged(latent(16, ckv, kpe), 16));
    Case bitwise = paged(latent(16), 16);
    bitwise.spec.consistency = Consistency::bitwise;
    with("bitwise", bitwise);
    Case at_launch = paged(latent(16), 16);
    at_launch.scales_at_launch = at_launch.spec.kv_scale != KvScale::none;
    with("scales at launch", at_launch);
    add(catalogue, kGroup, "latents, long",
        with_lengths(paged(latent(16), 64), {1, 1, 5, 0}, {9000, 33, 8191, 700}));
    Case bad = paged(latent(16), 64);
    bad.spec.kv_scale = KvScale::tensor;
    add(catalogue, kGroup, "latents, a NaN scale",
        spoiled(bad, {1, 3}, {700, 40}, true, std::numeric_limits<float>::quiet_NaN()));
}

}  // namespace

void add_fp8(Catalogue& catalogue) {
    add_latents(catalogue);
    add_types_and_dims(catalogue);
    add_groups(catalogue);
    add_large_groups(catalogue);
    add_storages(catalogue);
    add_places(catalogue);
    add_masks_and_scores(catalogue);
    add_over_dims(catalogue);
    add_long_keys(catalogue);
    add_values(catalogue);
    add_planted(catalogue);
    add_hostile(catalogue);
    add_bad_scales(catalogue);
    add_latents_over_kernels(catalogue);
    add_scales_at_launch(catalogue);
    add_widened_ahead(catalogue);
}

}  // namespace attnsmith::gpu_tests
