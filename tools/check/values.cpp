#include "check/values.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "check/half.hpp"

namespace attnsmith::check {
namespace {

constexpr std::size_t kTableSize = 65536;

std::vector<std::uint16_t> normal_table(DType dtype, double deviation, Random& random) {
    std::vector<std::uint16_t> table(kTableSize);
    for (std::uint16_t& entry : table) {
        const double radius = std::sqrt(-2 * std::log(1 - random.uniform()));
        entry = encode(dtype, deviation * radius * std::cos(2 * std::numbers::pi * random.uniform()));
    }
    return table;
}

// Whole numbers from -8 to 8, times a power of two.
std::vector<std::uint16_t> integer_table(DType dtype, double unit) {
    std::vector<std::uint16_t> table;
    for (int n = -8; n <= 8; ++n) table.push_back(encode(dtype, n * unit));
    return table;
}

std::vector<std::uint16_t> large_table(DType dtype, Random& random) {
    std::vector<std::uint16_t> table(kTableSize);
    for (std::uint16_t& entry : table) entry = encode(dtype, random.uniform(1e4, 6e4));
    return table;
}

// log2 of the unit of q (and of k) for logits in steps of unit(q) * unit(k) * kExactScale. With 64 components
// the logits' deviation is 192 steps and they stay within 24 significant bits.
struct Units {
    int query, key;
};

Units units_of(Values values) {
    switch (values) {
        case Values::spread_1e4:
            return {7, 0};  // steps of 2^4
        case Values::spread_1e6:
            return {7, 7};  // 2^11
        case Values::spread_1e9:
            return {12, 12};  // 2^21
        case Values::spread_1e12:
            return {17, 17};  // 2^31
        case Values::spread_1e30:
            return {47, 47};  // 2^91
        default:
            return {-2, -2};  // offset_*: +-2 in quarters
    }
}

}  // namespace

ValueSource::ValueSource(Values values, DType dtype, std::uint64_t seed)
    : values_(values), dtype_(dtype), seed_(seed), random_(seed) {
    value_table_ =
        values == Values::large_v ? large_table(dtype, random_) : normal_table(dtype, 1.0, random_);
    switch (values) {
        case Values::normal:
        case Values::large_v:
        case Values::equal_logits:
            query_table_ = key_table_ = normal_table(dtype, 1.0, random_);
            break;
        case Values::peaked:
            query_table_ = key_table_ = normal_table(dtype, 2.0, random_);
            break;
        case Values::zero_queries:
            query_table_ = {0};
            key_table_ = normal_table(dtype, 1.0, random_);
            break;
        default:
            query_table_ = integer_table(dtype, std::ldexp(1.0, units_of(values).query));
            key_table_ = integer_table(dtype, std::ldexp(1.0, units_of(values).key));
    }
    // 256 * 320 * kExactScale = 10240.
    if (values == Values::offset_1e4) query_first_ = 256;
    if (values == Values::offset_minus_1e4) query_first_ = -256;
    if (query_first_ != 0) key_first_ = 320;
}

void ValueSource::from_table(std::uint16_t* row, std::int64_t dim, const std::vector<std::uint16_t>& table) {
    // 16 random bits choose an entry; the product's high half maps them evenly enough onto any table size.
    const std::uint32_t size = static_cast<std::uint32_t>(table.size());
    std::uint64_t bits = 0;
    for (std::int64_t d = 0; d < dim; ++d) {
        bits = d % 4 ? bits >> 16 : random_.next();
        row[d] = table[((bits & 0xffff) * size) >> 16];
    }
}

void ValueSource::query(std::uint16_t* row, std::int64_t dim) {
    from_table(row, dim, query_table_);
    if (query_first_ != 0) row[0] = encode(dtype_, query_first_);
}

void ValueSource::key(std::uint16_t* row, std::int64_t dim, std::int64_t head) {
    if (values_ == Values::equal_logits) {
        const Random continued = random_;
        random_ = Random(seed_ + 1 + static_cast<std::uint64_t>(head));
        from_table(row, dim, key_table_);
        random_ = continued;
        return;
    }
    from_table(row, dim, key_table_);
    if (key_first_ != 0) row[0] = encode(dtype_, key_first_);
}

void ValueSource::value(std::uint16_t* row, std::int64_t dim) {
    from_table(row, dim, value_table_);
    if (values_ != Values::large_v) return;
    for (std::int64_t d = 0; d < dim; ++d)
        if (d * 7 % 3 == 0) row[d] ^= 0x8000;
}

}  // namespace attnsmith::check
