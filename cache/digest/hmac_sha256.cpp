#include "cache/digest/hmac_sha256.hpp"

#include <algorithm>
#include <array>

namespace attnsmith::cache {
namespace {

using HmacBlock = std::array<std::byte, sha256::kBlockBytes>;

HmacBlock key_with(const HmacBlock& key, std::byte pad) {
    HmacBlock block = key;
    for (std::byte& byte : block) byte ^= pad;
    return block;
}

}  // namespace

Sha256Digest hmac_sha256(std::span<const std::byte> key, std::span<const std::byte> message) {
    HmacBlock block{};
    if (key.size() <= block.size()) {
        std::ranges::copy(key, block.begin());
    } else {
        const Sha256Digest shorter = sha256_of(key);
        std::ranges::copy(std::as_bytes(std::span(shorter.bytes)), block.begin());
    }
    const Sha256Digest inner = Sha256().add(key_with(block, std::byte{0x36})).add(message).digest();
    return Sha256().add(key_with(block, std::byte{0x5c})).add(std::as_bytes(std::span(inner.bytes))).digest();
}

}  // namespace attnsmith::cache
