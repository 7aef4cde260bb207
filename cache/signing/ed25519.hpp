// Ed25519 signatures (RFC 8032), by the system's OpenSSL 3 or libsodium, which are opened at run time and
// nowhere linked. Internal to cache/.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cache/files/status.hpp"

namespace attnsmith::cache {

struct PublicKey {
    std::array<std::byte, 32> bytes{};

    // The first kIdDigits hexadecimal digits of the SHA-256 of its bytes: how a signature says whose it is.
    std::string id() const;
    static constexpr std::size_t kIdDigits = 16;
    // Whether a key could have this id: what has another form is somebody's text, for no message.
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

// Thread-safe. Statuses are recoverable: ENOSYS where the system has neither library, with the remedy.
class Ed25519 {
  public:
    virtual ~Ed25519() = default;

    virtual Result<SecretKey> generate() const = 0;
    virtual Result<PublicKey> public_key_of(const SecretKey& key) const = 0;
    virtual Result<Signature> sign(const SecretKey& key, std::span<const std::byte> message) const = 0;
    virtual Result<bool> verify(const PublicKey& key, std::span<const std::byte> message,
                                const Signature& signature) const = 0;
    // "OpenSSL 3.0.19" or "libsodium 1.0.18"
    virtual std::string name() const = 0;
};

// Opened once in a process; OpenSSL before libsodium.
Result<const Ed25519*> ed25519();

// Key files are PEM, as `openssl genpkey -algorithm ed25519` and `openssl pkey -pubout` write them: PKCS#8
// (RFC 8410) and SubjectPublicKeyInfo.
std::string encode(const SecretKey& key);
std::string encode(const PublicKey& key);
// EINVAL, with what it is instead, for anything but one such key with blanks around it.
Result<SecretKey> parse_secret_key(std::string_view text);
Result<PublicKey> parse_public_key(std::string_view text);

// EPERM for a secret key that others may read, with the remedy; EINVAL for what is no regular file of at most
// 64 KiB or no key; else what the system said.
Result<SecretKey> read_secret_key(const std::string& file);
Result<PublicKey> read_public_key(const std::string& file);

// Writes a new secret key to `file`, with mode 0600, and its public key to `file`.pub, both or neither.
// EEXIST where one of them is there.
Result<PublicKey> write_new_keys(const std::string& file);

}  // namespace attnsmith::cache
