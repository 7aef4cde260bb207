// Lengths and page ids beyond their bounds are clamped and reported, and nothing outside the tensors is
// touched. Where the clamped lengths are plain, values are checked, too.
#include <fmt/format.h>

#include <limits>

#include "catalogue.hpp"

namespace attnsmith::gpu_tests {
namespace {

using check::IndexArrays;
using check::PageList;

using Lengths = std::vector<std::int64_t>;
using Spoil = std::function<void(IndexArrays&)>;

constexpr std::int64_t kHuge = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kLowest = -kHuge;
constexpr std::int64_t kLowest64 = std::numeric_limits<std::int64_t>::min();

constexpr std::int64_t power_of_2(int exponent) { return std::int64_t{1} << exponent; }

constexpr CallStatus kQueries{kStatusQLenClamped};
constexpr CallStatus kKeys{kStatusKvLenClamped};
constexpr CallStatus kPages{kStatusPageOutOfRange};
constexpr CallStatus kEverything{kStatusQLenClamped | kStatusKvLenClamped | kStatusPageOutOfRange};

// Some of what the kernel reads of an index array, and what follows.
struct Hostile {
    std::string name;
    Case base;
    Lengths q_lens, kv_lens;  // as clamped
    CallStatus status;
    Spoil spoil;
    // What the lengths become is not promised, so values are not looked at.
    bool only_safety = false;
};

class Cases {
  public:
    // Each is followed by a step with nothing wrong: the Call is not harmed.
    void add(Hostile hostile) {
        Case test = with_lengths(std::move(hostile.base), hostile.q_lens, hostile.kv_lens);
        test.spec.lse = true;
        test = with_lengths(std::move(test), hostile.q_lens, hostile.kv_lens);
        Step& step = test.steps[0];
        step.status = hostile.status;
        step.spoil = std::move(hostile.spoil);
        step.only_safety = hostile.only_safety;
        list_.emplace_back(std::move(hostile.name), std::move(test));
    }

    std::vector<std::pair<std::string, Case>> take() { return std::move(list_); }

