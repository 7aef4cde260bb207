#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "expect.hpp"
#include "problem/limits.hpp"
#include "problem/request/problem.hpp"

using namespace attnsmith;
using namespace attnsmith::problem;
using attnsmith::test::contains;
using attnsmith::test::refused;

namespace {

constexpr std::int64_t kInt64Max = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kInt64Min = std::numeric_limits<std::int64_t>::min();
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

AttentionSpec good_spec() {
    AttentionSpec spec;
    spec.head_dim_qk = 128;
    spec.q_heads = 32;
    spec.kv_heads = 8;
    return spec;
}

struct Case {
    std::string field;
    std::string accepted;  // a part of the message
    std::function<void(AttentionSpec&, PlanSizes&)> change;
};

template <typename Value>
std::function<void(AttentionSpec&, PlanSizes&)> with(Value AttentionSpec::*member, Value value) {
    return [=](AttentionSpec& spec, PlanSizes&) { spec.*member = value; };
}
std::function<void(AttentionSpec&, PlanSizes&)> with(std::int64_t PlanSizes::*member, std::int64_t value) {
    return [=](AttentionSpec&, PlanSizes& sizes) { sizes.*member = value; };
}
std::function<void(AttentionSpec&, PlanSizes&)> with_scale(double value) {
    return [=](AttentionSpec& spec, PlanSizes&) { spec.scale = value; };
}
std::function<void(AttentionSpec&, PlanSizes&)> with_softcap(double value) {
    return [=](AttentionSpec& spec, PlanSizes&) { spec.softcap = value; };
}
std::function<void(AttentionSpec&, PlanSizes&)> paged(std::int64_t page_size) {
    return [=](AttentionSpec& spec, PlanSizes&) {
        spec.kv = KvStorage::paged;
        spec.page_size = page_size;
    };
}

}  // namespace

TEST_CASE("defaults are filled in", "[validate]") {
    AttentionSpec spec = good_spec();
    spec.kv_heads = 0;
    const Problem problem = validate(spec, {4, 100, 200});
    CHECK(problem.spec.head_dim_vo == 128);
    CHECK(problem.spec.kv_heads == 32);
    REQUIRE(problem.spec.scale);
    CHECK(*problem.spec.scale == 1.0 / std::sqrt(128.0));
    CHECK(problem.sizes == PlanSizes{4, 100, 200});
    CHECK(problem.group_size() == 1);
    CHECK(validate(good_spec(), {}).group_size() == 4);
}

TEST_CASE("validating twice changes nothing", "[validate]") {
    AttentionSpec spec = good_spec();
    spec.mask = Mask::causal;
    spec.window_left = 0;
    spec.window_right = 0;
    const Problem once = validate(spec, {});
    CHECK(validate(once.spec, once.sizes) == once);
}

TEST_CASE("every head dimension that is a multiple of 8 up to 512 is valid, and no other", "[validate]") {
    for (std::int64_t head_dim = -16; head_dim <= 600; ++head_dim) {
        INFO(head_dim);
        AttentionSpec spec = good_spec();
        spec.head_dim_qk = head_dim;
        if (head_dim >= 8 && head_dim <= 512 && head_dim % 8 == 0) {
            CHECK(validate(spec, {}).spec.head_dim_vo == head_dim);
        } else if (head_dim >= 1) {
            CHECK_THROWS_AS(validate(spec, {}), Unsupported);
        } else {
            CHECK(refused([&] { validate(spec, {}); }).field() == "head_dim_qk");
        }
    }
}

