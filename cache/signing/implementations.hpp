// Ed25519 by each of the libraries that have it. Internal to cache/signing; tests open each by itself.
#pragma once

#include <array>
#include <memory>
#include <span>

#include "cache/signing/ed25519.hpp"

namespace attnsmith::cache {

// As the libraries take bytes.
inline const unsigned char* raw(const std::byte* bytes) {
    return reinterpret_cast<const unsigned char*>(bytes);
}
inline unsigned char* raw(std::byte* bytes) { return reinterpret_cast<unsigned char*>(bytes); }

// Versions of other numbers have other functions, or functions that take other arguments.
inline constexpr std::array kOpenSslNames = {"libcrypto.so.3"};
inline constexpr std::array kLibsodiumNames = {"libsodium.so.23", "libsodium.so.26", "libsodium.so"};

// ENOSYS where none of the names can be opened, or what is opened lacks a function or gives wrong answers.
using OpenedEd25519 = Result<std::shared_ptr<const Ed25519>>;
OpenedEd25519 open_openssl(std::span<const char* const> names = kOpenSslNames);
OpenedEd25519 open_libsodium(std::span<const char* const> names = kLibsodiumNames);
// The first of the two. ENOSYS says what to install.
OpenedEd25519 open_ed25519(std::span<const char* const> openssl_names = kOpenSslNames,
                           std::span<const char* const> libsodium_names = kLibsodiumNames);

}  // namespace attnsmith::cache
