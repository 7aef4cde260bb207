#include "cache/digest/sha256.hpp"

#include <algorithm>

namespace attnsmith::cache {
namespace {

constexpr std::string_view kDigits = "0123456789abcdef";

}  // namespace

std::string Sha256Digest::hex() const {
    std::string text;
    text.reserve(Sha256Digest::kHexDigits);
    for (const std::uint8_t byte : bytes) {
        text += kDigits[byte >> 4];
        text += kDigits[byte & 15];
    }
    return text;
}

std::optional<Sha256Digest> Sha256Digest::parse(std::string_view hex) {
    if (hex.size() != Sha256Digest::kHexDigits) return std::nullopt;
    Sha256Digest digest;
    for (std::size_t i = 0; i < hex.size(); ++i) {
        const std::size_t value = kDigits.find(hex[i]);
        if (value == std::string_view::npos) return std::nullopt;
        digest.bytes[i / 2] = static_cast<std::uint8_t>(digest.bytes[i / 2] << 4 | value);
    }
    return digest;
}

bool is_lower_hex(std::string_view text, std::size_t digits) {
    return text.size() == digits && text.find_first_not_of(kDigits) == text.npos;
}

Sha256& Sha256::add(std::span<const std::byte> bytes) {
    const std::size_t waiting = total_bytes_ % kBlockBytes;
    total_bytes_ += bytes.size();
    if (waiting > 0) {
        const std::size_t taken = std::min(bytes.size(), kBlockBytes - waiting);
        std::copy_n(bytes.begin(), taken, pending_.begin() + static_cast<std::ptrdiff_t>(waiting));
        if (waiting + taken < kBlockBytes) return *this;
        add_blocks_(state_, pending_.data(), 1);
        bytes = bytes.subspan(taken);
    }
    const std::size_t blocks = bytes.size() / kBlockBytes;
    add_blocks_(state_, bytes.data(), blocks);
    bytes = bytes.subspan(blocks * kBlockBytes);
    std::copy(bytes.begin(), bytes.end(), pending_.begin());
    return *this;
}

Sha256Digest Sha256::digest() const {
    // Padding: one bit, zeros, and the message's bits in 8 bytes at the end of a block.
    constexpr std::size_t kLengthBytes = 8;
    std::array<std::byte, 2 * kBlockBytes> padding{std::byte{0x80}};
    const std::size_t waiting = total_bytes_ % kBlockBytes;
    const std::size_t padded = waiting + 1 + kLengthBytes <= kBlockBytes ? kBlockBytes : 2 * kBlockBytes;
    const std::size_t size = padded - waiting;
    for (std::size_t i = 0; i < kLengthBytes; ++i) {
        padding[size - 1 - i] = static_cast<std::byte>(total_bytes_ * 8 >> (8 * i));
    }
    Sha256 ended = *this;
    ended.add(std::span(padding).first(size));

    Sha256Digest digest;
    for (std::size_t i = 0; i < Sha256Digest::kBytes; ++i) {
        digest.bytes[i] = static_cast<std::uint8_t>(ended.state_[i / 4] >> (24 - 8 * (i % 4)));
    }
    return digest;
}

Sha256Digest sha256_of(std::span<const std::byte> bytes) { return Sha256().add(bytes).digest(); }

}  // namespace attnsmith::cache
