// SHA-256 (FIPS 180-4), of our own so that whoever embeds the library needs no OpenSSL.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "cache/digest/sha256_blocks.hpp"

namespace attnsmith::cache {

// The digest's 32 bytes, in the order in which they are written.
struct Sha256Digest {
    static constexpr std::size_t kBytes = 32;
    static constexpr std::size_t kHexDigits = 64;

    std::array<std::uint8_t, kBytes> bytes{};

    // 64 lower-case digits, as sha256sum prints them.
    std::string hex() const;
    // Accepts exactly what hex() writes.
    static std::optional<Sha256Digest> parse(std::string_view hex);

    friend bool operator==(const Sha256Digest&, const Sha256Digest&) = default;
};

// Whether a text is so many hexadecimal digits, none of them a capital letter, as digests are written.
bool is_lower_hex(std::string_view text, std::size_t digits);

// Takes the message in parts. Copyable; not thread-safe.
class Sha256 {
  public:
    // Takes the fastest implementation that this processor has; all give the same digests.
    explicit Sha256(sha256::AddBlocks add_blocks = sha256::fastest()) : add_blocks_(add_blocks) {}

    Sha256& add(std::span<const std::byte> bytes);
    // The digest of all bytes so far; more may be added afterwards.
    Sha256Digest digest() const;

  private:
    static constexpr std::size_t kBlockBytes = sha256::kBlockBytes;
    using Block = std::array<std::byte, kBlockBytes>;

    sha256::AddBlocks add_blocks_;
    // FIPS 180-4, 5.3.3: the first 32 bits of the fractions of the square roots of the first 8 primes.
    sha256::State state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                            0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    Block pending_{};
    std::uint64_t total_bytes_ = 0;
};

Sha256Digest sha256_of(std::span<const std::byte> bytes);

}  // namespace attnsmith::cache
