// Which keys a mask and its windows let through, as an interval of keys for each query: said once, for
// planning, for the kernels' arguments and for counting work. A new mask of this kind is a change here, of
// the kernels' arguments, and of kernel_templates/attention/mask.cuh. The reference of tools/check stays
// apart: it is what this is held against.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "attnsmith/spec.hpp"

namespace attnsmith::problem {

// Keys first .. end - 1; none where end <= first.
struct KeyInterval {
    std::int64_t first = 0, end = 0;

    std::int64_t count() const { return end > first ? end - first : 0; }
};

// What tiles are tuned for. A causal mask with any other bound is a window.
enum class MaskClass : std::uint8_t { full, causal, window };
std::string_view to_string(MaskClass mask);

struct KeyBounds {
    // Keys before and behind the query's own position that it sees, at most; absent: no bound on that side.
    std::optional<std::int64_t> left{}, right{};

    MaskClass mask_class() const;
    // On how many sides of it a query's position bounds its keys, so that other queries see other keys.
    int sides() const;
    // What the query at an absolute position sees of so many keys: the last query is at position kv_len - 1.
    KeyInterval seen_from(std::int64_t position, std::int64_t kv_len) const;
    // How many keys a query of average position sees, with what the queries of one tile see beyond it.
    std::int64_t average_keys(std::int64_t q_len, std::int64_t kv_len) const;
};

// `spec` is a validated one's.
KeyBounds bounds_of(const AttentionSpec& spec);

}  // namespace attnsmith::problem
