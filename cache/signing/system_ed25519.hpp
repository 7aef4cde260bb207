// Ed25519 by the system's OpenSSL 3 or libsodium, which are opened at run time and nowhere linked. Internal
// to cache/.
#pragma once

#include "cache/signing/ed25519.hpp"

namespace attnsmith::cache {

// Opened once in a process; OpenSSL before libsodium.
Result<const Ed25519*> ed25519();

}  // namespace attnsmith::cache