TEST_CASE("a head dim that is not supported is named, with the next that is", "[validate]") {
    struct NotSupported {
        std::int64_t qk, vo;
        const char* message;
    };
    const NotSupported cases[] = {
        {7, 0, "head_dim 7 is not supported; supported are multiples of 8 up to 512; the next is 8"},
        {100, 100, "head_dim 100 is not supported; supported are multiples of 8 up to 512; the next is 104"},
        {9, 64, "head_dim_qk 9 is not supported; supported are multiples of 8 up to 512; the next is 16"},
        {128, 100,
         "head_dim_vo 100 is not supported; supported are multiples of 8 up to 512; the next is 104"},
        {513, 512, "head_dim_qk 513 is not supported; supported are multiples of 8 up to 512"},
        {kInt64Max, 0,
         "head_dim 9223372036854775807 is not supported; supported are multiples of 8 up to 512"}};
    for (const NotSupported& one : cases) {
        AttentionSpec spec = good_spec();
        spec.head_dim_qk = one.qk;
        spec.head_dim_vo = one.vo;
        CHECK_THROWS_AS(validate(spec, {}), Unsupported);
        CHECK_THROWS_WITH(validate(spec, {}), one.message);
    }
}

TEST_CASE("a dtype that is not supported is named, with the remedy", "[validate]") {
    AttentionSpec spec = good_spec();
    spec.dtype = DType::fp32;
    CHECK_THROWS_AS(validate(spec, {}), Unsupported);
    CHECK_THROWS_WITH(validate(spec, {}), "dtype fp32 is not supported; supported are fp16 and bf16");
    spec.dtype = DType::e4m3;
    CHECK_THROWS_WITH(
        validate(spec, {}),
        "dtype e4m3 is not supported; supported are fp16 and bf16 (for fp8 keys and values: kv_dtype e4m3)");
}

TEST_CASE("other libraries' words for nothing are taken as nothing", "[validate]") {
    AttentionSpec plain = good_spec(), spelled = good_spec();
    spelled.softcap = 0.0;
    spelled.window_left = -1;
    spelled.window_right = -1;
    CHECK(validate(spelled, {}) == validate(plain, {}));
    plain.mask = spelled.mask = Mask::causal;
    plain.window_left = spelled.window_left = 127;
    for (const std::int64_t right : {-1, 0}) {
        spelled.window_right = right;
        CHECK(validate(spelled, {}) == validate(plain, {}));
    }
}

TEST_CASE("a causal mask takes no window to the right", "[validate]") {
    AttentionSpec spec = good_spec();
    spec.mask = Mask::causal;
    for (const std::int64_t right : {1, 127}) {
        spec.window_right = right;
        const InvalidRequest error = refused([&] { validate(spec, {}); });
        CHECK(error.field() == "window_right");
        CHECK(error.value() == std::to_string(right));
        CHECK_THAT(error.accepted(), Catch::Contains("mask full"));
    }
    spec.mask = Mask::full;
    CHECK(validate(spec, {}).spec.window_right == 127);
}

