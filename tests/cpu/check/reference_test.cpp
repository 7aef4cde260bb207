// The fp64 reference that the GPU suite trusts: its number formats against known values, its attention
// against a brute force in long double that was written apart from it, and where it thinks that tensors lie.
#include "check/reference.hpp"

#include <bit>
#include <cmath>
#include <limits>
#include <set>
#include <vector>

#include "check/placement.hpp"
#include "check/random.hpp"
#include "check/small_floats.hpp"
#include "check/tolerance.hpp"
#include "support/catch.hpp"

using namespace attnsmith;
using namespace attnsmith::check;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Problem {
    AttentionSpec spec;
    std::vector<SequenceLengths> sequences;
    std::vector<float> sinks, slopes;
    std::vector<std::uint16_t> q, k, v;  // [sequence][token 0..63][head][dim], one stride for all
    static constexpr std::int64_t kTokens = 400;

    const std::uint16_t* at(const std::vector<std::uint16_t>& data, std::int64_t s, std::int64_t t,
                            std::int64_t h, std::int64_t heads, std::int64_t dim) const {
        return data.data() + ((s * kTokens + t) * heads + h) * dim;
    }
    const std::uint16_t* query(std::int64_t s, std::int64_t t, std::int64_t h) const {
        return at(q, s, t, h, spec.q_heads, spec.head_dim_qk);
    }
    const std::uint16_t* key(std::int64_t s, std::int64_t t, std::int64_t h) const {
        return at(k, s, t, h, spec.kv_heads, spec.head_dim_qk);
    }
    const std::uint16_t* value(std::int64_t s, std::int64_t t, std::int64_t h) const {
        return at(v, s, t, h, spec.kv_heads, spec.head_dim_vo);
    }

    ReferenceInput input() const {
        return {spec,
                sequences,
                [this](auto s, auto t, auto h) { return query(s, t, h); },
                [this](auto s, auto t, auto h) { return key(s, t, h); },
                [this](auto s, auto t, auto h) { return value(s, t, h); },
                sinks,
                slopes};
    }
};

std::vector<std::uint16_t> random_values(std::size_t count, DType dtype, Random& random) {
    std::vector<std::uint16_t> values(count);
    for (auto& value : values) value = encode(dtype, random.uniform(-2, 2));
    return values;
}

Problem make_problem(const AttentionSpec& spec, std::vector<SequenceLengths> sequences) {
    Random random(7);
    Problem p{spec, std::move(sequences), {}, {}, {}, {}, {}};
    const auto tokens = p.sequences.size() * static_cast<std::size_t>(Problem::kTokens);
    p.q =
        random_values(tokens * static_cast<std::size_t>(spec.q_heads * spec.head_dim_qk), spec.dtype, random);
    p.k = random_values(tokens * static_cast<std::size_t>(spec.kv_heads * spec.head_dim_qk), spec.dtype,
                        random);
    p.v = random_values(tokens * static_cast<std::size_t>(spec.kv_heads * spec.head_dim_vo), spec.dtype,
                        random);
    for (std::int64_t h = 0; h < spec.q_heads; ++h) {
        p.sinks.push_back(static_cast<float>(random.uniform(-1, 3)));
        p.slopes.push_back(static_cast<float>(random.uniform(0.01, 0.5)));
    }
    return p;
}

// A number format by its definition, for the brute force alone.
long double number(DType dtype, std::uint16_t bits) {
    if (dtype == DType::bf16) return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
    const int exponent = (bits >> 10) & 31;
    const long double significand = bits & 1023;
    const long double magnitude =
        exponent == 0 ? significand * 0x1p-24L : (1 + significand / 1024) * std::pow(2.0L, exponent - 15);
    return bits >> 15 ? -magnitude : magnitude;
}

struct Row {
    std::vector<long double> out;
    long double lse = 0;
};

bool sees(const AttentionSpec& spec, std::int64_t i, std::int64_t j) {
    const std::int64_t ahead = j - i;
    if (spec.mask == Mask::causal) {
        const auto block_of = [&](std::int64_t position) {
            return std::floor(static_cast<long double>(position) /
                              static_cast<long double>(spec.causal_block.value_or(1)));
        };
        if (block_of(j) > block_of(i)) return false;
    }
    if (spec.window_left && -ahead > *spec.window_left) return false;
    if (spec.window_right && ahead > *spec.window_right) return false;
    if (!spec.attention_chunk) return true;
    const long double length = static_cast<long double>(*spec.attention_chunk);
    return std::floor(static_cast<long double>(i) / length) ==
           std::floor(static_cast<long double>(j) / length);
}

