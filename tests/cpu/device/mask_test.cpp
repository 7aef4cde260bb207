// The kernels' mask, compiled for the host, against its rule key by key. Nothing that needs a warp is called.
#include <algorithm>
#include <bit>
#include <optional>
#include <random>

#include "device/uncalled.hpp"
#include "support/catch.hpp"

#define __device__
namespace {
struct {
    unsigned x = 0;
} threadIdx;
template <class T>
[[maybe_unused]] T __shfl_up_sync(unsigned, T value, int) {
    return value;
}
[[maybe_unused]] unsigned __ballot_sync(unsigned, bool) { return 0; }
[[maybe_unused]] int __ffs(unsigned) { return 0; }
[[maybe_unused]] unsigned atomicOr(unsigned*, unsigned) { return 0; }
}  // namespace
using std::max;
using std::min;
#include "attention/mask.cuh"

using namespace attnsmith;

namespace {

struct Mask {
    std::optional<int> left, right, chunk, block;
    int q_len = 1, kv_len = 1, group = 1;

    abi::AttentionArguments arguments() const {
        abi::AttentionArguments args{};
        args.bounds = {left.value_or(abi::kUnbounded), right.value_or(abi::kUnbounded),
                       abi::divisor_of(chunk.value_or(0)), abi::divisor_of(block.value_or(0))};
        args.group = abi::divisor_of(group);
        args.splits = 1;
        return args;
    }
    Sequence sequence() const {
        Sequence sequence{};
        sequence.q_len = q_len;
        sequence.kv_len = kv_len;
        return sequence;
    }

    bool sees(int token, int key) const {
        const int at = token + kv_len - q_len;
        const auto chunk_of = [&](int i) { return (i >= 0 ? i : i - *chunk + 1) / *chunk; };
        if (left && key < at - *left) return false;
        if (block && (at < 0 || key / *block > at / *block)) return false;
        if (!block && right && key > at + *right) return false;
        return !chunk || chunk_of(at) == chunk_of(key);
    }
};

Mask random_mask(std::mt19937& random) {
    const auto up_to = [&](int most) { return static_cast<int>(random() % static_cast<unsigned>(most + 1)); };
    Mask mask;
    if (random() % 2) mask.left = up_to(40);
    if (random() % 2) mask.right = random() % 2 ? 0 : up_to(40);
    if (mask.right == 0 && random() % 2) mask.block = 1 + up_to(random() % 2 ? 10 : 90);
    if (random() % 4) mask.chunk = 1 + up_to(random() % 2 ? 10 : 90);
    mask.q_len = 1 + up_to(70);
    mask.kv_len = up_to(90);
    mask.group = 1 + up_to(3);
    return mask;
}

}  // namespace

TEST_CASE("a token sees the keys that window and chunk let through", "[device][mask]") {
    std::mt19937 random(20261122);
    for (int n = 0; n < 2000; ++n) {
        const Mask mask = random_mask(random);
        const auto args = mask.arguments();
        for (int token = 0; token < mask.q_len; ++token) {
            const KeyInterval keys = visible_keys(args, mask.sequence(), token);
            for (int key = 0; key < mask.kv_len; ++key)
                REQUIRE((key >= keys.first && key < keys.end) == mask.sees(token, key));
            REQUIRE((keys.is_empty() || keys.end <= mask.kv_len));
        }
    }
}

TEST_CASE("a tile reads no key that all its rows are denied, and masks where one is denied some",
          "[device][mask]") {
    std::mt19937 random(8);
    for (int n = 0; n < 2000; ++n) {
        const Mask mask = random_mask(random);
        auto args = mask.arguments();
        args.splits = 1 + static_cast<int>(random() % 3);
        args.chunk = 16;
        const Sequence sequence = mask.sequence();
        const int rows = mask.q_len * mask.group, first = static_cast<int>(random() % unsigned(rows));
        const QueryTile tile{args, sequence, 0, first, 32};
        const int split = static_cast<int>(random() % unsigned(args.splits));
        TileMask found(tile);
        found.keep(keys_of_split(args, split));
        const int first_token = first / mask.group,
                  last_token = (std::min(first + 32, rows) - 1) / mask.group;
        for (int key = 0; key < mask.kv_len; ++key) {
            bool any = false, all = true;
            for (int token = first_token; token <= last_token; ++token) {
                any |= mask.sees(token, key);
                all &= mask.sees(token, key);
            }
            const bool in_split = args.splits == 1 || key / args.chunk == split;
            const bool read = key >= found.read.first && key < found.read.end;
            if (any && in_split) REQUIRE(read);
            if (read) {
                REQUIRE(in_split);
                REQUIRE((found.coverage(key, key + 1) == Coverage::partial) == !all);
            }
            // What is read and seen by nobody lies between keys that rows see: hidden ends are skipped.
            if (read && (key == found.read.first || key == found.read.end - 1))
                REQUIRE((any || args.splits > 1));
        }
    }
}

TEST_CASE("a chunk at the ends of what positions can be does not overflow", "[device][mask]") {
    const int longest = 1 << 30;
    Mask mask{.left = {}, .right = 0, .chunk = longest - 1, .block = {}, .q_len = 1, .kv_len = longest};
    const KeyInterval last = visible_keys(mask.arguments(), mask.sequence(), 0);
    CHECK(last.first == longest - 1);
    CHECK(last.end == longest);
    mask.q_len = longest;
    mask.kv_len = 1;
    CHECK(visible_keys(mask.arguments(), mask.sequence(), 0).is_empty());
}

TEST_CASE("a causal block at the ends of what positions can be does not overflow", "[device][mask]") {
    const int longest = 1 << 30;
    for (const int block : {2, longest / 2 + 1, longest - 1, longest}) {
        const Mask mask{.left = {}, .right = 0, .chunk = {}, .block = block, .q_len = 2, .kv_len = longest};
        for (const int token : {0, 1}) {
            const KeyInterval seen = visible_keys(mask.arguments(), mask.sequence(), token);
            const std::int64_t at = longest - 2 + token;
            CHECK(seen.first == 0);
            CHECK(seen.end == std::min<std::int64_t>(longest, (at / block + 1) * block));
        }
        const Mask before{.left = {}, .right = 0, .chunk = {}, .block = block, .q_len = longest, .kv_len = 1};
        CHECK(visible_keys(before.arguments(), before.sequence(), 0).is_empty());
        CHECK(visible_keys(before.arguments(), before.sequence(), longest - 1).end == 1);
    }
}