TEST_CASE("what is wrong is named", "[validate]") {
    const Case cases[] = {
        {"dtype", "fp16 or bf16", with(&AttentionSpec::dtype, DType::int32)},
        {"dtype", "fp16 or bf16", with(&AttentionSpec::dtype, static_cast<DType>(99))},
        {"head_dim_vo", "a multiple of 8", with<std::int64_t>(&AttentionSpec::head_dim_vo, -8)},
        {"q_heads", "from 1 to 65536", with<std::int64_t>(&AttentionSpec::q_heads, 0)},
        {"q_heads", "from 1 to 65536", with<std::int64_t>(&AttentionSpec::q_heads, -32)},
        {"q_heads", "from 1 to 65536", with<std::int64_t>(&AttentionSpec::q_heads, 65537)},
        {"q_heads", "from 1 to 65536", with<std::int64_t>(&AttentionSpec::q_heads, kInt64Max)},
        {"kv_heads", "from 1 to 65536", with<std::int64_t>(&AttentionSpec::kv_heads, -1)},
        {"kv_heads", "from 1 to 65536", with<std::int64_t>(&AttentionSpec::kv_heads, kInt64Min)},
        {"kv_heads", "a divisor of q_heads, which is 32", with<std::int64_t>(&AttentionSpec::kv_heads, 5)},
        {"kv_heads", "a divisor of q_heads, which is 32", with<std::int64_t>(&AttentionSpec::kv_heads, 64)},
        {"mask", "full or causal", with(&AttentionSpec::mask, static_cast<Mask>(2))},
        {"window_left", "from 0", with<std::optional<std::int64_t>>(&AttentionSpec::window_left, -2)},
        {"window_right", "from 0",
         with<std::optional<std::int64_t>>(&AttentionSpec::window_right, kInt64Min)},
        {"scale", "a finite number above 0", with_scale(0.0)},
        {"scale", "a finite number above 0", with_scale(-0.1)},
        {"scale", "a finite number above 0", with_scale(kNaN)},
        {"scale", "a finite number above 0", with_scale(kInfinity)},
        {"scale", "a finite number above 0", with_scale(1e-30)},  // its products would be 0 in fp32
        {"scale", "a finite number above 0", with_scale(1e30)},   // or infinite
        {"softcap", "a finite number above 0", with_softcap(-50.0)},
        {"softcap", "a finite number above 0", with_softcap(kNaN)},
        {"softcap", "a finite number above 0", with_softcap(-kInfinity)},
        {"kv", "dense, ragged or paged", with(&AttentionSpec::kv, static_cast<KvStorage>(3))},
        {"page_order", "NHD or HND", with(&AttentionSpec::page_order, static_cast<PageOrder>(3))},
        {"page_size", "from 1 to 1048576", paged(0)},
        {"page_size", "from 1 to 1048576", paged(-16)},
        {"page_size", "from 1 to 1048576", paged((1 << 20) + 1)},
        {"page_size", "kv is dense", with<std::int64_t>(&AttentionSpec::page_size, 16)},
        {"page_size", "kv is dense", with<std::int64_t>(&AttentionSpec::page_size, -1)},
        {"index_dtype", "int32 or int64", with(&AttentionSpec::index_dtype, DType::fp32)},
        {"alignment", "16, 8, 4 or 2", with(&AttentionSpec::alignment, 0)},
        {"alignment", "16, 8, 4 or 2", with(&AttentionSpec::alignment, 1)},
        {"alignment", "16, 8, 4 or 2", with(&AttentionSpec::alignment, 12)},
        {"alignment", "16, 8, 4 or 2", with(&AttentionSpec::alignment, 32)},
        {"o_dtype", "bf16, as dtype is, or fp32",
         with<std::optional<DType>>(&AttentionSpec::o_dtype, DType::fp16)},
        {"o_dtype", "fp16, bf16 or fp32", with<std::optional<DType>>(&AttentionSpec::o_dtype, DType::int64)},
        {"kv_dtype", "bf16, as dtype is, e4m3 or e5m2",
         with<std::optional<DType>>(&AttentionSpec::kv_dtype, DType::fp16)},
        {"kv_dtype", "fp16, bf16, e4m3 or e5m2",
         with<std::optional<DType>>(&AttentionSpec::kv_dtype, DType::uint8)},
        {"kv_scale", "kv_dtype is bf16", with(&AttentionSpec::kv_scale, KvScale::tensor)},
        {"kv_scale", "none, tensor, head, token_head or block128",
         with(&AttentionSpec::kv_scale, static_cast<KvScale>(9))},
        {"precision", "standard or high", with(&AttentionSpec::precision, static_cast<Precision>(9))},
        {"consistency", "standard or bitwise",
         with(&AttentionSpec::consistency, static_cast<Consistency>(9))},
        {"batch", "from 1 to 1048576", with(&PlanSizes::batch, 0)},
        {"batch", "from 1 to 1048576", with(&PlanSizes::batch, (1 << 20) + 1)},
        {"q_len", "from 0 to 1073741824", with(&PlanSizes::q_len, -1)},
        {"q_len", "from 0 to 1073741824", with(&PlanSizes::q_len, kMaxLength + 1)},
        {"q_len", "at most 536870656 with 4 query heads", with(&PlanSizes::q_len, 1 << 29)},
        {"kv_len", "from 0 to 1073741824", with(&PlanSizes::kv_len, -1)},
        {"kv_len", "from 0 to 1073741824", with(&PlanSizes::kv_len, kInt64Max)},
    };
    for (const Case& bad : cases) {
        AttentionSpec spec = good_spec();
        PlanSizes sizes;
        bad.change(spec, sizes);
        const InvalidRequest error = refused([&] { validate(spec, sizes); });
        INFO(error.what());
        CHECK(error.field() == bad.field);
        CHECK(contains(error.accepted(), bad.accepted));
    }
}

