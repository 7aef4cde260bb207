// Files of keys. Internal to cache/.
#pragma once

#include <string>

#include "cache/files/file_system.hpp"
#include "cache/files/status.hpp"
#include "cache/signing/ed25519.hpp"
#include "cache/signing/keys.hpp"

namespace attnsmith::cache {

inline constexpr const char* kPublicKeyEnding = ".pub";

// EPERM for a secret key that others may read, with the remedy; EINVAL for what is no regular file of at most
// 64 KiB or no key; else what the system said.
Result<SecretKey> read_secret_key(const std::string& file);
Result<PublicKey> read_public_key(const std::string& file);

// Writes a new secret key to `file`, with mode 0600, and its public key to `file`.pub, both or neither.
// EEXIST where one of them is there.
Result<PublicKey> write_new_keys(const std::string& file);

// The same, by a file system and a library that a test may choose.
Result<SecretKey> read_secret_key(FileSystem& files, const std::string& file);
Result<PublicKey> read_public_key(FileSystem& files, const std::string& file);
Result<PublicKey> write_new_keys(FileSystem& files, const Ed25519& ed25519, const std::string& file);

}  // namespace attnsmith::cache
