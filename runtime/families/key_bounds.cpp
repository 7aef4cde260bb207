#include "families/key_bounds.hpp"

#include <algorithm>
#include <optional>

namespace attnsmith::families {
namespace {

std::int32_t window_or_none(const std::optional<std::int64_t>& window) {
    return static_cast<std::int32_t>(
        std::min<std::int64_t>(window.value_or(abi::kUnbounded), abi::kUnbounded));
}

bool is_bound(std::int32_t window) { return window < abi::kUnbounded; }

}  // namespace

abi::KeyBounds bounds_of(const AttentionSpec& spec) {
    return {.window_left = window_or_none(spec.window_left),
            .window_right = spec.mask == Mask::causal ? 0 : window_or_none(spec.window_right),
            .attention_chunk = abi::divisor_of(static_cast<std::int32_t>(spec.attention_chunk.value_or(0))),
            .causal_block = abi::divisor_of(static_cast<std::int32_t>(spec.causal_block.value_or(0)))};
}

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

MaskClass mask_class(const abi::KeyBounds& bounds) {
    const bool left = is_bound(bounds.window_left), right = is_bound(bounds.window_right);
    if (!left && bounds.window_right == 0) return MaskClass::causal;
    return left || right ? MaskClass::window : MaskClass::full;
}

KeyWork key_work(const abi::KeyBounds& bounds, std::int64_t q_len, std::int64_t kv_len) {
    constexpr std::int64_t kTokensOfATile = 64;
    const bool left = is_bound(bounds.window_left), right = is_bound(bounds.window_right);
    KeyWork work{.sides = int{left} + int{right}};
    if (bounds.attention_chunk > 0 &&
        bounds.attention_chunk < kv_len) {  // each chunk is like a sequence by itself
        work.sides = 2;
        kv_len = bounds.attention_chunk;
        q_len = std::min<std::int64_t>(q_len, bounds.attention_chunk);
    }
    work.keys = kv_len;
    if (bounds.window_right == 0) {
        const std::int64_t hidden = q_len - std::min<std::int64_t>(q_len, bounds.causal_block);
        work.keys = std::max<std::int64_t>(1, work.keys - hidden / 2);
    }
    if (left && right)
        work.keys = std::min(work.keys, std::int64_t{bounds.window_left} + bounds.window_right + 1 +
                                            std::min(q_len, kTokensOfATile));
    work.keys = std::max<std::int64_t>(1, work.keys);
    return work;
}

}  // namespace attnsmith::families
