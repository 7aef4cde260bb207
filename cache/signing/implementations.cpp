#include "cache/signing/implementations.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <string_view>

#include "cache/digest/sha256.hpp"

namespace attnsmith::cache {
namespace {

// What does not sign and verify as others do is not used: a library whose calls reach another's functions,
// say, which a program brought along.
bool gives_right_answers(const Ed25519& ed25519) {
    // RFC 8032, 7.1, test 1: the public key of this seed.
    constexpr std::string_view kSeed = "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60";
    constexpr std::string_view kPublic = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a";
    const auto seed = Sha256Digest::parse(kSeed), expected = Sha256Digest::parse(kPublic);
    const SecretKey key(std::span<const std::byte, SecretKey::kBytes>(std::as_bytes(std::span(seed->bytes))));
    const Result<PublicKey> found = ed25519.public_key_of(key);
    if (!found || !std::ranges::equal(found->bytes, std::as_bytes(std::span(expected->bytes)))) return false;
    const auto message = std::as_bytes(std::span(kSeed));
    Result<Signature> signature = ed25519.sign(key, message);
    if (!signature) return false;
    const Result<bool> right = ed25519.verify(*found, message, *signature);
    signature->front() ^= std::byte{1};
    const Result<bool> wrong = ed25519.verify(*found, message, *signature);
    return right && *right && wrong && !*wrong;
}

OpenedEd25519 tried(OpenedEd25519 opened) {
    if (!opened || gives_right_answers(**opened)) return opened;
    return Status::recoverable_error(ENOSYS, {},
                                     fmt::format("{} does not sign as RFC 8032 says", (*opened)->name()));
}

}  // namespace

OpenedEd25519 open_ed25519(std::span<const char* const> openssl_names,
                           std::span<const char* const> libsodium_names) {
    OpenedEd25519 openssl = tried(open_openssl(openssl_names));
    if (openssl) return openssl;
    OpenedEd25519 libsodium = tried(open_libsodium(libsodium_names));
    if (libsodium) return libsodium;
    return Status::recoverable_error(
        ENOSYS, {},
        fmt::format("signatures need OpenSSL 3 or libsodium, and neither can be used: install one of them "
                    "(apt-get install libssl3 or libsodium23) ({}; {})",
                    openssl.status().message, libsodium.status().message));
}

}  // namespace attnsmith::cache
