// HMAC (RFC 2104) of SHA-256.
#pragma once

#include <cstddef>
#include <span>

#include "cache/digest/sha256.hpp"

namespace attnsmith::cache {

// The key may have any length.
Sha256Digest hmac_sha256(std::span<const std::byte> key, std::span<const std::byte> message);

}  // namespace attnsmith::cache
