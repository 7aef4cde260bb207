// Key files, by a file system and a library that a test may choose. Internal to cache/signing.
#pragma once

#include <cstddef>
#include <string>

#include "cache/files/file_system.hpp"
#include "cache/signing/ed25519.hpp"

namespace attnsmith::cache {

// Far more than any key takes: a file that is named by mistake is not read whole.
inline constexpr std::size_t kMaxKeyFileBytes = std::size_t{1} << 16;
inline constexpr const char* kPublicKeyEnding = ".pub";

Result<SecretKey> read_secret_key(FileSystem& files, const std::string& file);
Result<PublicKey> read_public_key(FileSystem& files, const std::string& file);
Result<PublicKey> write_new_keys(FileSystem& files, const Ed25519& ed25519, const std::string& file);

}  // namespace attnsmith::cache