Row brute_force(const Problem& p, std::int64_t s, std::int64_t t, std::int64_t head) {
    const AttentionSpec& spec = p.spec;
    const SequenceLengths& n = p.sequences[static_cast<std::size_t>(s)];
    const std::int64_t i = n.kv - (n.q - t),
                       group = spec.q_heads / spec.kv_heads;  // the last query is at kv - 1
    const auto h = static_cast<std::size_t>(head);
    long double denominator = spec.sink ? std::exp(static_cast<long double>(p.sinks[h])) : 0;
    Row row{std::vector<long double>(static_cast<std::size_t>(spec.head_dim_vo)), 0};
    for (std::int64_t j = 0; j < n.kv; ++j) {
        if (!sees(spec, i, j)) continue;
        long double logit = 0;
        for (std::int64_t d = 0; d < spec.head_dim_qk; ++d)
            logit +=
                number(spec.dtype, p.query(s, t, head)[d]) * number(spec.dtype, p.key(s, j, head / group)[d]);
        logit *= spec.scale ? static_cast<long double>(*spec.scale)
                            : 1 / std::sqrt(static_cast<long double>(spec.head_dim_qk));
        if (spec.softcap) logit = *spec.softcap * std::tanh(logit / *spec.softcap);
        if (spec.alibi) logit += p.slopes[h] * static_cast<long double>(j - i);
        const long double weight = std::exp(logit);
        denominator += weight;
        for (std::size_t d = 0; d < row.out.size(); ++d)
            row.out[d] += weight * number(spec.dtype, p.value(s, j, head / group)[d]);
    }
    for (long double& x : row.out) x = denominator > 0 ? x / denominator : 0;
    row.lse = std::log(denominator);
    return row;
}

void expect_brute_force(const Problem& p, int threads = 2) {
    const std::vector<QueryRow> rows = all_rows(p.sequences);
    const Reference got = compute_reference(p.input(), rows, threads);
    const auto dim = static_cast<std::size_t>(p.spec.head_dim_vo);
    std::size_t line = 0;
    for (const QueryRow& row : rows) {
        for (std::int64_t head = 0; head < p.spec.q_heads; ++head, ++line) {
            const Row want = brute_force(p, row.sequence, row.query, head);
            INFO("sequence " << row.sequence << " query " << row.query << " head " << head);
            if (std::isinf(want.lse))
                REQUIRE(got.lse[line] == -kInfinity);
            else
                REQUIRE(std::fabs(got.lse[line] - static_cast<double>(want.lse)) < 1e-12);
            for (std::size_t d = 0; d < dim; ++d) {
                REQUIRE(std::fabs(got.out[line * dim + d] - static_cast<double>(want.out[d])) < 1e-12);
                REQUIRE(std::fabs(got.low[line * dim + d] - got.out[line * dim + d]) < 0.1);
            }
        }
    }
}

AttentionSpec small_spec(DType dtype) {
    AttentionSpec spec;
    spec.dtype = dtype;
    spec.head_dim_qk = 16;
    spec.head_dim_vo = 8;
    spec.q_heads = 4;
    spec.kv_heads = 2;
    return spec;
}

const std::vector<SequenceLengths> kMixed{{5, 5}, {3, 20}, {9, 4}, {0, 7}, {4, 0}, {1, 300}, {40, 150}};

}  // namespace

TEST_CASE("half formats: known values", "[check]") {
    CHECK(encode(DType::fp16, 1.0) == 0x3c00);
    CHECK(encode(DType::fp16, -2.0) == 0xc000);
    CHECK(encode(DType::fp16, 65504.0) == 0x7bff);
    CHECK(encode(DType::fp16, 65519.999) == 0x7bff);
    CHECK(encode(DType::fp16, 65520.0) == 0x7c00);
    CHECK(encode(DType::fp16, 1e300) == 0x7c00);
    CHECK(encode(DType::fp16, 0x1p-14) == 0x0400);
    CHECK(encode(DType::fp16, 0x1p-24) == 0x0001);
    CHECK(encode(DType::fp16, 0x1p-25) == 0x0000);  // tie to even
    CHECK(encode(DType::fp16, 0x1.8p-24) == 0x0002);
    CHECK(encode(DType::fp16, 0x1.ffcp-15) == 0x0400);  // rounds up into the normals
    CHECK(encode(DType::fp16, 1.0 / 3) == 0x3555);
    CHECK(encode(DType::fp16, 1 + 0x1p-11) == 0x3c00);
    CHECK(encode(DType::fp16, 1 + 0x3p-11) == 0x3c02);
    CHECK(encode(DType::fp16, 1 + 0x1p-11 + 0x1p-40) == 0x3c01);  // would be lost by rounding through float
    CHECK(encode(DType::fp16, -0.0) == 0x8000);
    CHECK(encode(DType::bf16, 1.0) == 0x3f80);
    CHECK(encode(DType::bf16, 1.0 / 3) == 0x3eab);
    CHECK(encode(DType::bf16, 3.140625) == 0x4049);
    CHECK(encode(DType::bf16, 0x1p-133) == 0x0001);
    CHECK(encode(DType::bf16, 0x1.fep127) == 0x7f7f);
    CHECK(encode(DType::bf16, 0x1.ffp127) == 0x7f80);
    CHECK(encode(DType::bf16, -kInfinity) == 0xff80);
    CHECK(std::isnan(decode(DType::fp16, encode(DType::fp16, std::nan("")))));
    CHECK(std::isnan(decode(DType::bf16, encode(DType::bf16, std::nan("")))));
}

