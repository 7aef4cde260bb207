// What masks let through, against the rule itself, key by key.
#include "families/key_bounds.hpp"

#include "problem/expect.hpp"
#include "problem/request/problem.hpp"

using namespace attnsmith;
using namespace attnsmith::families;
using abi::KeyBounds;
using abi::KeyInterval;

namespace {

constexpr std::int32_t kKeys = 23;

bool sees(const AttentionSpec& spec, std::int64_t query, std::int64_t key) {
    const auto block_of = [&](std::int64_t i) {
        const std::int64_t block = spec.causal_block.value_or(1);
        return i >= 0 ? i / block : -1;
    };
    if (spec.mask == Mask::causal && block_of(key) > block_of(query)) return false;
    if (spec.window_left && key < query - *spec.window_left) return false;
    if (spec.window_right && key > query + *spec.window_right) return false;
    const auto chunk_of = [&](std::int64_t i) {
        return i >= 0 ? i / *spec.attention_chunk : -1;  // no key is at a negative position
    };
    return !spec.attention_chunk || chunk_of(query) == chunk_of(key);
}

AttentionSpec with(AttentionSpec spec) {
    spec.head_dim_qk = 64;
    spec.q_heads = 1;
    return problem::validate(spec, {}).spec;
}

std::vector<AttentionSpec> masks() {
    return {with({}),
            with({.mask = Mask::causal}),
            with({.window_left = 0}),
            with({.window_right = 3}),
            with({.window_left = 4, .window_right = 2}),
            with({.mask = Mask::causal, .window_left = 6}),
            with({.attention_chunk = 1}),
            with({.attention_chunk = 5}),
            with({.mask = Mask::causal, .attention_chunk = 7}),
            with({.mask = Mask::causal, .window_left = 4, .attention_chunk = 6}),
            with({.window_left = 9, .window_right = 9, .attention_chunk = 8}),
            with({.mask = Mask::causal, .causal_block = 1}),
            with({.mask = Mask::causal, .causal_block = 4}),
            with({.mask = Mask::causal, .causal_block = 1000}),
            with({.mask = Mask::causal, .window_left = 3, .causal_block = 5}),
            with({.mask = Mask::causal, .attention_chunk = 6, .causal_block = 4}),
            with({.mask = Mask::causal, .attention_chunk = 1000})};
}

}  // namespace

TEST_CASE("the interval is the keys that the mask lets through", "[key_bounds]") {
    for (const AttentionSpec& spec : masks()) {
        const KeyBounds bounds = bounds_of(spec);
        for (std::int32_t query = -9; query < kKeys; ++query) {
            const KeyInterval seen = bounds.seen_from(query, kKeys);
            for (std::int64_t key = 0; key < kKeys; ++key)
                REQUIRE((key >= seen.first && key < seen.end) == sees(spec, query, key));
        }
    }
}

TEST_CASE("both ends of the interval never decrease", "[key_bounds]") {
    for (const AttentionSpec& spec : masks()) {
        const KeyBounds bounds = bounds_of(spec);
        for (std::int32_t query = -8; query < kKeys; ++query) {
            CHECK(bounds.seen_from(query, kKeys).first >= bounds.seen_from(query - 1, kKeys).first);
            CHECK(bounds.seen_from(query, kKeys).end >= bounds.seen_from(query - 1, kKeys).end);
        }
    }
}

TEST_CASE("a mask's class and sides", "[key_bounds]") {
    const auto class_of = [](const AttentionSpec& spec) { return mask_class(bounds_of(with(spec))); };
    CHECK(class_of({}) == MaskClass::full);
    CHECK(class_of({.mask = Mask::causal}) == MaskClass::causal);
    CHECK(class_of({.window_right = 0}) == MaskClass::causal);  // the same mask, said otherwise
    CHECK(class_of({.mask = Mask::causal, .window_left = 7}) == MaskClass::window);
    CHECK(class_of({.window_left = 7}) == MaskClass::window);
    const auto sides_of = [](const AttentionSpec& spec) {
        return key_work(bounds_of(with(spec)), 1, 4096).sides;
    };
    CHECK(sides_of({}) == 0);
    CHECK(sides_of({.mask = Mask::causal}) == 1);
    CHECK(sides_of({.window_left = 3, .window_right = 3}) == 2);
}

TEST_CASE("a causal block is a causal mask that hides less", "[key_bounds]") {
    const AttentionSpec causal = with({.mask = Mask::causal});
    AttentionSpec block = causal;
    block.causal_block = 256;
    block = with(block);
    CHECK(mask_class(bounds_of(block)) == MaskClass::causal);
    const auto keys = [](const AttentionSpec& spec, std::int64_t q_len) {
        return key_work(bounds_of(spec), q_len, 4096).keys;
    };
    CHECK(keys(block, 4096) == keys(causal, 4096) + 128);
    CHECK(keys(block, 256) == 4096);  // a block that is generated sees itself and all before it
    CHECK(keys(block, 1) == keys(causal, 1));
}

TEST_CASE("a chunk is as much work as a sequence of its length", "[key_bounds]") {
    const auto work_of = [](const AttentionSpec& spec, std::int64_t q_len, std::int64_t kv_len) {
        return key_work(bounds_of(with(spec)), q_len, kv_len);
    };
    const AttentionSpec causal{.mask = Mask::causal};
    const AttentionSpec chunked{.mask = Mask::causal, .attention_chunk = 1024};
    CHECK(work_of(chunked, 1, 65536).keys == work_of(causal, 1, 1024).keys);
    CHECK(work_of(chunked, 65536, 65536).keys == work_of(causal, 1024, 1024).keys);
    CHECK(work_of(chunked, 1, 65536).sides == 2);
    for (const std::int64_t kv_len : {1, 500, 1024}) {  // there is one chunk
        CHECK(work_of(chunked, 64, kv_len).keys == work_of(causal, 64, kv_len).keys);
        CHECK(work_of(chunked, 64, kv_len).sides == work_of(causal, 64, kv_len).sides);
    }
    CHECK(mask_class(bounds_of(with(chunked))) == MaskClass::causal);  // they share their kernels
}
