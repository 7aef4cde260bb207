// One Call for many batches: lengths change on the device after bind. Lengths and page ids beyond their
// bounds are clamped and reported, and nothing outside the tensors is touched.
#include <fmt/format.h>

#include <limits>

#include "catalogue.hpp"

namespace attnsmith::gpu_tests {
namespace {

using check::IndexArrays;
using check::PageList;

constexpr std::int64_t kHuge = std::numeric_limits<std::int32_t>::max();

Case changing(const Case& base) {
    Case test = with_lengths(base, {64, 1, 100, 17}, {64, 300, 100, 40});
    test = with_lengths(test, {1, 1, 1, 1}, {1, 300, 2, 299});
    test = with_lengths(test, {0, 0, 100, 0}, {0, 9, 0, 300});
    test = with_lengths(test, {100, 100, 100, 100}, {300, 300, 300, 300});
    test = with_lengths(test, {0, 0, 0, 0}, {0, 0, 0, 0});
    test = with_lengths(test, {3, 70, 65, 1}, {128, 64, 65, 7});
    test.spec.lse = true;
    return test;
}

void add_changing(Catalogue& catalogue) {
    for (const DType dtype : {DType::f16, DType::bf16}) {
        const Case base = causal(attention(dtype, 64, 4, 2));
        add(catalogue, "bounds", word(dtype) + " dense", changing(dense(base)));
        add(catalogue, "bounds", word(dtype) + " ragged", changing(ragged(base)));
        add(catalogue, "bounds", word(dtype) + " paged", changing(paged(base)));
        Case compressed = paged(base);
        compressed.page_list = PageList::compressed;
        add(catalogue, "bounds", word(dtype) + " compressed", changing(compressed));
        Case unbounded = changing(paged(base));
        unbounded.give_bounds = false;
        add(catalogue, "bounds", word(dtype) + " none given", unbounded);
        Case roomy = changing(paged(base));
        roomy.max_q_len = 1000;
        roomy.max_kv_len = 5000;
        roomy.slack = 700;
        add(catalogue, "bounds", word(dtype) + " far larger than the batch", roomy);
    }
    Case decode = paged(attention(DType::bf16, 128, 8, 2));
    for (const std::int64_t n : {5000, 1, 64, 4999, 0, 2048})
        decode = with_lengths(decode, {1, 1, 1}, {n, 5000 - n, 77});
    decode.spec.lse = decode.spec.sink = true;
    add(catalogue, "bounds", "decode that grows and shrinks", decode);
}

Case spoiled(Case test, const CallStatus& status, std::function<void(IndexArrays&)> spoil) {
    test.steps.back().status = status;
    test.steps.back().spoil = std::move(spoil);
    test.spec.lse = true;
    return test;
}

constexpr CallStatus kQueries{.q_len_clamped = true};
constexpr CallStatus kKeys{.kv_len_clamped = true};
constexpr CallStatus kPages{.page_out_of_range = true};

// The longest sequence claims more than there is; it must be treated as the longest that was promised.
void add_too_many_keys(Catalogue& catalogue, const Case& base, const std::string& name) {
    const auto claim = [](std::int64_t length) {
        return [length](IndexArrays& arrays) { arrays.kv_lens[1] = length; };
    };
    for (const std::int64_t length : {std::int64_t{161}, kHuge}) {
        const Case test = with_lengths(base, {5, 20, 1}, {40, 160, 33});
        add(catalogue, "clamp", fmt::format("{} kv_lens {}", name, length),
            spoiled(test, kKeys, claim(length)));
    }
    Case bounded = with_lengths(base, {5, 20, 1}, {40, 100, 33});
    bounded.max_kv_len = 100;
    bounded.slack = 60;
    add(catalogue, "clamp", name + " kv_lens within the tensor, past the bound",
        spoiled(bounded, kKeys, claim(130)));
}

void add_too_many_queries(Catalogue& catalogue) {
    const Case base = causal(attention(DType::f16, 64, 4, 2));
    for (const std::int64_t length : {std::int64_t{41}, kHuge}) {
        add(catalogue, "clamp", fmt::format("dense q_lens {}", length),
            spoiled(with_lengths(dense(base), {5, 40, 1}, {90, 90, 33}), kQueries,
                    [length](IndexArrays& arrays) { arrays.q_lens[1] = length; }));
        add(catalogue, "clamp", fmt::format("q_indptr ends at {}", length),
            spoiled(with_lengths(ragged(base), {5, 6, 30}, {90, 90, 33}), kQueries,
                    [length](IndexArrays& arrays) { arrays.q_indptr[3] = length + 1; }));
    }
    // A bound below what the tensor holds: the sequence's first max_q_len tokens are computed, the rest left
    // alone.
    Case bounded = with_lengths(ragged(base), {5, 16, 3}, {90, 90, 33});
    bounded.max_q_len = 16;
    bounded.slack = 10;
    add(catalogue, "clamp", "q_indptr within the tensor, past the bound",
        spoiled(bounded, kQueries,
                [](IndexArrays& arrays) { arrays.q_indptr[2] += 7, arrays.q_indptr[3] += 7; }));
}

void add_ragged_keys(Catalogue& catalogue) {
    for (const std::int64_t end : {std::int64_t{500}, kHuge}) {
        const Case test = with_lengths(ragged(attention(DType::bf16, 64, 4, 2)), {5, 20, 9}, {40, 60, 160});
        add(catalogue, "clamp", fmt::format("kv_indptr ends at {}", end),
            spoiled(test, kKeys, [end](IndexArrays& arrays) { arrays.kv_indptr[3] = end; }));
    }
}

void add_bad_pages(Catalogue& catalogue) {
    for (const std::int64_t page : {std::int64_t{-1}, kHuge, std::int64_t{-2147483647}}) {
        for (const PageList list : {PageList::padded, PageList::compressed}) {
            Case test = paged(causal(attention(DType::f16, 64, 4, 2)));
            test.page_list = list;
            test = with_lengths(test, {30, 20, 1}, {90, 160, 33});
            test = with_lengths(test, {30, 20, 1}, {90, 160, 33});  // and is right again with good ids
            test.steps[0].status = kPages;
            test.steps[0].spoil = [page](IndexArrays& arrays) {
                arrays.page_table[static_cast<std::size_t>(arrays.columns + 3)] = page;
                arrays.page_indices[static_cast<std::size_t>(arrays.page_indptr[1] + 3)] = page;
            };
            test.spec.lse = true;
            add(catalogue, "clamp",
                fmt::format("page {} {}", page, list == PageList::padded ? "padded" : "compressed"), test);
        }
    }
    Case wide = with_lengths(paged(attention(DType::bf16, 128, 8, 2), 3), {1, 1}, {900, 50});
    wide.spec.index_dtype = DType::i64;
    add(catalogue, "clamp", "page 2^40 of i64", spoiled(wide, kPages, [](IndexArrays& arrays) {
            arrays.page_table[17] = std::int64_t{1} << 40;  // its low 32 bits are page 0
        }));
}

void add_nonsense(Catalogue& catalogue) {
    const auto nonsense = [&](const std::string& name, const Case& base,
                              std::function<void(IndexArrays&)> spoil) {
        Case test = spoiled(with_lengths(base, {30, 20, 1}, {90, 160, 33}), {}, std::move(spoil));
        test.steps[0].any_status = test.steps[0].only_safety = true;
        test = with_lengths(test, {30, 20, 1}, {90, 160, 33});  // the Call is not harmed
        add(catalogue, "clamp", name, test);
    };
    const Case base = causal(attention(DType::f16, 64, 4, 2));
    Case compressed = paged(base);
    compressed.page_list = PageList::compressed;
    nonsense("negative kv_lens", paged(base), [](IndexArrays& a) { a.kv_lens = {-1, -2147483647, 5}; });
    nonsense("negative kv_lens of a dense kv", dense(base), [](IndexArrays& a) {
        a.kv_lens = {-1, -2147483647, 5};
    });
    nonsense("negative q_lens", dense(base), [](IndexArrays& a) { a.q_lens = {-1, -2147483647, 1}; });
    nonsense("q_indptr that falls", ragged(base), [](IndexArrays& a) { a.q_indptr = {40, -3, 20, kHuge}; });
    nonsense("kv_indptr that falls", ragged(base), [](IndexArrays& a) {
        a.kv_indptr = {kHuge, 5, -2147483647, 100};
    });
    nonsense("page_indptr that falls", compressed, [](IndexArrays& a) {
        a.page_indptr = {-9, kHuge, -2147483647, 4};
    });
    nonsense("page_indptr past its list", compressed, [](IndexArrays& a) { a.page_indptr[3] = 1000; });
    nonsense("last_page_len past a page", compressed, [](IndexArrays& a) {
        a.last_page_len = {17, kHuge, -1};
    });
    nonsense("all page ids garbage", paged(base), [](IndexArrays& a) {
        for (std::size_t n = 0; n < a.page_table.size(); ++n) a.page_table[n] = n % 2 ? kHuge : -7;
    });
    Case wide = paged(base);
    wide.spec.index_dtype = DType::i64;
    nonsense("lengths of 2^62", wide, [](IndexArrays& a) {
        a.kv_lens = {std::int64_t{1} << 62, std::numeric_limits<std::int64_t>::min(),
                     (std::int64_t{1} << 32) + 5};
        a.q_indptr = {0, std::int64_t{1} << 62, std::int64_t{1} << 33, std::int64_t{1} << 40};
    });
}

}  // namespace

void add_bounds(Catalogue& catalogue) {
    add_changing(catalogue);
    const Case base = causal(attention(DType::f16, 64, 4, 2));
    add_too_many_keys(catalogue, dense(base), "dense");
    add_too_many_keys(catalogue, paged(base), "paged");
    add_too_many_queries(catalogue);
    add_ragged_keys(catalogue);
    add_bad_pages(catalogue);
    add_nonsense(catalogue);
}

}  // namespace attnsmith::gpu_tests