TEST_CASE("half formats: every pattern comes back, and each rounding agrees with the others", "[check]") {
    for (const DType dtype : {DType::fp16, DType::bf16}) {
        for (std::uint32_t bits = 0; bits < 65536; ++bits) {
            const double value = decode(dtype, static_cast<std::uint16_t>(bits));
            if (std::isnan(value)) continue;
            REQUIRE(encode(dtype, value) == bits);
            REQUIRE(round_to(dtype, value) == value);
            if (std::isfinite(value))
                REQUIRE(static_cast<long double>(value) == number(dtype, static_cast<std::uint16_t>(bits)));
        }
        Random random(3);
        for (int n = 0; n < 200000; ++n) {
            const double value =
                std::ldexp(random.uniform(-1, 1), static_cast<int>(random.integer(-160, 140)));
            REQUIRE(round_to(dtype, value) == decode(dtype, encode(dtype, value)));
            // Halfway between two neighbours, where evenness decides.
            const auto bits = static_cast<std::uint16_t>(random.integer(0, 0x7b00));
            const double middle =
                (decode(dtype, bits) + decode(dtype, static_cast<std::uint16_t>(bits + 1))) / 2;
            REQUIRE(encode(dtype, middle) == (bits % 2 ? bits + 1 : bits));
            REQUIRE(round_to(dtype, middle) == decode(dtype, encode(dtype, middle)));
        }
    }
}

TEST_CASE("the reference agrees with a brute force over all features", "[check]") {
    const std::optional<std::int64_t> windows[] = {{}, 0, 3, 130};
    for (int bits = 0; bits < 16; ++bits) {
        for (const auto& left : windows) {
            for (const auto& right : windows) {
                AttentionSpec spec = small_spec(bits % 3 ? DType::fp16 : DType::bf16);
                if (bits & 1) spec.mask = Mask::causal;
                if (bits & 2) spec.softcap = 1.5;
                spec.alibi = bits & 4;
                spec.sink = bits & 8;
                if (bits & 1) spec.scale = 0.3;
                spec.window_left = left;
                spec.window_right = right;
                if (bits & 4) spec.attention_chunk = right ? 7 : 3;
                expect_brute_force(make_problem(spec, {{5, 5}, {3, 20}, {9, 4}, {0, 7}, {4, 0}, {2, 140}}));
            }
        }
    }
}

TEST_CASE("a query of a causal mask sees its whole block", "[check]") {
    AttentionSpec spec = small_spec(DType::fp16);
    spec.mask = Mask::causal;
    for (const std::int64_t block : {1, 2, 64, 100, 1000}) {
        spec.causal_block = block;
        expect_brute_force(make_problem(spec, {{9, 4}, {70, 130}, {1, 64}, {1, 65}, {3, 0}}));
    }
    spec.causal_block = 4;
    CHECK(attended_keys(spec, {4, 12}, 0).last == 11);  // position 8 begins the third block
    CHECK(attended_keys(spec, {5, 12}, 0).last == 7);
    CHECK(attended_keys(spec, {9, 4}, 4).count() == 0);  // position -1 is in a block before the keys
}

TEST_CASE("a query sees its own chunk, whatever its length", "[check]") {
    AttentionSpec spec = small_spec(DType::fp16);
    for (const std::int64_t chunk : {1, 2, 64, 100, 1000}) {
        spec.attention_chunk = chunk;
        expect_brute_force(make_problem(spec, {{9, 4}, {70, 130}, {1, 64}, {1, 65}, {3, 0}}));
    }
    spec.attention_chunk = 4;
    CHECK(attended_keys(spec, {1, 9}, 0).first == 8);  // position 8 begins the third chunk
    CHECK(attended_keys(spec, {1, 9}, 0).last == 8);
    CHECK(attended_keys(spec, {9, 4}, 4).count() == 0);  // position -1 is of a chunk before the keys
}

TEST_CASE("the reference agrees with a brute force over several tiles and any number of threads", "[check]") {
    AttentionSpec spec = small_spec(DType::fp16);
    spec.mask = Mask::causal;
    for (const int threads : {1, 3, 16}) expect_brute_force(make_problem(spec, kMixed), threads);
    spec.head_dim_qk = 24;
    spec.head_dim_vo = 40;
    spec.kv_heads = 1;
    spec.window_left = 200;
    expect_brute_force(make_problem(spec, kMixed));
}