TEST_CASE("the ends of every range are valid", "[validate]") {
    const std::function<void(AttentionSpec&, PlanSizes&)> changes[] = {
        with<std::int64_t>(&AttentionSpec::kv_heads, 1),
        with<std::int64_t>(&AttentionSpec::kv_heads, 32),
        [](AttentionSpec& spec, PlanSizes&) { spec.q_heads = kMaxHeads; },
        with(&AttentionSpec::dtype, DType::fp16),
        with(&AttentionSpec::index_dtype, DType::int64),
        with(&AttentionSpec::alignment, 2),
        with<std::optional<DType>>(&AttentionSpec::o_dtype, DType::bf16),
        with<std::optional<DType>>(&AttentionSpec::o_dtype, DType::fp32),
        with<std::optional<DType>>(&AttentionSpec::kv_dtype, DType::bf16),
        with<std::optional<DType>>(&AttentionSpec::kv_dtype, DType::e4m3),
        [](AttentionSpec& spec, PlanSizes&) { spec.kv_dtype = DType::e5m2, spec.kv_scale = KvScale::head; },
        with(&AttentionSpec::precision, Precision::high),
        with(&AttentionSpec::consistency, Consistency::bitwise),
        paged(1),
        paged(1 << 20),
        with_scale(0x1p-60),
        with_scale(0x1p60),
        with_softcap(1e-3),
        with(&PlanSizes::batch, kMaxBatch),
        with(&PlanSizes::q_len, 0),
        with(&PlanSizes::q_len, kMaxPackedQueries / 4),
        with(&PlanSizes::kv_len, 0),
        with(&PlanSizes::kv_len, kMaxLength),
    };
    for (const auto& change : changes) {
        AttentionSpec spec = good_spec();
        PlanSizes sizes;
        change(spec, sizes);
        CHECK_NOTHROW(validate(spec, sizes));
    }
}

TEST_CASE("scales of blocks are of heads that are one block, and those of tokens of any", "[validate]") {
    const auto spec = [](KvScale scale, std::int64_t qk, std::int64_t vo) {
        AttentionSpec of = good_spec();
        of.kv_dtype = DType::e4m3, of.kv_scale = scale;
        of.head_dim_qk = qk, of.head_dim_vo = vo;
        return of;
    };
    for (const auto& [qk, vo] : {std::pair(64, 64), {128, 128}, {128, 64}, {16, 16}}) {
        CHECK_NOTHROW(validate(spec(KvScale::block128, qk, vo), {}));
        CHECK_NOTHROW(validate(spec(KvScale::token_head, qk, vo), {}));
    }
    for (const auto& [qk, vo, field] : {std::tuple(192, 128, "head_dim_qk 192"),
                                        {128, 256, "head_dim_vo 256"},
                                        {512, 512, "head_dim_qk 512"}}) {
        CHECK_NOTHROW(validate(spec(KvScale::token_head, qk, vo), {}));
        try {
            validate(spec(KvScale::block128, qk, vo), {});
            FAIL("not refused");
        } catch (const Unsupported& error) {
            INFO(error.what());
            CHECK((contains(error.what(), field) && contains(error.what(), "kv_scale token_head")));
        }
    }
    AttentionSpec of_16_bits = spec(KvScale::token_head, 128, 128);
    of_16_bits.kv_dtype.reset();
    CHECK(refused([&] { validate(of_16_bits, {}); }).field() == "kv_scale");
}

