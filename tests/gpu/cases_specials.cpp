// Numbers that are none: where a NaN or an infinity goes and where it must not; and logits so large that
// their differences are lost if they are rounded first.
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "catalogue.hpp"

namespace attnsmith::gpu_tests {
namespace {

using check::IndexArrays;
using check::PageList;
using check::Planted;
using check::Values;
using Where = Planted::Where;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

Case planted(Case test, std::vector<Planted> numbers) {
    test.steps.back().planted = std::move(numbers);
    test.spec.lse = true;
    return test;
}

// What it is planted into, with every kernel: a small head dim, and one whose queries are not in registers.
std::vector<std::pair<std::string, Case>> hosts() {
    return {{"ragged 64", ragged(attention(DType::bf16, 64, 4, 2))},
            {"paged 64", paged(attention(DType::fp16, 64, 4, 2))},
            {"paged 192/128", paged(attention(DType::bf16, 192, 128, 4, 2))}};
}

Case lengths_of(const Case& base) { return with_lengths(base, {40, 3, 1, 150}, {300, 200, 150, 60}); }

void add_nan(Catalogue& catalogue) {
    for (const auto& [name, base] : hosts()) {
        // A row is the query's own: no other has anything of it.
        add_over_kernels(catalogue, "nan", "in queries, " + name,
                         planted(lengths_of(base), {{Where::q, 0, 5, 1, 3, kNaN},
                                                    {Where::q, 1, 0, -1, 0, kNaN},
                                                    {Where::q, 2, 0, 3, 7, kNaN}}),
                         Splitting::both);
        // Rows before the key do not see it.
        add_over_kernels(catalogue, "nan", "in a key, " + name,
                         planted(lengths_of(causal(base)),
                                 {{Where::k, 0, 280, 0, 3, kNaN}, {Where::k, 1, 199, -1, 0, kNaN}}),
                         Splitting::both);
        // All rows see the value: its component is NaN in all, the others and the LSE are as ever.
        add_over_kernels(catalogue, "nan", "in a value, " + name,
                         planted(lengths_of(base), {{Where::v, 0, 50, 1, 2, kNaN}}), Splitting::both);
        // No keys in any tensor: zeros, whatever the queries are.
        Case keyless = with_lengths(base, {40, 3}, {0, 0});
        keyless.slack = 0;
        add_over_kernels(catalogue, "nan", "in queries without keys, " + name,
                         planted(keyless, {{Where::q, 0, 0, 0, 0, kNaN}, {Where::q, 0, 0, 0, 5, kNaN}}),
                         Splitting::never);
    }
}

void add_infinity(Catalogue& catalogue) {
    for (const auto& [name, base] : hosts()) {
        // A logit of +inf makes a row NaN, one of -inf has no weight; a key's sign with each row decides.
        add_over_kernels(catalogue, "infinity", "in queries and keys, " + name,
                         planted(lengths_of(base), {{Where::q, 0, 5, 1, 3, kInfinity},
                                                    {Where::q, 1, 2, 0, 9, -kInfinity},
                                                    {Where::k, 3, 50, 0, 1, kInfinity},
                                                    {Where::k, 3, 20, 1, 2, -kInfinity}}),
                         Splitting::alternate);
        add_over_kernels(catalogue, "infinity", "in values that all rows see, " + name,
                         planted(lengths_of(base),
                                 {{Where::v, 0, 50, 1, 2, kInfinity}, {Where::v, 1, 199, -1, 0, -kInfinity}}),
                         Splitting::alternate);
    }
    // A softcap makes an infinite logit a finite one.
    Case capped = ragged(attention(DType::bf16, 64, 4, 2));
    capped.spec.softcap = 20.0;
    add_over_kernels(
        catalogue, "infinity", "under a softcap",
        planted(lengths_of(capped), {{Where::q, 0, 5, 1, 3, kInfinity}, {Where::k, 3, 50, 0, 1, -kInfinity}}),
        Splitting::alternate);
}

// Pages that lie wholly left of every row's window, in both kinds of list.
void replace_evicted(IndexArrays& arrays, const Case& test, std::size_t step, std::int64_t page) {
    const std::vector<std::int64_t>& q_lens = test.steps[step].q_lens;
    const std::vector<std::int64_t>& kv_lens = test.steps[step].kv_lens;
    for (std::size_t s = 0; s < q_lens.size(); ++s) {
        const std::int64_t first = std::max<std::int64_t>(0, kv_lens[s] - q_lens[s] - *test.spec.window_left);
        for (std::int64_t n = 0; n < first / test.spec.page_size; ++n) {
            arrays.page_table[s * static_cast<std::size_t>(arrays.columns) + static_cast<std::size_t>(n)] =
                page;
            arrays.page_indices[static_cast<std::size_t>(arrays.page_indptr[s] + n)] = page;
        }
    }
}

// A page of the pool that nobody has: it is full of NaN.
std::int64_t free_page(const IndexArrays& arrays) {
    for (std::int64_t page = 0;; ++page)
        if (std::find(arrays.page_indices.begin(), arrays.page_indices.end(), page) ==
            arrays.page_indices.end())
            return page;
}

Step next_step(const Case& test) {
    Step step = test.steps[0];
    step.same_data = step.evicted = true;
    return step;
}

Case with_eviction(Case test) {
    test.spec.lse = true;
    test.steps.push_back(next_step(test));
    return test;
}

Case with_evicted_pages(Case test) {
    test = with_eviction(std::move(test));
    const Case plain = test;
    using Choose = std::function<std::int64_t(const IndexArrays&)>;
    const Choose choices[] = {[](const IndexArrays&) { return -1; },
                              [](const IndexArrays&) { return std::numeric_limits<std::int32_t>::max(); },
                              free_page,
                              // Given to another sequence, whose last page it is.
                              [](const IndexArrays& a) { return a.page_indices.back(); }};
    for (const Choose& choose : choices) {
        Step step = next_step(plain);
        step.spoil = [plain, choose](IndexArrays& arrays) {
            replace_evicted(arrays, plain, 0, choose(arrays));
        };
        test.steps.push_back(std::move(step));
    }
    return test;
}

Case windowed(Case test, std::int64_t left) {
    test.spec.window_left = left;
    return test;
}

void add_evicted(Catalogue& catalogue) {
    const auto prefill = [](const Case& base) {
        return with_lengths(base, {30, 1, 64, 70, 5}, {300, 257, 64, 200, 500});
    };
    const auto decode = [](const Case& base) {
        return with_lengths(base, {1, 1, 1, 1}, {300, 257, 64, 500});
    };
    const Case small = causal(attention(DType::bf16, 64, 4, 2));
    const Case uneven = causal(attention(DType::fp16, 192, 128, 4, 2));
    add_over_kernels(catalogue, "evicted", "ragged 64", with_eviction(prefill(windowed(ragged(small), 40))),
                     Splitting::both);
    add_over_kernels(catalogue, "evicted", "dense 192/128",
                     with_eviction(prefill(windowed(dense(uneven), 101))), Splitting::both);
    Case around = windowed(ragged(attention(DType::bf16, 64, 4, 2)), 33);
    around.spec.window_right = 9;
    add_over_kernels(catalogue, "evicted", "ragged 64, a window to both sides",
                     with_eviction(prefill(around)), Splitting::alternate);
    add_over_kernels(catalogue, "evicted", "paged 64",
                     with_evicted_pages(prefill(windowed(paged(small), 40))), Splitting::both);
    Case compressed = windowed(paged(uneven, 7), 50);
    compressed.page_list = PageList::compressed;
    add_over_kernels(catalogue, "evicted", "compressed 192/128", with_evicted_pages(prefill(compressed)),
                     Splitting::both);
    add_over_kernels(catalogue, "evicted", "decode 64",
                     with_evicted_pages(decode(windowed(paged(small, 1), 127))), Splitting::both);
    // As planned, with what a model has.
    Case model = windowed(paged(causal(attention(DType::bf16, 128, 8, 2))), 1023);
    add(catalogue, "evicted", "decode 128, window 1024",
        with_evicted_pages(with_lengths(model, {1, 1}, {9000, 1500})));
    add(catalogue, "evicted", "prefill 128, window 1024",
        with_evicted_pages(with_lengths(model, {64, 1}, {3000, 1500})));
}

void add_offsets(Catalogue& catalogue) {
    constexpr std::pair<Values, const char*> kOffsets[] = {
        {Values::offset_3e4, "3e4"}, {Values::offset_1e5, "1.3e5"}, {Values::offset_1e6, "1e6"}};
    for (const auto& [values, size] : kOffsets) {
        for (const DType dtype : {DType::fp16, DType::bf16}) {
            Case base = attention(dtype, 64, 4, 2);
            base.values = values;
            base.spec.scale = 0.125;  // check::kExactScale
            base.spec.lse = true;
            base.plain_overflows = dtype == DType::fp16;
            const std::string name = fmt::format("{} logits near {}", word(dtype), size);
            add_over_kernels(catalogue, "offset", name + " decode",
                             with_lengths(paged(base), {1, 1, 1, 1}, {500, 64, 129, 1}), Splitting::both);
            add_over_kernels(catalogue, "offset", name + " prefill",
                             with_lengths(ragged(causal(base)), {70, 9}, {300, 9}), Splitting::alternate);
        }
    }
}

}  // namespace

void add_specials(Catalogue& catalogue) {
    add_nan(catalogue);
    add_infinity(catalogue);
    add_evicted(catalogue);
    add_offsets(catalogue);
}

}  // namespace attnsmith::gpu_tests