TEST_CASE("the reference on rows that attend to nothing, and on pages that are not there", "[check]") {
    AttentionSpec spec = small_spec(DType::fp16);
    spec.mask = Mask::causal;
    Problem p = make_problem(spec, {{6, 2}, {2, 0}});
    Reference got = compute_reference(p.input(), all_rows(p.sequences));
    CHECK(got.lse[0] == -kInfinity);  // query 0 of 6 sits 4 before key 0
    CHECK(got.out[0] == 0.0);
    CHECK(std::isfinite(got.lse[4 * 4]));
    CHECK(got.lse[6 * 4] == -kInfinity);
    p.spec.sink = true;
    got = compute_reference(p.input(), all_rows(p.sequences));
    CHECK(got.lse[1] == Approx(p.sinks[1]));
    CHECK(got.out[1] == 0.0);
    // A null row is a row of zeros: its logit is 0, its value adds nothing.
    ReferenceInput missing = make_problem(spec, {{1, 1}}).input();
    missing.q = [&](auto s, auto t, auto h) { return p.query(s, t, h); };
    missing.k = missing.v = [](auto, auto, auto) -> const std::uint16_t* { return nullptr; };
    got = compute_reference(missing, {{0, 0}});
    CHECK(got.lse[0] == 0.0);
    CHECK(got.out[0] == 0.0);
}

namespace {

// A problem's keys and values, which are small integers, as they are stored in 8 bits with scales that are
// powers of two, and as the numbers in bf16 that these stand for.
struct StoredInBytes {
    explicit StoredInBytes(DType dtype) : plain(make_problem(small_spec(DType::bf16), kMixed)) {
        Random random(11);
        const auto draw = [&](std::vector<std::uint16_t>& numbers, std::vector<std::uint8_t>& bytes,
                              const std::vector<float>& scales, std::int64_t dim) {
            bytes.resize(numbers.size());
            for (std::size_t n = 0; n < numbers.size(); ++n) {
                const auto head = static_cast<std::int64_t>(n) / dim % plain.spec.kv_heads;
                const double stored = static_cast<double>(random.integer(-7, 7));
                bytes[n] = static_cast<std::uint8_t>(encode(dtype, stored));
                numbers[n] = encode(DType::bf16, stored * scales[static_cast<std::size_t>(head)]);
            }
        };
        draw(plain.k, k, k_scales, plain.spec.head_dim_qk);
        draw(plain.v, v, v_scales, plain.spec.head_dim_vo);
        spec = plain.spec;
        spec.kv_dtype = dtype;
        spec.kv_scale = KvScale::head;
    }

    ReferenceInput input() const {
        ReferenceInput input = plain.input();
        input.spec = spec;
        input.k = [this](auto s, auto t, auto h) { return k.data() + (plain.key(s, t, h) - plain.k.data()); };
        input.v = [this](auto s, auto t, auto h) {
            return v.data() + (plain.value(s, t, h) - plain.v.data());
        };
        input.k_scales = k_scales;
        input.v_scales = v_scales;
        return input;
    }

    Problem plain;
    AttentionSpec spec;
    std::vector<std::uint8_t> k, v;
    std::vector<float> k_scales{0.25F, 0.5F}, v_scales{2.0F, 0.125F};
};

}  // namespace

TEST_CASE("the reference takes stored keys and values times their scales for the numbers", "[check]") {
    for (const DType dtype : {DType::e4m3, DType::e5m2}) {
        const StoredInBytes bytes(dtype);
        REQUIRE(bytes.plain.spec.kv_heads == 2);
        const std::vector<QueryRow> rows = all_rows(kMixed);
        const Reference got = compute_reference(bytes.input(), rows);
        const Reference want = compute_reference(bytes.plain.input(), rows);
        CHECK(got.out == want.out);
        CHECK(got.low == want.low);
        CHECK(got.lse == want.lse);
    }
}

TEST_CASE("a scale that is no number above 0 makes the rows of its heads NaN", "[check]") {
    for (const float bad : {0.0F, -1.0F, HUGE_VALF, -HUGE_VALF, std::nanf("")}) {
        for (const bool of_key : {true, false}) {
            StoredInBytes bytes(DType::e4m3);
            const std::vector<QueryRow> rows = {{0, 0}};
            const Reference good = compute_reference(bytes.input(), rows);
            (of_key ? bytes.k_scales : bytes.v_scales)[1] = bad;
            const Reference got = compute_reference(bytes.input(), rows);
            const auto heads = static_cast<std::size_t>(bytes.spec.q_heads);
            const auto dim = static_cast<std::size_t>(bytes.spec.head_dim_vo);
            for (std::size_t head = 0; head < heads; ++head) {
                const bool is_bad = head >= heads / 2;
                CHECK(std::isnan(got.lse[head]) == (is_bad && of_key));
                if (!is_bad || !of_key) CHECK(got.lse[head] == good.lse[head]);
                for (std::size_t d = 0; d < dim; ++d) {
                    CHECK(std::isnan(got.out[head * dim + d]) == is_bad);
                    if (!is_bad) CHECK(got.out[head * dim + d] == good.out[head * dim + d]);
                }
            }
        }
    }
}

