#include "check/values.hpp"

#include <algorithm>
#include <cmath>

#include "check/small_floats.hpp"

namespace attnsmith::check {
namespace {

constexpr std::size_t kTableSize = 65536;

std::vector<std::uint16_t> make_normal_table(DType dtype, double deviation) {
    Random random(1);
    std::vector<std::uint16_t> table(kTableSize);
    for (std::uint16_t& entry : table) entry = encode(dtype, deviation * random.normal());
    return table;
}

// Made once: they take longer than a small case, and which entries are drawn is random enough.
const std::vector<std::uint16_t>& normal_table(DType dtype, bool wide = false) {
    static const std::vector<std::uint16_t> tables[] = {
        make_normal_table(DType::fp16, 1.0), make_normal_table(DType::fp16, 2.0),
        make_normal_table(DType::bf16, 1.0), make_normal_table(DType::bf16, 2.0)};
    return tables[(dtype == DType::bf16 ? 2 : 0) + (wide ? 1 : 0)];
}

// Whole numbers from -most to most, times a power of two.
std::vector<std::uint16_t> integer_table(DType dtype, double unit, int most) {
    std::vector<std::uint16_t> table;
    for (int n = -most; n <= most; ++n) table.push_back(encode(dtype, n * unit));
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
    int most = 8;
};

// The first components of q and of k, which give all logits q k^T * kExactScale their offset.
struct Offset {
    double query = 0, key = 0;
};

Offset offset_of(Values values) {
    switch (values) {
        case Values::offset_1e4:
            return {256, 320};  // 10240
        case Values::offset_minus_1e4:
            return {-256, 320};
        case Values::offset_3e4:
            return {512, 480};  // 30720
        case Values::offset_1e5:
            return {1024, 1024};  // 2^17
        case Values::offset_1e6:
            return {4096, 2048};  // 2^20
        default:
            return {};
    }
}

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
        case Values::offset_3e4:
        case Values::offset_1e5:
        case Values::offset_1e6:
            return {0, 0, 2};  // q k^T of 2^23 leaves no bit for fractions
        default:
            return {-2, -2};  // offset_*: +-2 in quarters
    }
}

}  // namespace

ValueSource::ValueSource(Values values, DType dtype, std::uint64_t seed)
    : values_(values), dtype_(dtype), seed_(seed), random_(seed) {
    value_table_ = values == Values::large_v ? large_table(dtype, random_) : normal_table(dtype);
    switch (values) {
        case Values::normal:
        case Values::large_v:
        case Values::equal_logits:
            query_table_ = key_table_ = normal_table(dtype);
            break;
        case Values::peaked:
            query_table_ = key_table_ = normal_table(dtype, true);
            break;
        case Values::zero_queries:
            query_table_ = {0};
            key_table_ = normal_table(dtype);
            break;
        default:
            const Units units = units_of(values);
            query_table_ = integer_table(dtype, std::ldexp(1.0, units.query), units.most);
            key_table_ = integer_table(dtype, std::ldexp(1.0, units.key), units.most);
    }
    query_first_ = offset_of(values).query;
    key_first_ = offset_of(values).key;
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