  private:
    std::vector<std::pair<std::string, Case>> list_;
};

Case plain() { return causal(attention(DType::fp16, 64, 4, 2)); }

Case compressed() {
    Case test = paged(plain());
    test.page_list = PageList::compressed;
    return test;
}

Case wide(Case test) {
    test.spec.index_dtype = DType::int64;
    return test;
}

// The longest sequence claims more than there is; it must be treated as the longest that was promised.
void too_many_keys(Cases& cases) {
    for (const bool pages : {false, true}) {
        const Case base = pages ? paged(plain()) : dense(plain());
        const std::string name = pages ? "paged" : "dense";
        const auto claim = [](std::int64_t length) -> Spoil {
            return [length](IndexArrays& a) { a.kv_lens[1] = length; };
        };
        for (const std::int64_t length : {std::int64_t{161}, kHuge})
            cases.add({fmt::format("{} kv_lens {}", name, length),
                       base,
                       {5, 20, 1},
                       {40, 160, 33},
                       kKeys,
                       claim(length)});
        cases.add({name + " kv_lens 2^32 + 5",
                   wide(base),
                   {5, 20, 1},
                   {40, 160, 33},
                   kKeys,
                   claim(power_of_2(32) + 5)});
        Case bounded = base;
        bounded.max_kv_len = 100;
        bounded.slack = 60;
        cases.add({name + " kv_lens within the tensor, past the bound",
                   bounded,
                   {5, 20, 1},
                   {40, 100, 33},
                   kKeys,
                   claim(130)});
        cases.add({name + " negative kv_lens", base, {30, 20, 1}, {0, 0, 5}, kKeys, [](IndexArrays& a) {
                       a.kv_lens = {-1, kLowest, 5};
                   }});
    }
    for (const std::int64_t end : {std::int64_t{500}, kHuge})
        cases.add({fmt::format("kv_indptr ends at {}", end),
                   ragged(plain()),
                   {5, 20, 9},
                   {40, 60, 160},
                   kKeys,
                   [end](IndexArrays& a) { a.kv_indptr[3] = end; }});
    cases.add({"kv_indptr ends 2^32 too far",
               wide(ragged(plain())),
               {5, 20, 9},
               {40, 60, 160},
               kKeys,
               [](IndexArrays& a) { a.kv_indptr[3] += power_of_2(32); }});
    cases.add({"kv_indptr that falls",
               ragged(plain()),
               {30, 20, 1},
               {90, 160, 33},
               kKeys,
               [](IndexArrays& a) {
                   a.kv_indptr = {kHuge, 5, kLowest, 100};
               },
               true});
    cases.add({"kv_indptr of 64-bit garbage",
               wide(ragged(plain())),
               {30, 20, 1},
               {90, 160, 33},
               kKeys,
               [](IndexArrays& a) {
                   a.kv_indptr = {power_of_2(62), kLowest64, power_of_2(40), -5};
               },
               true});
}

void too_many_queries(Cases& cases) {
    for (const std::int64_t length : {std::int64_t{41}, kHuge}) {
        cases.add({fmt::format("dense q_lens {}", length),
                   dense(plain()),
                   {5, 40, 1},
                   {90, 90, 33},
                   kQueries,
                   [length](IndexArrays& a) { a.q_lens[1] = length; }});
        cases.add({fmt::format("q_indptr ends at {}", length),
                   ragged(plain()),
                   {5, 6, 30},
                   {90, 90, 33},
                   kQueries,
                   [length](IndexArrays& a) { a.q_indptr[3] = length + 1; }});
    }
    cases.add({"negative q_lens", dense(plain()), {0, 0, 1}, {90, 160, 33}, kQueries, [](IndexArrays& a) {
                   a.q_lens = {-1, kLowest, 1};
               }});
    // A bound below what the tensor holds: the sequence's first max_q_len tokens are computed, the rest left
    // alone.
    Case bounded = ragged(plain());
    bounded.max_q_len = 16;
    bounded.slack = 10;
    cases.add({"q_indptr within the tensor, past the bound",
               bounded,
               {5, 16, 3},
               {90, 90, 33},
               kQueries,
               [](IndexArrays& a) { a.q_indptr[2] += 7, a.q_indptr[3] += 7; }});
    cases.add({"q_indptr that falls",
               ragged(plain()),
               {30, 20, 1},
               {90, 160, 33},
               kQueries,
               [](IndexArrays& a) {
                   a.q_indptr = {40, -3, 20, kHuge};
               },
               true});
    cases.add({"q_indptr from -7",
               ragged(plain()),
               {30, 20, 1},
               {90, 160, 33},
               kQueries,
               [](IndexArrays& a) { a.q_indptr[0] = -7; },
               true});
    cases.add({"lengths of 2^62",
               wide(paged(plain())),
               {30, 20, 1},
               {90, 160, 33},
               kEverything,
               [](IndexArrays& a) {
                   a.kv_lens = {power_of_2(62), kLowest64, power_of_2(32) + 5};
                   a.q_indptr = {0, power_of_2(62), power_of_2(33), power_of_2(40)};
               },
               true});
}

// A sequence whose entry was altered is reported also when no tile is left for it: what had to be altered
// does not depend on how tiles are found.
void altered_without_a_tile(Cases& cases) {
    cases.add(
        {"q_indptr 0 50 60 of 50 tokens", ragged(plain()), {50, 0}, {90, 70}, kQueries, [](IndexArrays& a) {
             a.q_indptr = {0, 50, 60};
         }});
    cases.add({"q_indptr 0 20 20 50 1000 of 50 tokens",
               ragged(plain()),
               {20, 0, 30, 0},
               {90, 70, 30, 5},
               kQueries,
               [](IndexArrays& a) {
                   a.q_indptr = {0, 20, 20, 50, 1000};
               }});
    Case falling = ragged(plain());
    falling.max_q_len = 40;  // so that the last sequence, whose 40 rows are there, is not what is reported
    cases.add({"q_indptr 0 30 10 50 of 50 tokens",
               falling,
               {30, 0, 20},
               {90, 70, 33},
               kQueries,
               [](IndexArrays& a) {
                   a.q_indptr = {0, 30, 10, 50};
               },
               true});
    Lengths q_lens(40, 2), kv_lens(41, 9);  // more than the lanes of a warp
    q_lens.push_back(0);
    cases.add({"the last of 41 sequences ends past the tokens", ragged(plain()), q_lens, kv_lens, kQueries,
               [](IndexArrays& a) { a.q_indptr[41] = 99; }});
}

// A length that no query uses is as wrong as any.
void bad_keys_without_queries(Cases& cases) {
    for (const std::int64_t length : {kHuge, std::int64_t{-1}}) {
        const Spoil spoil = [length](IndexArrays& a) { a.kv_lens[1] = length; };
        const std::string name = fmt::format("kv_lens {} of no queries, ", length);
        cases.add({name + "dense q", dense(plain()), {30, 0, 20}, {90, 80, 33}, kKeys, spoil});
        cases.add({name + "ragged q", paged(plain()), {30, 0, 20}, {90, 80, 33}, kKeys, spoil});
        Case dense_kv = dense(plain());
        dense_kv.q_storage = check::QStorage::ragged;
        cases.add({name + "ragged q, dense kv", dense_kv, {30, 0, 20}, {90, 80, 33}, kKeys, spoil});
    }
    cases.add({"kv_indptr past its end of no queries",
               ragged(plain()),
               {30, 20, 0},
               {90, 80, 33},
               kKeys,
               [](IndexArrays& a) { a.kv_indptr[3] = kHuge; }});
    cases.add({"last_page_len past a page of no queries",
               compressed(),
               {30, 20, 0},
               {90, 80, 33},
               kKeys,
               [](IndexArrays& a) { a.last_page_len[2] = 17; }});
}

void bad_pages(Cases& cases) {
    for (const std::int64_t page : {std::int64_t{-1}, kHuge, kLowest}) {
        for (const PageList list : {PageList::padded, PageList::compressed}) {
            Case base = paged(plain());
            base.page_list = list;
            cases.add({fmt::format("page {} {}", page, list == PageList::padded ? "padded" : "compressed"),
                       base,
                       {30, 20, 1},
                       {90, 160, 33},
                       kPages,
                       [page](IndexArrays& a) {
                           a.page_table[static_cast<std::size_t>(a.columns + 3)] = page;
                           a.page_indices[static_cast<std::size_t>(a.page_indptr[1] + 3)] = page;
                       }});
        }
    }
    for (const PageList list : {PageList::padded, PageList::compressed}) {
        Case base = wide(paged(plain(), 3));
        base.page_list = list;
        cases.add({fmt::format("page 2^40 {}", list == PageList::padded ? "padded" : "compressed"),
                   base,
                   {1, 1},
                   {900, 50},
                   kPages,
                   [](IndexArrays& a) {
                       a.page_table[17] = a.page_indices[17] = power_of_2(40);  // its low 32 bits are page 0
                   }});
    }
    cases.add(
        {"all page ids garbage", paged(plain()), {30, 20, 1}, {90, 160, 33}, kPages, [](IndexArrays& a) {
             for (std::size_t n = 0; n < a.page_table.size(); ++n) a.page_table[n] = n % 2 ? kHuge : -7;
         }});
}

// A sequence whose row the table has not has no keys, and nothing is read for it.
void bad_table_rows(Cases& cases) {
    const auto state = [](std::int64_t row, std::int64_t keys) -> Spoil {
        return [=](IndexArrays& a) { a.table_rows[1] = row, a.kv_lens[1] = keys; };
    };
    for (const std::int64_t page : {std::int64_t{3}, std::int64_t{16}}) {
        Case base = paged(plain(), page);
        base.spare_table_rows = 4;
        for (const std::int64_t row : {std::int64_t{7}, std::int64_t{-1}, kHuge, kLowest}) {
            cases.add({fmt::format("table row {}, pages of {}", row, page),
                       base,
                       {30, 20, 1},
                       {90, 0, 33},
                       kPages,
                       state(row, 80)});
        }
        for (const std::int64_t row : {power_of_2(32) + 2, power_of_2(62), kLowest64}) {
            cases.add({fmt::format("table row {}, pages of {}", row, page),
                       wide(base),
                       {1, 1, 1},
                       {90, 0, 33},
                       kPages,
                       state(row, 80)});
        }
    }
    Case empty = paged(plain());
    empty.spare_table_rows = 0;
    cases.add({"table row of an empty sequence", empty, {30, 20, 1}, {90, 0, 33}, {}, state(kHuge, 0)});
}

void bad_page_lists(Cases& cases) {
    cases.add({"page_indptr that falls",
               compressed(),
               {30, 20, 1},
               {90, 160, 33},
               kKeys,
               [](IndexArrays& a) {
                   a.page_indptr = {-9, kHuge, kLowest, 4};
               },
               true});
    for (const std::int64_t end : {std::int64_t{1000}, kHuge})
        cases.add({fmt::format("page_indptr ends at {}", end),
                   compressed(),
                   {30, 20, 1},
                   {90, 160, 33},
                   kKeys,
                   [end](IndexArrays& a) { a.page_indptr[3] = end; }});
    cases.add({"page_indptr ends 2^32 too far",
               wide(compressed()),
               {30, 20, 1},
               {90, 160, 33},
               kKeys,
               [](IndexArrays& a) { a.page_indptr[3] += power_of_2(32); }});
    cases.add({"page_indptr of 64-bit garbage",
               wide(compressed()),
               {30, 20, 1},
               {90, 160, 33},
               kKeys,
               [](IndexArrays& a) {
                   a.page_indptr = {kLowest64, power_of_2(62), power_of_2(33), power_of_2(40)};
                   a.last_page_len = {power_of_2(40), kLowest64, power_of_2(32) + 5};
               },
               true});
    // Whole pages, so that what is past a page becomes what it was.
    cases.add(
        {"last_page_len past a page", compressed(), {30, 20, 1}, {96, 160, 33}, kKeys, [](IndexArrays& a) {
             a.last_page_len = {17, kHuge, 1};
         }});
    cases.add(
        {"last_page_len 2^32 + 5", wide(compressed()), {30, 20, 1}, {96, 160, 33}, kKeys, [](IndexArrays& a) {
             a.last_page_len[1] = power_of_2(32) + 5;
         }});
    for (const std::int64_t length : {std::int64_t{0}, std::int64_t{-1}, kLowest})
        cases.add({fmt::format("last_page_len {}", length),
                   compressed(),
                   {30, 20, 1},
                   {90, 160, 33},
                   kKeys,
                   [length](IndexArrays& a) { a.last_page_len[0] = length; },
                   true});
}

}  // namespace

std::vector<std::pair<std::string, Case>> hostile_cases() {
    Cases cases;
    too_many_keys(cases);
    too_many_queries(cases);
    altered_without_a_tile(cases);
    bad_keys_without_queries(cases);
    bad_pages(cases);
    bad_table_rows(cases);
    bad_page_lists(cases);
    return cases.take();
}

void add_clamp(Catalogue& catalogue) {
    for (const auto& [name, test] : hostile_cases()) {
        add(catalogue, "clamp", name, test);
        // Rows far apart in memory, so that a write between them is seen.
        Case apart = test;
        apart.layout = {.pad = 8, .o_pad = 24, .lse_pad = 5};
        add(catalogue, "clamp", name + ", padded", apart);
    }
}

}  // namespace attnsmith::gpu_tests