TEST_CASE("each token's own scales are those of its key and value, and poison the rows that see it",
          "[check]") {
    StoredInBytes bytes(DType::e4m3);
    const std::vector<QueryRow> rows = all_rows(kMixed);
    const Reference want = compute_reference(bytes.input(), rows);
    ReferenceInput input = bytes.input();
    input.spec.kv_scale = KvScale::token_head;
    input.k_scales.clear(), input.v_scales.clear();
    float bad = 1;  // the factor of one token's
    const std::int64_t head = 1, token = 3;
    bool of_key = true;
    const auto scale = [&](const std::vector<float>& of_heads, bool key) {
        return [&, key](std::int64_t s, std::int64_t t, std::int64_t h, std::int64_t) {
            const bool is_bad = s == 0 && t == token && h == head && key == of_key;
            return of_heads[static_cast<std::size_t>(h)] * (is_bad ? bad : 1.0F);
        };
    };
    input.k_scale = scale(bytes.k_scales, true), input.v_scale = scale(bytes.v_scales, false);
    const Reference same = compute_reference(input, rows);
    CHECK((same.out == want.out && same.low == want.low && same.lse == want.lse));
    input.scale_block = 128;  // the heads are one block
    CHECK(compute_reference(input, rows).out == want.out);
    for (const float factor : {0.0F, -1.0F, HUGE_VALF, std::nanf("")}) {
        for (const bool key : {true, false}) {
            bad = factor, of_key = key;
            const Reference got = compute_reference(input, rows);
            const auto heads = static_cast<std::size_t>(bytes.spec.q_heads);
            const auto dim = static_cast<std::size_t>(bytes.spec.head_dim_vo);
            std::int64_t poisoned = 0;
            for (std::size_t n = 0; n < rows.size(); ++n) {
                const KeyRange keys = attended_keys(
                    bytes.spec, kMixed[static_cast<std::size_t>(rows[n].sequence)], rows[n].query);
                for (std::size_t h = 0; h < heads; ++h) {
                    const bool is_bad =
                        rows[n].sequence == 0 && h >= heads / 2 && keys.first <= token && token <= keys.last;
                    poisoned += is_bad;
                    const std::size_t at = n * heads + h;
                    CHECK(std::isnan(got.lse[at]) == is_bad);
                    CHECK((is_bad ? std::isnan(got.out[at * dim]) : got.out[at * dim] == want.out[at * dim]));
                }
            }
            CHECK(poisoned > 0);
        }
    }
}

TEST_CASE("blocks of a latent have a scale each, and its position has none", "[check]") {
    AttentionSpec spec{
        .op = Op::mla, .dtype = DType::bf16, .head_dim_ckv = 256, .head_dim_kpe = 8, .q_heads = 2};
    spec.scale = 0.1;
    spec.kv_dtype = DType::e4m3, spec.kv_scale = KvScale::block128;
    const float scales[] = {0.5F, 4.0F};
    Random random(3);
    std::vector<std::uint16_t> queries(2 * 264), positions(3 * 8), keys(3 * 264);
    std::vector<std::uint8_t> latents(3 * 256);
    for (std::uint16_t& q : queries) q = encode(DType::bf16, static_cast<double>(random.integer(-3, 3)));
    for (const std::size_t first : {std::size_t{0}, std::size_t{256}}) {  // of the position among the columns
        for (std::size_t t = 0; t < 3; ++t) {
            for (std::size_t d = 0; d < 256; ++d) {
                const double stored = static_cast<double>(random.integer(-7, 7));
                latents[t * 256 + d] = static_cast<std::uint8_t>(encode(DType::e4m3, stored));
                keys[t * 264 + d + (first == 0 ? 8 : 0)] = encode(DType::bf16, stored * scales[d / 128]);
            }
            for (std::size_t d = 0; d < 8; ++d)
                keys[t * 264 + first + d] = positions[t * 8 + d] =
                    encode(DType::bf16, static_cast<double>(random.integer(-7, 7)));
        }
        ReferenceInput plain;
        plain.spec = spec;
        plain.spec.kv_dtype.reset(), plain.spec.kv_scale = KvScale::none;
        plain.sequences = {{1, 3}};
        plain.q = [&](auto, auto, auto h) { return queries.data() + h * 264; };
        plain.k = [&](auto, auto t, auto) { return keys.data() + t * 264; };
        plain.v = [&](auto, auto t, auto) { return keys.data() + t * 264 + (first == 0 ? 8 : 0); };
        ReferenceInput input = plain;
        input.spec = spec;
        input.k = input.v = [&](auto, auto t, auto) { return latents.data() + t * 256; };
        input.k_scale = input.v_scale = [&](auto, auto, auto, auto block) { return scales[block]; };
        input.scale_block = 128;
        input.kpe = [&](auto, auto t, auto) { return positions.data() + t * 8; };
        input.kpe_first = static_cast<std::int64_t>(first);
        const Reference got = compute_reference(input, {{0, 0}}), want = compute_reference(plain, {{0, 0}});
        CHECK((got.out == want.out && got.low == want.low && got.lse == want.lse));
    }
}

