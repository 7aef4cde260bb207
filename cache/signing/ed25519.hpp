// Ed25519 signatures (RFC 8032), by any library that has them. Internal to cache/.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "cache/files/status.hpp"
#include "cache/signing/keys.hpp"

namespace attnsmith::cache {

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

}  // namespace attnsmith::cache
