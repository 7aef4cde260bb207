// The row of a page table that a sequence has, by the kernels' own code.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "device/uncalled.hpp"
#include "support/catch.hpp"

// The headers under another name: other tests compile them with other stubs for the same program.
#define attnsmith attnsmith_of_rows
#define __device__
namespace {

struct Index {
    unsigned x = 0;
};
Index threadIdx;

// For what is not called.
[[maybe_unused]] unsigned __ballot_sync(unsigned, bool) { return 0; }
[[maybe_unused]] int __ffs(unsigned) { return 0; }
[[maybe_unused]] std::uint32_t atomicOr(std::uint32_t*, std::uint32_t) { return 0; }
template <class T>
[[maybe_unused]] T __shfl_up_sync(unsigned, T value, int) {
    return value;
}

}  // namespace
#include "sequences/pages.cuh"
#undef attnsmith

namespace device = attnsmith_of_rows;

namespace {

template <class IndexType>
struct Config {
    using Index = IndexType;
    static constexpr bool paged = true;
};

// Four rows of three pages, five apart; the pages are 10 * row + column, of 40 that there are.
template <class IndexType>
struct Table {
    std::vector<IndexType> ids = std::vector<IndexType>(20, -1);
    std::vector<IndexType> lens{40, 40, 40}, rows{};

    device::abi::AttentionArguments arguments() {
        for (int row = 0; row < 4; ++row)
            for (int column = 0; column < 3; ++column)
                ids[static_cast<std::size_t>(row * 5 + column)] = static_cast<IndexType>(10 * row + column);
        device::abi::AttentionArguments args{};
        args.kv_lens = lens.data();
        args.page_ids = ids.data();
        args.table_rows = rows.empty() ? nullptr : rows.data();
        args.page_row_stride = 5;
        args.page_rows = 4;
        args.pages = 40;
        args.page_list = 3;
        args.batch = 3, args.max_kv_len = 48, args.group = device::abi::divisor_of(1), args.kv_heads = 1;
        return args;
    }

    // The second page of a sequence; below 0: it has none, and no keys.
    std::int64_t second_page(int sequence) {
        const device::abi::AttentionArguments args = arguments();
        std::uint32_t status = 0;
        const device::Sequence found = device::load_sequence<Config<IndexType>>(args, sequence, status);
        CHECK(status == (found.kv_len == 0 ? device::abi::kStatusPageOutOfRange : 0u));
        if (found.kv_len == 0) return -1;
        CHECK(found.kv_len == 40);
        const IndexType* const pages = device::pages_of<IndexType>(args, found);
        CHECK((pages >= ids.data() && pages + 3 <= ids.data() + ids.size()));
        return std::int64_t{pages[1]};
    }
};

}  // namespace

TEMPLATE_TEST_CASE("a sequence has the row of the table that table_rows states", "[device]", std::int32_t,
                   std::int64_t) {
    Table<TestType> table;
    CHECK(table.second_page(0) == 1);
    CHECK(table.second_page(2) == 21);
    table.rows = {2, 0, 2};
    CHECK(table.second_page(0) == 21);
    CHECK(table.second_page(1) == 1);
    CHECK(table.second_page(2) == 21);
}

TEMPLATE_TEST_CASE("a row that the table has not has no pages, and is not read", "[device]", std::int32_t,
                   std::int64_t) {
    using Limits = std::numeric_limits<TestType>;
    for (const TestType row : {TestType{4}, TestType{-1}, Limits::max(), Limits::lowest()}) {
        Table<TestType> table;
        table.rows = {3, row, 0};
        CHECK(table.second_page(0) == 31);
        CHECK(table.second_page(1) == -1);
        CHECK(table.second_page(2) == 1);
    }
}