TEST_CASE("key ranges in bottom-right alignment", "[check]") {
    AttentionSpec spec = small_spec(DType::fp16);
    spec.mask = Mask::causal;
    CHECK(attended_keys(spec, {1, 10}, 0).last == 9);
    CHECK(attended_keys(spec, {4, 10}, 0).last == 6);
    CHECK(attended_keys(spec, {10, 4}, 5).count() == 0);
    CHECK(attended_keys(spec, {10, 4}, 6).last == 0);
    spec.window_left = 2;
    CHECK(attended_keys(spec, {4, 10}, 0).first == 4);
    CHECK(attended_keys(spec, {4, 10}, 0).count() == 3);
    spec.mask = Mask::full;
    spec.window_right = 1;
    CHECK(attended_keys(spec, {4, 10}, 3).last == 9);
    CHECK(attended_keys(spec, {4, 10}, 0).last == 7);
}

TEST_CASE("sampling keeps to its budget and to the edges of each sequence", "[check]") {
    Problem p = make_problem(small_spec(DType::fp16), {{300, 300}, {1, 400}, {0, 3}, {200, 400}});
    const ReferenceInput input = p.input();
    const double cost = reference_cost(input, all_rows(p.sequences));
    CHECK(sample_rows(input, 2 * cost, 1) == all_rows(p.sequences));
    const std::vector<QueryRow> sample = sample_rows(input, cost / 10, 1);
    CHECK(reference_cost(input, sample) < cost / 5);
    for (const QueryRow& edge : {QueryRow{0, 0}, {0, 299}, {1, 0}, {3, 0}, {3, 199}})
        CHECK(std::count(sample.begin(), sample.end(), edge) == 1);
    CHECK(sample != sample_rows(input, cost / 10, 2));
}

TEST_CASE("weighed magnitudes are the outputs of values without signs, and bound what rounding may do",
          "[check]") {
    Random random(11);
    Problem p{};
    p.spec = {
        .dtype = DType::fp16, .head_dim_qk = 8, .head_dim_vo = 8, .q_heads = 2, .kv_heads = 1, .scale = 1.0};
    p.sequences = {{3, 20}};
    p.q = random_values(Problem::kTokens * 2 * 8, DType::fp16, random);
    p.k = random_values(Problem::kTokens * 8, DType::fp16, random);
    p.v = random_values(Problem::kTokens * 8, DType::fp16, random);
    const ReferenceInput input = p.input();
    const std::vector<double> got = weighed_magnitudes(input, {0, 1});
    Problem positive = p;
    for (std::uint16_t& value : positive.v) value &= 0x7fff;
    CHECK(got == compute_reference(positive.input(), {{0, 1}}).out);
    // The plain computation rounds logits as well, which these bounds leave out: with one key there is no
    // weight to round, and with all it is not far off.
    const Reference want = compute_reference(input, {{0, 1}});
    for (std::size_t i = 0; i < got.size(); ++i) {
        CHECK(got[i] >= std::fabs(want.out[i]));
        CHECK(std::fabs(want.low[i] - want.out[i]) < 8 * unit_roundoff(DType::fp16) * got[i]);
    }
    CHECK(round_to(DType::fp16, 1 + unit_roundoff(DType::fp16) * 1.01) != 1);
    CHECK(round_to(DType::fp16, 1 + unit_roundoff(DType::fp16) * 0.99) == 1);
    CHECK(round_to(DType::bf16, 1 + unit_roundoff(DType::bf16) * 1.01) != 1);
    CHECK(round_to(DType::bf16, 1 + unit_roundoff(DType::bf16) * 0.99) == 1);
}

TEST_CASE("tolerances", "[check]") {
    const std::vector<double> want{1.0, 0.0, -kInfinity, 100.0};
    CHECK(compare({1e-3, 1e-3}, want, want).bad == 0);
    const Comparison off =
        compare({1e-3, 1e-3}, std::vector<double>{1.0019, 0.0011, -kInfinity, 100.09}, want);
    CHECK(off.bad == 1);
    CHECK(off.first_bad == 1);
    CHECK(compare({1e-3, 1e-3}, std::vector<double>{std::nan(""), 0, 0, 100}, want).bad == 2);
    PooledBound pooled(DType::fp16);
    pooled.add(std::vector<double>{1.0, 2.0}, std::vector<double>{1.0, 2.0}, std::vector<double>{1.25, 2.0});
    CHECK(pooled.holds());
    pooled.add(std::vector<double>{1.0}, std::vector<double>{1.6}, std::vector<double>{1.6});
    CHECK_FALSE(pooled.holds());
    PooledBound nan(DType::bf16);
    nan.add(std::vector<double>{std::nan("")}, std::vector<double>{1.0}, std::vector<double>{1.0});
    CHECK_FALSE(nan.holds());
}

