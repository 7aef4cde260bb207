// What masks let through, against the rule itself, key by key.
#include "problem/request/key_bounds.hpp"

#include "expect.hpp"
#include "problem/request/problem.hpp"

using namespace attnsmith;
using namespace attnsmith::problem;

namespace {

constexpr std::int64_t kKeys = 23;

bool sees(const AttentionSpec& spec, std::int64_t query, std::int64_t key) {
    if (spec.mask == Mask::causal && key > query) return false;
    if (spec.window_left && key < query - *spec.window_left) return false;
    return !spec.window_right || key <= query + *spec.window_right;
}

AttentionSpec with(AttentionSpec spec) {
    spec.head_dim_qk = 64;
    spec.q_heads = 1;
    return validate(spec, {}).spec;
}

std::vector<AttentionSpec> masks() {
    return {with({}),
            with({.mask = Mask::causal}),
            with({.window_left = 0}),
            with({.window_right = 3}),
            with({.window_left = 4, .window_right = 2}),
            with({.mask = Mask::causal, .window_left = 6})};
}

}  // namespace

TEST_CASE("the interval is the keys that the mask lets through", "[key_bounds]") {
    for (const AttentionSpec& spec : masks()) {
        const KeyBounds bounds = bounds_of(spec);
        for (std::int64_t query = -9; query < kKeys; ++query) {
            const KeyInterval seen = bounds.seen_from(query, kKeys);
            for (std::int64_t key = 0; key < kKeys; ++key)
                REQUIRE((key >= seen.first && key < seen.end) == sees(spec, query, key));
        }
    }
}

TEST_CASE("both ends of the interval never decrease", "[key_bounds]") {
    for (const AttentionSpec& spec : masks()) {
        const KeyBounds bounds = bounds_of(spec);
        for (std::int64_t query = -8; query < kKeys; ++query) {
            CHECK(bounds.seen_from(query, kKeys).first >= bounds.seen_from(query - 1, kKeys).first);
            CHECK(bounds.seen_from(query, kKeys).end >= bounds.seen_from(query - 1, kKeys).end);
        }
    }
}

TEST_CASE("a mask's class and sides", "[key_bounds]") {
    const auto class_of = [](const AttentionSpec& spec) { return bounds_of(with(spec)).mask_class(); };
    CHECK(class_of({}) == MaskClass::full);
    CHECK(class_of({.mask = Mask::causal}) == MaskClass::causal);
    CHECK(class_of({.window_right = 0}) == MaskClass::causal);  // the same mask, said otherwise
    CHECK(class_of({.mask = Mask::causal, .window_left = 7}) == MaskClass::window);
    CHECK(class_of({.window_left = 7}) == MaskClass::window);
    const auto sides_of = [](const AttentionSpec& spec) { return bounds_of(with(spec)).work(1, 4096).sides; };
    CHECK(sides_of({}) == 0);
    CHECK(sides_of({.mask = Mask::causal}) == 1);
    CHECK(sides_of({.window_left = 3, .window_right = 3}) == 2);
}
