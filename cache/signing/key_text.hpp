// Keys as text. Internal to cache/.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "cache/files/status.hpp"
#include "cache/signing/keys.hpp"

namespace attnsmith::cache {

// Far more than any key takes: a file that is named by mistake is not read whole.
inline constexpr std::size_t kMaxKeyBytes = std::size_t{1} << 16;

// Key files are PEM, as `openssl genpkey -algorithm ed25519` and `openssl pkey -pubout` write them: PKCS#8
// (RFC 8410) and SubjectPublicKeyInfo.
std::string encode(const SecretKey& key);
std::string encode(const PublicKey& key);
// EINVAL, with what it is instead, for anything but one such key with blanks around it.
Result<SecretKey> parse_secret_key(std::string_view text);
Result<PublicKey> parse_public_key(std::string_view text);

}  // namespace attnsmith::cache