TEST_CASE("tolerances: a NaN is right where the reference has one, and only there", "[check]") {
    const double nan = std::nan("");
    const std::vector<double> want{nan, 1.0, nan, kInfinity, -kInfinity};
    CHECK(compare({1e-3, 1e-3}, want, want).bad == 0);
    const Comparison c = compare({1e-3, 1e-3}, std::vector<double>{nan, nan, 0.0, nan, kInfinity}, want);
    CHECK(c.bad == 4);
    CHECK(c.first_bad == 1);
    CHECK(std::isinf(c.worst_ratio));
}

TEST_CASE("the pooled bound leaves out what the plain computation says nothing about", "[check]") {
    const double nan = std::nan("");
    using Numbers = std::vector<double>;
    // One overflow in `low` does not excuse the others.
    for (const double overflow : {nan, kInfinity}) {
        PooledBound pool(DType::fp16);
        pool.add(Numbers{1.6, 2.0}, Numbers{1.0, 2.0}, Numbers{1.0, overflow});
        CHECK_FALSE(pool.vacuous());
        CHECK(std::isfinite(pool.allowed()));
        CHECK_FALSE(pool.holds());
    }
    PooledBound vacuous(DType::fp16);
    vacuous.add(Numbers{5.0}, Numbers{1.0}, Numbers{nan});
    CHECK(vacuous.vacuous());
    CHECK(vacuous.ratio() == 0.0);
    // NaN as the reference has it is no element of the pool, and no vacuous one either.
    PooledBound same(DType::bf16);
    same.add(Numbers{nan, nan}, Numbers{nan, nan}, Numbers{nan, 1.0});
    CHECK_FALSE(same.vacuous());
    CHECK(same.holds());
    CHECK(PooledBound(DType::fp16).holds());
}

TEST_CASE("rows are pooled with those of about as many keys", "[check]") {
    CHECK(length_class(0) < length_class(1));
    CHECK(length_class(1) == length_class(3));
    CHECK(length_class(3) < length_class(4));
    CHECK(length_class(1024) == length_class(4095));
    CHECK(length_class(4095) < length_class(5000));
}

namespace {

struct Line {
    std::vector<double> out;
    double lse = 0;
};

// Head `head` of each query of the first sequence.
std::vector<Line> lines_of(const Problem& p, std::int64_t head) {
    const Reference got = compute_reference(p.input(), all_rows(p.sequences), 1);
    const auto heads = static_cast<std::size_t>(p.spec.q_heads),
               dim = static_cast<std::size_t>(p.spec.head_dim_vo);
    std::vector<Line> lines;
    for (std::size_t t = 0; t < static_cast<std::size_t>(p.sequences[0].q); ++t) {
        const std::size_t line = t * heads + static_cast<std::size_t>(head);
        const auto first = got.out.begin() + static_cast<std::ptrdiff_t>(line * dim);
        lines.push_back({{first, first + static_cast<std::ptrdiff_t>(dim)}, got.lse[line]});
    }
    return lines;
}

bool all_nan(const Line& line) {
    return std::isnan(line.lse) &&
           std::all_of(line.out.begin(), line.out.end(), [](double x) { return std::isnan(x); });
}

bool all_finite(const Line& line) {
    return std::isfinite(line.lse) &&
           std::all_of(line.out.begin(), line.out.end(), [](double x) { return std::isfinite(x); });
}

std::uint16_t* mutable_row(std::vector<std::uint16_t>& data, const std::uint16_t* row) {
    return data.data() + (row - data.data());
}

}  // namespace

