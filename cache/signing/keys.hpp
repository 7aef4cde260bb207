// Keys and signatures of Ed25519 (RFC 8032).
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "cache/files/status.hpp"

namespace attnsmith::cache {

struct PublicKey {
    std::array<std::byte, 32> bytes{};

    // The first kIdDigits hexadecimal digits of the SHA-256 of its bytes: how a signature says whose it is.
    std::string id() const;
    static constexpr std::size_t kIdDigits = 16;
    // Whether a key could have this id: a text of another form is not to be shown in a message.
    static bool is_id(std::string_view text);

    friend bool operator==(const PublicKey&, const PublicKey&) = default;
};

// Its seed is overwritten when it goes. It is never part of a message.
class SecretKey {
  public:
    static constexpr std::size_t kBytes = 32;

    explicit SecretKey(std::span<const std::byte, kBytes> seed);
    SecretKey(const SecretKey& other);
    SecretKey& operator=(const SecretKey& other);
    ~SecretKey();

    std::span<const std::byte, kBytes> seed() const { return seed_; }

  private:
    std::array<std::byte, kBytes> seed_;
};

using Signature = std::array<std::byte, 64>;

// 128 lower-case digits.
std::string hex_of(const Signature& signature);
// Accepts exactly what hex_of() writes.
std::optional<Signature> parse_signature(std::string_view hex);

// Whether anyone can sign for it: a point of small order, for which a signature may hold for any message.
// Libraries differ in whether they refuse these.
bool is_weak(const PublicKey& key);

// A seed from the kernel's random numbers.
Result<SecretKey> random_secret_key();

}  // namespace attnsmith::cache
