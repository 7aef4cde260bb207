// A bundle's signature, a file beside it. FORMAT.md is the specification. Internal to cache/.
#pragma once

#include <span>
#include <string>

#include "cache/bundle/bundle.hpp"
#include "cache/digest/sha256.hpp"
#include "cache/files/file_system.hpp"
#include "cache/files/status.hpp"
#include "cache/signing/ed25519.hpp"
#include "cache/signing/keys.hpp"

namespace attnsmith::cache {

// "<bundle>.sig"
std::string signature_path(const std::string& bundle);

// The text of the signature of a bundle that has this manifest. Statuses are those of Ed25519.
Result<std::string> signature_text(const Ed25519& ed25519, const SecretKey& key,
                                   const Sha256Digest& manifest);

// Which of the keys signed the bundle, as it is open. EPERM where none did, with what is the matter: there is
// no signature, it is by another key, it is of another manifest or it is wrong. EBADMSG for what is no
// signature; ENOSYS without a library; else what the system said. A bundle without entries has one, too.
Result<PublicKey> find_signer(FileSystem& files, const Bundle& bundle, std::span<const PublicKey> trusted);

}  // namespace attnsmith::cache
