#include "problem/request/key_bounds.hpp"

#include <algorithm>

#include "problem/request/problem.hpp"

namespace attnsmith::problem {

std::string_view to_string(MaskClass mask) {
    switch (mask) {
        case MaskClass::full:
            return "full";
        case MaskClass::causal:
            return "causal";
        case MaskClass::window:
            return "window";
    }
    return "?";
}

KeyBounds bounds_of(const AttentionSpec& spec) {
    if (spec.mask == Mask::causal) return {.left = spec.window_left, .right = 0};
    return {.left = spec.window_left, .right = spec.window_right};
}

MaskClass KeyBounds::mask_class() const {
    if (!left && right == 0) return MaskClass::causal;
    return left || right ? MaskClass::window : MaskClass::full;
}

int KeyBounds::sides() const { return int{left.has_value()} + int{right.has_value()}; }

KeyInterval KeyBounds::seen_from(std::int64_t position, std::int64_t kv_len) const {
    return {.first = std::max<std::int64_t>(0, position - left.value_or(kMaxLength)),
            .end = std::min(kv_len, position + right.value_or(kMaxLength) + 1)};
}

std::int64_t KeyBounds::average_keys(std::int64_t q_len, std::int64_t kv_len) const {
    constexpr std::int64_t kTokensOfATile = 64;
    std::int64_t keys = kv_len;
    if (right == 0) keys = std::max<std::int64_t>(1, keys - q_len / 2);
    if (left && right) keys = std::min(keys, *left + *right + 1 + std::min(q_len, kTokensOfATile));
    return std::max<std::int64_t>(1, keys);
}

}  // namespace attnsmith::problem
