#include "check/indices.hpp"
#include "problem/ceil_div.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <numeric>

namespace attnsmith::check {
namespace {

std::vector<std::int64_t> running_sum(const std::vector<std::int64_t>& lengths, std::int64_t first) {
    std::vector<std::int64_t> sum{first};
    for (const std::int64_t n : lengths) sum.push_back(sum.back() + n);
    return sum;
}

void list_pages(IndexArrays& arrays, const Case& test, const Capacity& capacity, const Step& step,
                Random& random) {
    std::vector<std::int64_t> pool(static_cast<std::size_t>(capacity.pages));
    std::iota(pool.begin(), pool.end(), 0);
    random.shuffle(pool);
    arrays.columns = capacity.columns;
    arrays.pages = capacity.pages;
    arrays.page_indptr = {0};
    auto next = pool.begin();
    for (const std::int64_t length : step.kv_lens) {
        const std::int64_t count = problem::ceil_div(length, test.spec.page_size);
        for (std::int64_t column = 0; column < capacity.columns; ++column)
            arrays.page_table.push_back(column < count ? next[column]
                                                       : garbage_index(arrays.page_table.size()));
        arrays.page_indices.insert(arrays.page_indices.end(), next, next + count);
        arrays.page_indptr.push_back(arrays.page_indptr.back() + count);
        arrays.last_page_len.push_back(count ? length - (count - 1) * test.spec.page_size
                                             : test.spec.page_size);
        next += count;
    }
}

// Gives the sequences rows of a larger table, in no order; what the others hold is garbage.
void scatter_rows(IndexArrays& arrays, const Case& test, const Capacity& capacity, Random& random) {
    std::vector<std::int64_t> rows(static_cast<std::size_t>(capacity.batch + *test.spare_table_rows));
    std::iota(rows.begin(), rows.end(), 0);
    random.shuffle(rows);
    std::vector<std::int64_t> table(rows.size() * static_cast<std::size_t>(arrays.columns));
    for (std::size_t n = 0; n < table.size(); ++n) table[n] = garbage_index(n);
    rows.resize(static_cast<std::size_t>(capacity.batch));
    for (std::size_t s = 0; s < rows.size(); ++s) {
        std::copy_n(arrays.page_table.begin() + static_cast<std::ptrdiff_t>(s) * arrays.columns,
                    arrays.columns, table.begin() + rows[s] * arrays.columns);
    }
    arrays.page_table = std::move(table);
    arrays.table_rows = std::move(rows);
}

void put(std::byte* to, std::int64_t value, DType dtype) {
    if (dtype == DType::int64) {
        std::memcpy(to, &value, sizeof value);
        return;
    }
    const auto narrow = static_cast<std::int32_t>(std::clamp<std::int64_t>(
        value, std::numeric_limits<std::int32_t>::min(), std::numeric_limits<std::int32_t>::max()));
    std::memcpy(to, &narrow, sizeof narrow);
}

}  // namespace

std::int64_t garbage_index(std::size_t n) {
    static constexpr std::array<std::int64_t, 6> kGarbage{
        std::numeric_limits<std::int32_t>::max(), -7, std::int64_t{1} << 40,
        std::numeric_limits<std::int64_t>::min(), -1, 1000003};
    return kGarbage[n % kGarbage.size()];
}

IndexArrays make_indices(const Case& test, const Capacity& capacity, const Step& step, Random& random) {
    IndexArrays arrays;
    arrays.q_lens = step.q_lens;
    arrays.kv_lens = step.kv_lens;
    arrays.q_indptr = running_sum(step.q_lens, test.first_token);
    arrays.kv_indptr = running_sum(step.kv_lens, test.first_token);
    if (test.spec.kv == KvStorage::paged) list_pages(arrays, test, capacity, step, random);
    if (test.spare_table_rows) scatter_rows(arrays, test, capacity, random);
    return arrays;
}

IndexImage encode_indices(const std::vector<std::int64_t>& values, const IndexShape& shape, DType dtype) {
    const auto size = static_cast<std::size_t>(size_of(dtype));
    const auto elements = static_cast<std::size_t>(shape.rows * shape.row_stride);
    IndexImage image{std::vector<std::byte>(elements * size + 2 * kGuardBytes), kGuardBytes};
    for (std::size_t n = 0; n < image.bytes.size() / size; ++n)
        put(image.bytes.data() + n * size, garbage_index(n), dtype);
    const auto columns = static_cast<std::size_t>(shape.columns);
    for (std::size_t n = 0; n < values.size() && columns > 0; ++n) {
        const std::size_t element = n / columns * static_cast<std::size_t>(shape.row_stride) + n % columns;
        put(image.bytes.data() + image.first + element * size, values[n], dtype);
    }
    return image;
}

}  // namespace attnsmith::check
