// Where keys and values lie: dense, ragged, paged; and strides that no layout's name would give.
#include <fmt/format.h>

#include "catalogue.hpp"

namespace attnsmith::gpu_tests {
namespace {

using check::Layout;
using check::MemoryOrder;
using check::PageList;

const std::vector<std::int64_t> kQueries{70, 1, 0, 33, 129};
const std::vector<std::int64_t> kKeys{300, 64, 17, 33, 100};

void add_dense(Catalogue& catalogue) {
    for (const DType dtype : {DType::fp16, DType::bf16}) {
        for (const DType index : {DType::int32, DType::int64}) {
            Case base = dense(attention(dtype, 64, 4, 2));
            base.spec.index_dtype = index;
            base.spec.lse = true;
            const std::string name = word(dtype) + (index == DType::int32 ? " i32" : " i64");
            add(catalogue, "dense", name + " lengths", with_lengths(base, kQueries, kKeys));
            Case slack = with_lengths(causal(base), kQueries, kKeys);
            slack.slack = 37;
            add(catalogue, "dense", name + " slack", slack);
            slack.give_bounds = false;
            add(catalogue, "dense", name + " slack, no bounds", slack);
            Case full = with_lengths(base, {90, 90}, {140, 140});
            full.always_lens = true;
            add(catalogue, "dense", name + " lengths that fill", full);
        }
    }
}

void add_ragged(Catalogue& catalogue) {
    for (const DType dtype : {DType::fp16, DType::bf16}) {
        for (const DType index : {DType::int32, DType::int64}) {
            Case base = with_lengths(ragged(causal(attention(dtype, 128, 4, 1))), kQueries, kKeys);
            base.spec.index_dtype = index;
            const std::string name = word(dtype) + (index == DType::int32 ? " i32" : " i64");
            add(catalogue, "ragged", name, base);
            base.slack = 50;
            base.first_token = 13;
            base.spec.lse = true;
            add(catalogue, "ragged", name + " in the middle of a buffer", base);
            base.give_bounds = false;
            add(catalogue, "ragged", name + " no bounds", base);
        }
    }
    // Queries and keys stored differently.
    Case dense_q = with_lengths(ragged(attention(DType::fp16, 64, 4, 2)), {9, 30, 2}, {100, 20, 64});
    dense_q.q_storage = check::QStorage::dense;
    add(catalogue, "ragged", "dense q, ragged kv", dense_q);
    Case dense_kv = with_lengths(dense(attention(DType::fp16, 64, 4, 2)), {9, 30, 2}, {100, 20, 64});
    dense_kv.q_storage = check::QStorage::ragged;
    add(catalogue, "ragged", "ragged q, dense kv", dense_kv);
}

// 5 page sizes x 2 orders x 2 lists x one or two tensors; dtypes and index types alternate.
void add_page_grid(Catalogue& catalogue) {
    int n = 0;
    for (const std::int64_t page : {1, 3, 16, 64, 256}) {
        for (const PageOrder order : {PageOrder::NHD, PageOrder::HND}) {
            for (const PageList list : {PageList::padded, PageList::compressed}) {
                for (const bool one_tensor : {false, true}) {
                    Case base = paged(attention(n % 2 ? DType::fp16 : DType::bf16, 64, 8, 2), page, order);
                    base.spec.index_dtype = n % 3 ? DType::int32 : DType::int64;
                    base.page_list = list;
                    base.layout.one_kv_tensor = one_tensor;
                    base.layout.table_pad = n % 4;
                    base.slack = n % 5;
                    base.spec.lse = n % 2;
                    const std::string name = fmt::format(
                        "page {} {} {}{}", page, order == PageOrder::NHD ? "NHD" : "HND",
                        list == PageList::padded ? "padded" : "compressed", one_tensor ? " one tensor" : "");
                    add(catalogue, "paged", name + " prefill", with_lengths(causal(base), kQueries, kKeys));
                    add(catalogue, "paged", name + " decode",
                        with_lengths(base, {1, 1, 1, 1, 1}, {1, 600, 0, 255, 256}));
                    ++n;
                }
            }
        }
    }
}

void add_shared_pages(Catalogue& catalogue) {
    Case test = with_lengths(paged(causal(attention(DType::bf16, 128, 4, 2))), {20, 30, 1}, {200, 210, 190});
    // Sequences 1 and 2 begin with the pages of sequence 0, as after a cached prompt.
    test.steps[0].spoil = [](check::IndexArrays& arrays) {
        for (std::int64_t s : {1, 2})
            for (std::int64_t page = 0; page < 8; ++page)
                arrays.page_table[static_cast<std::size_t>(s * arrays.columns + page)] =
                    arrays.page_table[static_cast<std::size_t>(page)];
    };
    add(catalogue, "paged", "shared prefix", test);
    Case no_bounds = with_lengths(paged(causal(attention(DType::bf16, 128, 4, 2))), kQueries, kKeys);
    no_bounds.give_bounds = false;
    no_bounds.slack = 3;
    add(catalogue, "paged", "no bounds", no_bounds);
    Case dense_q = with_lengths(paged(causal(attention(DType::fp16, 128, 4, 2))), {4, 4, 3}, {200, 4, 100});
    dense_q.q_storage = check::QStorage::dense;
    add(catalogue, "paged", "dense q", dense_q);
}

// Sequences take their rows of a table from table_rows, which changes between the steps of one Call.
void add_table_rows(Catalogue& catalogue) {
    for (const std::int64_t page : {3, 16, 64}) {
        for (const DType index : {DType::int32, DType::int64}) {
            Case base = paged(attention(page == 64 ? DType::fp16 : DType::bf16, 128, 8, 2), page);
            base.spec.index_dtype = index;
            base.spare_table_rows = page == 16 ? 0 : 7;
            base.layout.table_pad = page % 4;
            base.spec.lse = true;
            const std::string name =
                fmt::format("table rows, page {} {}", page, index == DType::int32 ? "int32" : "int64");
            Case prefill = with_lengths(causal(base), kQueries, kKeys);
            prefill = with_lengths(std::move(prefill), kQueries, kKeys);
            add(catalogue, "paged", name + " prefill", prefill);
            Case decode = with_lengths(base, {1, 1, 1, 1, 1}, {1, 600, 0, 255, 256});
            decode = with_lengths(std::move(decode), {1, 1, 1, 1, 1}, {600, 1, 256, 255, 0});
            add(catalogue, "paged", name + " decode", decode);
        }
    }
    Case one_row =
        with_lengths(paged(causal(attention(DType::bf16, 128, 4, 2))), {20, 30, 1}, {200, 200, 200});
    one_row.spare_table_rows = 2;
    one_row.steps[0].spoil = [](check::IndexArrays& arrays) {
        arrays.table_rows[1] = arrays.table_rows[2] = arrays.table_rows[0];
    };
    add(catalogue, "paged", "table rows, one for all", one_row);
}

Case laid_out(Case test, const Layout& layout) {
    test.layout = layout;
    test.spec.lse = true;
    return test;
}

void add_views(Catalogue& catalogue) {
    const Case equal = attention(DType::fp16, 64, 4, 4);
    const Case grouped = attention(DType::bf16, 64, 6, 2);
    const Layout packed{.packed_qkv = true};
    const Layout packed_sbhd{.order = MemoryOrder::sbhd, .o_order = MemoryOrder::sbhd, .packed_qkv = true};
    const Layout packed_to_wider{.packed_qkv = true, .o_pad = 24, .lse_pad = 5};
    add(catalogue, "strides", "slice of packed [b, s, 3, h, d]",
        with_lengths(laid_out(dense(causal(equal)), packed), {130, 130}));
    add(catalogue, "strides", "slice of packed [b, s, h + 2g, d]",
        with_lengths(laid_out(dense(causal(grouped)), packed), {130, 70}));
    add(catalogue, "strides", "slice of packed [tokens, 3, h, d]",
        with_lengths(laid_out(ragged(causal(equal)), packed), {90, 0, 33, 64}));
    add(catalogue, "strides", "slice of packed [tokens, (h + 2g) d]",
        with_lengths(laid_out(ragged(causal(grouped)), packed_to_wider), {90, 0, 33, 64}));
    add(catalogue, "strides", "fused GQA [s, b, h + 2g, d]",
        with_lengths(laid_out(dense(causal(grouped)), packed_sbhd), {100, 100, 100}));
    const Layout transposed{.order = MemoryOrder::bhsd, .o_order = MemoryOrder::bhsd};
    const Layout to_bshd{.order = MemoryOrder::bhsd};
    const Layout sbhd{.order = MemoryOrder::sbhd, .o_order = MemoryOrder::sbhd};
    add(catalogue, "strides", "[b, h, s, d] transposed",
        with_lengths(laid_out(dense(causal(grouped)), transposed), {100, 129}, {300, 129}));
    add(catalogue, "strides", "[b, h, s, d] to [b, s, h, d]",
        with_lengths(laid_out(dense(grouped), to_bshd), {100, 129}, {300, 129}));
    add(catalogue, "strides", "[s, b, h, d]",
        with_lengths(laid_out(dense(grouped), sbhd), {100, 129}, {300, 129}));
    add(catalogue, "strides", "[h, tokens, d]",
        with_lengths(laid_out(ragged(causal(grouped)), transposed), kQueries, kKeys));
    const Layout lse_first{.lse_pad = 3, .lse_heads_first = true};
    add(catalogue, "strides", "lse [b, h, s]",
        with_lengths(laid_out(dense(causal(grouped)), lse_first), {100, 129}, {300, 129}));
    add(catalogue, "strides", "lse [h, tokens]",
        with_lengths(laid_out(ragged(causal(grouped)), lse_first), kQueries, kKeys));
    add(catalogue, "strides", "lse [h, tokens] under split",
        with_lengths(laid_out(paged(grouped), lse_first), {1, 1, 1}, {5000, 0, 333}));
    add(catalogue, "strides", "keys and values in one tensor",
        with_lengths(laid_out(dense(grouped), {.one_kv_tensor = true}), {100, 9}, {90, 200}));
    add(catalogue, "strides", "keys and values in one ragged tensor",
        with_lengths(laid_out(ragged(grouped), {.one_kv_tensor = true, .pad = 8}), kQueries, kKeys));
}

void add_wider(Catalogue& catalogue) {
    for (const std::int64_t pad : {8, 24, 56, 136}) {
        const Layout wide{.pad = pad, .o_pad = pad + 8, .lse_pad = 3};
        const std::string name = fmt::format("wider by {}", pad);
        const Case base = attention(DType::bf16, 128, 4, 2);
        add(catalogue, "strides", name + " dense",
            with_lengths(laid_out(dense(causal(base)), wide), kQueries, kKeys));
        add(catalogue, "strides", name + " ragged",
            with_lengths(laid_out(ragged(causal(base)), wide), kQueries, kKeys));
        add(catalogue, "strides", name + " paged",
            with_lengths(laid_out(paged(causal(base)), wide), kQueries, kKeys));
        add(catalogue, "strides", name + " decode HND",
            with_lengths(laid_out(paged(base, 16, PageOrder::HND), wide), {1, 1, 1, 1, 1},
                         {1, 600, 0, 255, 256}));
    }
}

// Tensors that were expanded: an axis of stride 0 shows the same memory at every index.
void add_broadcasts(Catalogue& catalogue) {
    const Case base = causal(attention(DType::bf16, 64, 6, 2));
    const auto with = [&](const std::string& name, const Case& storage, const Layout& layout) {
        add(catalogue, "broadcast", name,
            with_lengths(laid_out(storage, layout), {100, 9, 1}, {90, 200, 64}));
    };
    with("k and v over sequences", dense(base), {.kv_broadcast = {0}});
    with("k and v over tokens", dense(base), {.kv_broadcast = {1}});
    with("k and v over heads", dense(base), {.kv_broadcast = {2}});
    with("k and v over everything", dense(base), {.kv_broadcast = {0, 1, 2}});
    with("q over sequences", dense(base), {.q_broadcast = {0}});
    with("q over tokens and heads", dense(base), {.q_broadcast = {1, 2}});
    with("ragged k and v over tokens", ragged(base), {.kv_broadcast = {0}});
    with("ragged q, k and v over heads", ragged(base), {.q_broadcast = {1}, .kv_broadcast = {1}});
    with("pages", paged(base), {.kv_broadcast = {0}});
    with("slots of pages", paged(base), {.kv_broadcast = {1}});
    with("heads of pages HND", paged(base, 16, PageOrder::HND), {.kv_broadcast = {1}});
    Case decode = laid_out(paged(attention(DType::fp16, 128, 8, 2)), {.kv_broadcast = {0}});
    decode.sizes = PlanSizes{1, 1, 8000};
    add(catalogue, "broadcast", "pages under split", with_lengths(decode, {1, 1}, {900, 300}));
}

void add_alignment(Catalogue& catalogue) {
    for (const int alignment : {8, 4, 2}) {
        for (const DType dtype : {DType::fp16, DType::bf16}) {
            const std::int64_t unit = alignment / 2;  // elements
            // Bases and strides that meet this class and no higher one.
            const Layout layout{.pad = unit, .o_pad = unit, .lse_pad = 1, .base = unit};
            Case base = attention(dtype, 64, 4, 2);
            base.spec.alignment = alignment;
            const std::string name = fmt::format("{} {} bytes", word(dtype), alignment);
            add(catalogue, "alignment", name + " dense",
                with_lengths(laid_out(dense(causal(base)), layout), kQueries, kKeys));
            add(catalogue, "alignment", name + " ragged",
                with_lengths(laid_out(ragged(base), layout), kQueries, kKeys));
            add(catalogue, "alignment", name + " paged",
                with_lengths(laid_out(paged(causal(base)), layout), kQueries, kKeys));
            add(catalogue, "alignment", name + " decode",
                with_lengths(laid_out(paged(base, 3, PageOrder::HND), layout), {1, 1, 1, 1, 1},
                             {1, 600, 0, 255, 256}));
            Case odd_dim = with_lengths(laid_out(ragged(causal(base)), layout), kQueries, kKeys);
            odd_dim.spec.head_dim_qk = 40;
            odd_dim.spec.head_dim_vo = 24;
            add(catalogue, "alignment", name + " dims 40/24", odd_dim);
        }
    }
}

}  // namespace

void add_storage(Catalogue& catalogue) {
    add_dense(catalogue);
    add_ragged(catalogue);
    add_page_grid(catalogue);
    add_shared_pages(catalogue);
    add_table_rows(catalogue);
}

void add_strides(Catalogue& catalogue) {
    add_views(catalogue);
    add_wider(catalogue);
    add_broadcasts(catalogue);
    add_alignment(catalogue);
}

}  // namespace attnsmith::gpu_tests