TEST_CASE("the reference on NaN and infinity", "[check]") {
    AttentionSpec spec = small_spec(DType::bf16);
    spec.mask = Mask::causal;
    const std::uint16_t nan = encode(DType::bf16, std::nan("")), infinity = encode(DType::bf16, kInfinity);

    Problem p = make_problem(spec, {{8, 8}});
    mutable_row(p.q, p.query(0, 3, 1))[5] = nan;
    std::vector<Line> lines = lines_of(p, 1);
    for (std::size_t t = 0; t < lines.size(); ++t) CHECK((t == 3 ? all_nan(lines[t]) : all_finite(lines[t])));
    for (const Line& line : lines_of(p, 0)) CHECK(all_finite(line));

    p = make_problem(spec, {{8, 8}});
    mutable_row(p.k, p.key(0, 5, 1))[2] = nan;
    lines = lines_of(p, 2);  // of KV head 1
    for (std::size_t t = 0; t < lines.size(); ++t) CHECK((t >= 5 ? all_nan(lines[t]) : all_finite(lines[t])));

    p = make_problem(spec, {{8, 8}});
    mutable_row(p.v, p.value(0, 0, 0))[4] = infinity;
    for (const Line& line : lines_of(p, 0)) {
        CHECK(line.out[4] == kInfinity);
        CHECK(std::isfinite(line.out[3]));
        CHECK(std::isfinite(line.lse));
    }

    // A key whose logit is +inf makes its rows NaN; -inf has no weight, and alone it is as if nothing was
    // seen.
    p = make_problem(spec, {{8, 8}});
    for (std::int64_t t = 0; t < 8; ++t)
        mutable_row(p.q, p.query(0, t, 0))[0] = encode(DType::bf16, t % 2 ? 1.0 : -1.0);
    mutable_row(p.k, p.key(0, 0, 0))[0] = infinity;
    lines = lines_of(p, 0);
    for (std::size_t t = 1; t < lines.size(); ++t) CHECK((t % 2 ? all_nan(lines[t]) : all_finite(lines[t])));
    CHECK(lines[0].lse == -kInfinity);
    CHECK(lines[0].out == std::vector<double>(8, 0.0));

    // Sinks: one of -inf is none; one far above all logits is all of the denominator.
    spec.sink = true;
    p = make_problem(spec, {{2, 1}});
    p.sinks = {-std::numeric_limits<float>::infinity(), 1e4f, -1e4f, 0.0f};
    CHECK(lines_of(p, 0)[0].lse == -kInfinity);
    CHECK(lines_of(p, 0)[1].out[0] == decode(DType::bf16, p.value(0, 0, 0)[0]));
    CHECK(lines_of(p, 1)[1].lse == 1e4);
    CHECK(lines_of(p, 1)[1].out[0] == 0.0);
    CHECK(lines_of(p, 2)[0].lse == -1e4);
}

namespace {

// Adds each element of the tensor; false where one was there already.
bool add_elements(const Place& place, std::set<std::int64_t>& elements) {
    const std::int64_t third = place.rank == 4 ? place.shape[2] : 1;
    const std::int64_t dim = place.shape[static_cast<std::size_t>(place.rank - 1)];
    bool apart = true;
    for (std::int64_t a = 0; a < place.shape[0]; ++a)
        for (std::int64_t b = 0; b < place.shape[1]; ++b)
            for (std::int64_t c = 0; c < third; ++c)
                for (std::int64_t d = 0; d < dim; ++d)
                    apart &=
                        elements.insert((place.rank == 4 ? place.at(a, b, c) : place.at(a, b)) + d).second;
    return apart;
}

void expect_apart(const Case& test) {
    const Placement p = place_tensors(test, capacity_of(test));
    std::set<std::int64_t> q, k, v;
    REQUIRE(add_elements(p.q, q));
    if (p.k_in_q) k = q;
    REQUIRE(add_elements(p.k, k));
    if (p.v_in_k) v = k;
    REQUIRE(add_elements(p.v, v));
    REQUIRE(*q.begin() >= static_cast<std::int64_t>(kGuardBytes / 2));
    REQUIRE(*v.rbegin() < p.v.end());
}

std::set<std::int64_t> elements_of(const Place& place) {
    std::set<std::int64_t> elements;
    add_elements(place, elements);
    return elements;
}

}  // namespace

TEST_CASE("no two elements of a layout share memory", "[check]") {
    for (const auto order : {MemoryOrder::bshd, MemoryOrder::bhsd, MemoryOrder::sbhd}) {
        for (int bits = 0; bits < 32; ++bits) {
            Case test;
            test.spec = small_spec(DType::fp16);
            test.spec.head_dim_vo = 16;
            test.layout.order = order;
            test.layout.pad = bits & 1 ? 3 : 0;
            test.layout.one_kv_tensor = bits & 2;
            test.layout.packed_qkv = (bits & 4) && !(bits & 16);
            test.q_storage = bits & 8 ? QStorage::dense : QStorage::ragged;
            test.spec.kv = bits & 16 ? KvStorage::paged : bits & 8 ? KvStorage::dense : KvStorage::ragged;
            test.spec.page_size = bits & 16 ? 3 : 0;
            Step step;
            step.q_lens = {5, 0, 2};
            step.kv_lens = {5, 0, 2};
            test.steps = {step};
            expect_apart(test);
        }
    }
}

TEST_CASE("a broadcast axis takes no memory", "[check]") {
    Case test;
    test.spec = small_spec(DType::fp16);
    Step step;
    step.q_lens = {5, 5};
    step.kv_lens = {7, 7};
    test.steps = {step};
    test.q_storage = QStorage::dense;
    test.spec.kv = KvStorage::dense;
    test.layout.kv_broadcast = {0};
    test.layout.q_broadcast = {1, 2};
    const Placement p = place_tensors(test, capacity_of(test));
    CHECK(elements_of(p.q).size() == 2 * 16);
    CHECK(elements_of(p.k).size() == 7 * 2 * 16);
    CHECK(elements_of(p.v).size() == 7 * 2 * 8);
    CHECK(elements_of(p.o).size() == 2 * 5 * 4 * 8);
}
