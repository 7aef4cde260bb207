// Integers and digests as the cache's files hold them. Internal to cache/.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cache/digest/digest.hpp"

namespace attnsmith::cache {

template <class Integer>
void put_little_endian(std::byte* at, Integer value) {
    for (std::size_t i = 0; i < sizeof(Integer); ++i) at[i] = static_cast<std::byte>(value >> (8 * i));
}

template <class Integer>
Integer get_little_endian(const std::byte* at) {
    Integer value = 0;
    for (std::size_t i = 0; i < sizeof(Integer); ++i) {
        value |= static_cast<Integer>(std::to_integer<Integer>(at[i]) << (8 * i));
    }
    return value;
}

// Digests stand in the order of their hex text.
inline void put_digest(std::byte* at, const Digest& digest) {
    for (std::size_t i = 0; i < 8; ++i) {
        at[i] = static_cast<std::byte>(digest.high() >> (56 - 8 * i));
        at[8 + i] = static_cast<std::byte>(digest.low() >> (56 - 8 * i));
    }
}

inline Digest get_digest(const std::byte* at) {
    std::uint64_t high = 0;
    std::uint64_t low = 0;
    for (std::size_t i = 0; i < 8; ++i) {
        high = high << 8 | std::to_integer<std::uint64_t>(at[i]);
        low = low << 8 | std::to_integer<std::uint64_t>(at[8 + i]);
    }
    return {high, low};
}

}  // namespace attnsmith::cache