TEST_CASE("windows have one normal form", "[validate]") {
    AttentionSpec spec = good_spec();
    spec.window_left = kMaxLength;
    spec.window_right = kInt64Max;
    CHECK_FALSE(validate(spec, {}).spec.window_left);
    CHECK_FALSE(validate(spec, {}).spec.window_right);
    spec.window_left = kMaxLength - 1;
    CHECK(validate(spec, {}).spec.window_left == kMaxLength - 1);
    spec.mask = Mask::causal;
    CHECK_FALSE(validate(spec, {}).spec.window_right);  // no bound: the mask has its own
    spec.window_right = 0;
    CHECK_FALSE(validate(spec, {}).spec.window_right);
    spec.mask = Mask::full;
    CHECK(validate(spec, {}).spec.window_right == 0);
}

TEST_CASE("a page order needs pages", "[validate]") {
    AttentionSpec spec = good_spec();
    spec.page_order = PageOrder::HND;
    for (const KvStorage kv : {KvStorage::dense, KvStorage::ragged}) {
        spec.kv = kv;
        const InvalidRequest error = refused([&] { validate(spec, {}); });
        CHECK((error.field() == "page_order" && error.value() == "HND"));
        CHECK(error.accepted().find("pages need kv paged") != std::string::npos);
    }
    spec.kv = KvStorage::paged;
    spec.page_size = 16;
    CHECK(validate(spec, {}).spec.page_order == PageOrder::HND);
}

TEST_CASE("a causal block is from one token on, and belongs to a causal mask", "[validate]") {
    AttentionSpec spec = good_spec();
    spec.mask = Mask::causal;
    for (const std::int64_t wrong : {std::int64_t{-1}, std::int64_t{-64}, kInt64Min}) {
        spec.causal_block = wrong;
        const InvalidRequest error = refused([&] { validate(spec, {}); });
        CHECK(error.field() == "causal_block");
    }
    for (const std::int64_t none : {0, 1}) {  // as every causal mask
        spec.causal_block = none;
        CHECK_FALSE(validate(spec, {}).spec.causal_block);
    }
    spec.causal_block = 2;
    CHECK(validate(spec, {}).spec.causal_block == 2);
    spec.causal_block = kInt64Max;  // all blocks from the longest sequence on are one
    CHECK(validate(spec, {}).spec.causal_block == kMaxLength);
    spec.mask = Mask::full;
    spec.causal_block = 64;
    const InvalidRequest error = refused([&] { validate(spec, {}); });
    CHECK(error.field() == "causal_block");
    CHECK(contains(error.what(), "mask causal"));
}

TEST_CASE("a chunk is from one token on, and 0 or one past the longest sequence is none", "[validate]") {
    AttentionSpec spec{.head_dim_qk = 64, .q_heads = 8, .attention_chunk = 1};
    CHECK(validate(spec, {}).spec.attention_chunk == 1);
    spec.attention_chunk = kMaxLength - 1;
    CHECK(validate(spec, {}).spec.attention_chunk == kMaxLength - 1);
    for (const std::int64_t none : {std::int64_t{0}, kMaxLength}) {
        spec.attention_chunk = none;
        CHECK_FALSE(validate(spec, {}).spec.attention_chunk);
    }
    for (const std::int64_t wrong : {std::int64_t{-1}, std::int64_t{-8192}}) {
        spec.attention_chunk = wrong;
        const InvalidRequest error = refused([&] { validate(spec, {}); });
        CHECK(error.field() == "attention_chunk");
        CHECK(error.value() == std::to_string(wrong));
    }
    for (const char* wrong : {"-1", "1.5", "\"8k\"", "true", "[8]"}) {
        const std::string text =
            std::string(R"({"head_dim": 64, "q_heads": 8, "attention_chunk": )") + wrong + "}";
        CHECK(refused([&] { (void)parse_request(text); }).field() == "attention_chunk");
    }
    for (const char* none : {"0", "null"}) {
        const std::string text =
            std::string(R"({"head_dim": 64, "q_heads": 8, "attention_chunk": )") + none + "}";
        CHECK_FALSE(parse_request(text).spec.attention_chunk);
    }
}
