// Every kernel that planning could choose for a spec, on this SM or another, on the same problems: dims,
// alignment, strides, storage, masks, scores, rows without a key, hostile lengths, with KV split and not.
#include <fmt/format.h>

#include "catalogue.hpp"

namespace attnsmith::gpu_tests {
namespace {

using check::Layout;
using check::MemoryOrder;

// Continued from a cache, more queries than keys, no keys, no queries, and one query.
Case mixed(Case test) {
    test.spec.lse = true;
    return with_lengths(std::move(test), {70, 150, 33, 40, 0, 1, 129}, {300, 60, 33, 0, 40, 270, 17});
}

struct Dims {
    std::int64_t qk, vo;
};

constexpr Dims kContiguousDims[] = {{8, 8},     {40, 40},   {64, 64},   {72, 72},   {128, 128},
                                    {200, 200}, {248, 248}, {192, 128}, {256, 256}, {264, 264},
                                    {320, 320}, {64, 512},  {512, 512}};
constexpr Dims kPagedDims[] = {{8, 8},     {40, 24},   {64, 64},   {96, 96},   {128, 128},
                               {200, 200}, {248, 248}, {192, 128}, {256, 256}, {328, 264},
                               {480, 480}, {512, 256}, {512, 512}};

std::string dims_word(const Dims& dims) {
    return dims.qk == dims.vo ? fmt::format("{}", dims.qk) : fmt::format("{}/{}", dims.qk, dims.vo);
}

// Heads that put several queries into a tile's rows, and leave the last one partly empty.
constexpr std::pair<std::int64_t, std::int64_t> kHeads[] = {{4, 2}, {3, 3}, {6, 2}, {5, 1}};

void add_dims_and_storage(Catalogue& catalogue) {
    int n = 0;
    for (const Dims& dims : kContiguousDims) {
        const auto [q, kv] = kHeads[n % 4];
        Case test =
            mixed(ragged(causal(attention(n % 2 ? DType::fp16 : DType::bf16, dims.qk, dims.vo, q, kv))));
        test.spec.sink = n % 2;
        add_over_kernels(catalogue, "kernels", "ragged " + dims_word(dims), test, Splitting::both);
        ++n;
    }
    for (const Dims& dims : kPagedDims) {
        const auto [q, kv] = kHeads[n % 4];
        Case test = mixed(paged(causal(attention(n % 2 ? DType::fp16 : DType::bf16, dims.qk, dims.vo, q, kv)),
                                n % 3 ? 16 : 7, n % 2 ? PageOrder::HND : PageOrder::NHD));
        test.spec.sink = n % 2;
        test.page_list = n % 4 ? check::PageList::padded : check::PageList::compressed;
        add_over_kernels(catalogue, "kernels", "paged " + dims_word(dims), test, Splitting::both);
        ++n;
    }
}

// Pages of which a tile holds no whole eight keys.
void add_odd_pages(Catalogue& catalogue) {
    int n = 0;
    for (const Dims& dims : {Dims{64, 64}, Dims{80, 80}, Dims{120, 120}, Dims{128, 128}, Dims{192, 128},
                             Dims{256, 256}, Dims{512, 512}}) {
        for (const std::int64_t page : {1, 3, 12, 100}) {
            const auto [q, kv] = kHeads[n % 4];
            Case test =
                mixed(paged(causal(attention(n % 2 ? DType::fp16 : DType::bf16, dims.qk, dims.vo, q, kv)),
                            page, n % 2 ? PageOrder::NHD : PageOrder::HND));
            test.spec.index_dtype = n % 3 ? DType::int32 : DType::int64;
            test.page_list = n % 3 ? check::PageList::padded : check::PageList::compressed;
            if (n % 4 == 3) test.spec.window_left = 50;
            add_over_kernels(catalogue, "kernels", fmt::format("pages of {} {}", page, dims_word(dims)), test,
                             n % 2 ? Splitting::never : Splitting::always);
            ++n;
        }
    }
}

void add_alignments(Catalogue& catalogue) {
    const auto with = [&](const std::string& name, Case test, int alignment) {
        const std::int64_t unit = alignment / 2;  // elements
        test.spec.alignment = alignment;
        // Bases and strides that meet this class and no higher one.
        test.layout = {.pad = unit, .o_pad = unit, .lse_pad = 1, .base = unit};
        add_over_kernels(catalogue, "kernels", fmt::format("{} aligned to {}", name, alignment), mixed(test),
                         Splitting::alternate);
    };
    with("ragged 72", ragged(causal(attention(DType::fp16, 72, 4, 2))), 8);
    with("paged 40/24", paged(causal(attention(DType::bf16, 40, 24, 6, 2)), 16, PageOrder::HND), 4);
    with("ragged 200", ragged(causal(attention(DType::bf16, 200, 3, 3))), 2);
    with("paged 192/128", paged(causal(attention(DType::fp16, 192, 128, 4, 2))), 2);
    with("dense 248", dense(causal(attention(DType::fp16, 248, 4, 2))), 8);
    with("ragged 128", ragged(causal(attention(DType::bf16, 128, 5, 1))), 4);
    with("ragged 328", ragged(causal(attention(DType::fp16, 328, 5, 1))), 2);
    with("paged 512", paged(causal(attention(DType::bf16, 512, 4, 2))), 8);
}

void add_layouts(Catalogue& catalogue) {
    const Case base = dense(causal(attention(DType::bf16, 128, 6, 2)));
    const auto with = [&](const std::string& name, Case test, const Layout& layout) {
        test.layout = layout;
        test.spec.lse = true;
        add_over_kernels(catalogue, "kernels", "128 " + name, test, Splitting::alternate);
    };
    with("[b, h, s, d] padded", mixed(base),
         {.order = MemoryOrder::bhsd, .o_order = MemoryOrder::sbhd, .pad = 24, .o_pad = 8, .lse_pad = 3});
    with("slice of packed qkv, lse by heads", with_lengths(base, {130, 0, 70}, {130, 0, 70}),
         {.packed_qkv = true, .lse_heads_first = true});
    Case shared = mixed(base);
    shared.slack = 9;
    with("keys of one sequence for all", shared, {.kv_broadcast = {0}});
    with("[h, tokens, d], keys and values in one tensor", mixed(ragged(base)),
         {.order = MemoryOrder::bhsd, .o_order = MemoryOrder::bhsd, .one_kv_tensor = true, .pad = 8});
}

void add_masks_and_scores(Catalogue& catalogue) {
    Case left = paged(causal(attention(DType::bf16, 64, 4, 2)));
    left.spec.window_left = 37;
    add_over_kernels(catalogue, "kernels", "paged 64 window 37", mixed(left), Splitting::both);
    Case both = ragged(attention(DType::fp16, 72, 4, 2));
    both.spec.window_left = 20;
    both.spec.window_right = 5;
    add_over_kernels(catalogue, "kernels", "ragged 72 window 20, 5", mixed(both), Splitting::both);
    Case wide = paged(causal(attention(DType::fp16, 192, 128, 4, 2)));
    wide.spec.window_left = 100;
    wide.spec.sink = true;
    add_over_kernels(catalogue, "kernels", "paged 192/128 window 100 sink", mixed(wide), Splitting::both);
    add_over_kernels(catalogue, "kernels", "dense 96 full", mixed(dense(attention(DType::fp16, 96, 4, 2))),
                     Splitting::both);
    Case widest = paged(causal(attention(DType::fp16, 512, 4, 2)), 16, PageOrder::HND);
    widest.spec.window_left = 100;
    widest.spec.sink = true;
    add_over_kernels(catalogue, "kernels", "paged 512 window 100 sink", mixed(widest), Splitting::both);
    widest = dense(attention(DType::bf16, 512, 6, 2));
    widest.spec.o_dtype = DType::fp32;
    add_over_kernels(catalogue, "kernels", "dense 512 full to fp32", mixed(widest), Splitting::both);

    const auto scored = [&](const std::string& name, Case test, bool softcap, bool alibi) {
        if (softcap) test.spec.softcap = 20.0;
        test.spec.alibi = alibi;
        test.values = check::Values::peaked;
        add_over_kernels(catalogue, "kernels", name, mixed(test), Splitting::both);
    };
    scored("ragged 128 softcap", ragged(causal(attention(DType::bf16, 128, 6, 2))), true, false);
    scored("paged 64 alibi", paged(attention(DType::fp16, 64, 4, 2)), false, true);
    scored("paged 512 softcap alibi", paged(causal(attention(DType::bf16, 512, 8, 1))), true, true);
    Case all = paged(causal(attention(DType::fp16, 256, 4, 2)));
    all.spec.index_dtype = DType::int64;
    all.spec.sink = true;
    all.spec.window_left = 90;
    scored("paged 256 softcap alibi sink window i64", all, true, true);
}

void add_hostile(Catalogue& catalogue) {
    for (const auto& [name, test] : hostile_cases())
        add_over_kernels(catalogue, "kernels-clamp", name, test, Splitting::alternate);
}

// More query heads to a KV head than a tile has rows, or a number that divides these badly: such a group may
// be divided, into more parts the longer its sequences are.
void add_groups(Catalogue& catalogue) {
    const auto with = [&](const std::string& name, Case test, bool sink, bool alibi) {
        test.spec.sink = sink;
        test.spec.alibi = alibi;
        add_over_kernels(catalogue, "groups", name, mixed(test), Splitting::both);
        Case decode = with_lengths(test, {1, 0, 1, 2}, {300, 17, 0, 700});
        decode.spec.lse = true;
        add_over_kernels(catalogue, "groups", name + " decode", decode, Splitting::alternate);
    };
    with("71 ragged causal", ragged(causal(attention(DType::bf16, 64, 71, 1))), true, false);
    with("128 paged causal", paged(causal(attention(DType::bf16, 128, 128, 1)), 16, PageOrder::HND), true,
         false);
    with("96 dense alibi", dense(attention(DType::fp16, 64, 192, 2)), false, true);
    with("48 ragged causal alibi", ragged(causal(attention(DType::fp16, 128, 96, 2))), true, true);
    with("33 paged", paged(attention(DType::bf16, 192, 128, 66, 2), 48), false, false);
    with("72 pages of 3", paged(causal(attention(DType::fp16, 128, 144, 2)), 3), true, false);
    Case window = paged(causal(attention(DType::bf16, 256, 40, 1)));
    window.spec.window_left = 60;
    window.spec.softcap = 20.0;
    with("40 paged window softcap", window, true, false);
    // Parts by strides that are no multiples of each other.
    Case padded = dense(causal(attention(DType::bf16, 64, 160, 2)));
    padded.layout = {
        .order = MemoryOrder::bhsd, .o_order = MemoryOrder::sbhd, .pad = 24, .o_pad = 8, .lse_pad = 3};
    with("80 dense [b, h, s, d] padded", padded, true, false);
    // Their last part is smaller than the others: behind its heads come those of the next token.
    with("131 paged alibi", paged(attention(DType::fp16, 128, 131, 1)), true, true);
    Case odd = dense(causal(attention(DType::bf16, 64, 65, 1)));
    odd.layout = {.o_order = MemoryOrder::bhsd, .pad = 16, .o_pad = 24, .lse_pad = 5};
    with("65 dense padded", odd, true, false);
    Case bitwise = paged(causal(attention(DType::bf16, 128, 71, 1)));
    bitwise.spec.consistency = Consistency::bitwise;
    with("71 paged bitwise", bitwise, true, false);
    // Many tiles of many parts: none is lost, none taken twice.
    for (const bool is_causal : {false, true}) {
        const Case base = attention(DType::bf16, 64, 144, 3);
        Case test = with_lengths(ragged(is_causal ? causal(base) : base), {290, 37, 160, 0, 300, 1}, {});
        test.spec.lse = true;
        test.launches = 40;
        add_over_kernels(catalogue, "groups", is_causal ? "48 many causal" : "48 many", test,
                         Splitting::never);
    }
}

// A tile of queries that sees no key writes its zeros while its queries may still be on their way to shared
// memory: only many launches show it.
void add_unseen(Catalogue& catalogue) {
    for (const Dims& dims : {Dims{192, 128}, Dims{256, 256}, Dims{128, 128}}) {
        for (const bool sink : {false, true}) {
            const Case base = causal(attention(DType::bf16, dims.qk, dims.vo, 2, 1));
            // 128/128 has its queries in registers; one kind of storage will do there.
            if (dims.qk == 128 && sink) continue;
            Case test = with_lengths(sink ? paged(base) : ragged(base), {300, 130, 64}, {17, 0, 64});
            test.spec.lse = true;
            test.spec.sink = sink;
            test.launches = 300;
            add_over_kernels(catalogue, "unseen", dims_word(dims) + (sink ? " paged sink" : " ragged"), test,
                             Splitting::never);
            Case split = with_lengths(sink ? ragged(base) : paged(base), {300, 130, 64}, {200, 0, 640});
            split.spec.lse = true;
            split.spec.sink = sink;
            split.launches = 50;
            add_over_kernels(catalogue, "unseen", dims_word(dims) + (sink ? " ragged sink" : " paged"), split,
                             Splitting::always);
        }
    }
}

// Many more tiles than a GPU holds CTAs, in odd and even numbers: a kernel that gives its CTAs tile after
// tile loses none and takes none twice, in every launch.
void add_many_tiles(Catalogue& catalogue) {
    for (const bool is_causal : {false, true}) {
        Case base = attention(DType::bf16, 64, 8, 8);
        if (is_causal) base = causal(base);
        const std::string mask = is_causal ? "causal" : "full";
        const auto with = [&](const std::string& name, Case test, std::vector<std::int64_t> lengths) {
            test = with_lengths(std::move(test), lengths, lengths);
            test.spec.lse = true;
            test.launches = 40;
            add_over_kernels(catalogue, "many", name + " " + mask, test, Splitting::never);
        };
        with("dense 3 tiles of 128 rows", dense(base), std::vector<std::int64_t>(24, 300));
        with("dense 2 tiles of 128 rows", dense(base), std::vector<std::int64_t>(24, 256));
        std::vector<std::int64_t> mixed_lengths;
        for (std::int64_t i = 0; i < 48; ++i) mixed_lengths.push_back(i * 37 % 290);
        with("ragged", ragged(base), mixed_lengths);
        with("paged", paged(base), mixed_lengths);
        with("pages of 5", paged(base, 5), mixed_lengths);
        // Tiles without a key between others, for a CTA that has one behind the other.
        const auto few_keys = [&](const std::string& name, const Case& stored) {
            std::vector<std::int64_t> queries, keys;
            for (std::int64_t i = 0; i < 40; ++i) queries.push_back(150 + i), keys.push_back(i * 7 % 90);
            Case test = with_lengths(stored, queries, keys);
            test.spec.lse = true;
            test.launches = 40;
            add_over_kernels(catalogue, "many", name + " with few keys, " + mask, test, Splitting::never);
            test.spec.attention_chunk = 200;  // hides all keys from the first queries, whatever the mask
            add_over_kernels(catalogue, "many", name + " with few keys, a chunk, " + mask, test,
                             Splitting::never);
        };
        few_keys("ragged", ragged(base));
        few_keys("paged", paged(base));
        Case wide = attention(DType::fp16, 128, 4, 2);
        few_keys("ragged 128", ragged(is_causal ? causal(wide) : wide));
        // Up to 32 are sorted; some are as long, some empty.
        for (const std::int64_t sequences : {1, 5, 32, 33}) {
            std::vector<std::int64_t> lengths;
            for (std::int64_t i = 0; i < sequences; ++i) lengths.push_back((i + 3) * 391 % 7 * 200);
            with(fmt::format("ragged of {}", sequences), ragged(base), lengths);
        }
    }
}

// Little work in each, for tools that slow a kernel down a hundredfold.
void add_small(Catalogue& catalogue, const std::string& what, const std::optional<DType>& o_dtype,
               Precision precision) {
    for (const Dims& dims : {Dims{40, 24}, Dims{64, 64}, Dims{128, 128}, Dims{192, 128}}) {
        Case base = causal(attention(DType::bf16, dims.qk, dims.vo, 2, 1));
        base.spec.o_dtype = o_dtype;
        base.spec.precision = precision;
        const auto with = [&](const std::string& name, const Case& storage) {
            Case test = with_lengths(storage, {20, 7, 1}, {12, 140, 0});
            test.spec.lse = true;
            test.launches = 1;
            add_over_kernels(catalogue, "kernels-small", what + name + " " + dims_word(dims), test,
                             Splitting::alternate);
        };
        with("ragged", ragged(base));
        with("paged", paged(base));
        with("pages of 3", paged(base, 3));
    }
}

}  // namespace

void add_kernels(Catalogue& catalogue) {
    add_dims_and_storage(catalogue);
    add_odd_pages(catalogue);
    add_alignments(catalogue);
    add_layouts(catalogue);
    add_masks_and_scores(catalogue);
    add_hostile(catalogue);
    add_groups(catalogue);
    add_unseen(catalogue);
    add_many_tiles(catalogue);
    add_small(catalogue, "", {}, Precision::standard);
    add_small(catalogue, "to fp32 ", DType::fp32, Precision::standard);
    add_small(catalogue, "high ", DType::fp32, Precision::high);
}

}  // namespace attnsmith::gpu_tests
