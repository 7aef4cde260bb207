#include "cache/sha256.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

namespace attnsmith::cache {
namespace {

constexpr std::string_view kDigits = "0123456789abcdef";

// FIPS 180-4, 4.2.2: the first 32 bits of the fractions of the cube roots of the first 64 primes.
constexpr std::array<std::uint32_t, 64> kRoundConstants = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

std::uint32_t get_big_endian(const std::byte* at) {
    std::uint32_t word = 0;
    for (int i = 0; i < 4; ++i) word = word << 8 | std::to_integer<std::uint32_t>(at[i]);
    return word;
}

// The six functions of FIPS 180-4, 4.1.2, by their names there.
std::uint32_t choose(std::uint32_t x, std::uint32_t y, std::uint32_t z) { return (x & y) ^ (~x & z); }
std::uint32_t majority(std::uint32_t x, std::uint32_t y, std::uint32_t z) {
    return (x & y) ^ (x & z) ^ (y & z);
}
std::uint32_t big_sigma_0(std::uint32_t x) { return std::rotr(x, 2) ^ std::rotr(x, 13) ^ std::rotr(x, 22); }
std::uint32_t big_sigma_1(std::uint32_t x) { return std::rotr(x, 6) ^ std::rotr(x, 11) ^ std::rotr(x, 25); }
std::uint32_t small_sigma_0(std::uint32_t x) { return std::rotr(x, 7) ^ std::rotr(x, 18) ^ (x >> 3); }
std::uint32_t small_sigma_1(std::uint32_t x) { return std::rotr(x, 17) ^ std::rotr(x, 19) ^ (x >> 10); }

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

Sha256& Sha256::add(std::span<const std::byte> bytes) {
    const std::size_t waiting = total_bytes_ % kBlockBytes;
    total_bytes_ += bytes.size();
    if (waiting > 0) {
        const std::size_t taken = std::min(bytes.size(), kBlockBytes - waiting);
        std::copy_n(bytes.begin(), taken, pending_.begin() + static_cast<std::ptrdiff_t>(waiting));
        if (waiting + taken < kBlockBytes) return *this;
        add_block(pending_.data());
        bytes = bytes.subspan(taken);
    }
    for (; bytes.size() >= kBlockBytes; bytes = bytes.subspan(kBlockBytes)) add_block(bytes.data());
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

// FIPS 180-4, 6.2.2.
void Sha256::add_block(const std::byte* block) {
    std::array<std::uint32_t, 64> w;
    for (std::size_t t = 0; t < 16; ++t) w[t] = get_big_endian(block + 4 * t);
    for (std::size_t t = 16; t < 64; ++t) {
        w[t] = small_sigma_1(w[t - 2]) + w[t - 7] + small_sigma_0(w[t - 15]) + w[t - 16];
    }
    auto [a, b, c, d, e, f, g, h] = state_;
    for (std::size_t t = 0; t < 64; ++t) {
        const std::uint32_t t1 = h + big_sigma_1(e) + choose(e, f, g) + kRoundConstants[t] + w[t];
        const std::uint32_t t2 = big_sigma_0(a) + majority(a, b, c);
        h = g, g = f, f = e, e = d + t1;
        d = c, c = b, b = a, a = t1 + t2;
    }
    const std::array<std::uint32_t, 8> added = {a, b, c, d, e, f, g, h};
    for (std::size_t i = 0; i < state_.size(); ++i) state_[i] += added[i];
}

Sha256Digest sha256_of(std::span<const std::byte> bytes) { return Sha256().add(bytes).digest(); }

}  // namespace attnsmith::cache
