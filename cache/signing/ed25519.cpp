#include "cache/signing/ed25519.hpp"

#include <fmt/format.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>

#include "cache/digest/sha256.hpp"
#include "cache/signing/implementations.hpp"
#include "cache/signing/secrets.hpp"

namespace attnsmith::cache {
namespace {

// The points whose order divides 8, by their y without the bit that tells x from -x, in each form that is
// decoded to them: y and, where it has 255 bits, y + p. (p is 2^255 - 19; y is 0, 1, -1 or, of order 8, one
// of two numbers.)
constexpr std::array<const char*, 7> kSmallOrder = {
    "0000000000000000000000000000000000000000000000000000000000000000",
    "0100000000000000000000000000000000000000000000000000000000000000",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"};

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

std::string PublicKey::id() const { return sha256_of(bytes).hex().substr(0, kIdDigits); }

bool PublicKey::is_id(std::string_view text) { return is_lower_hex(text, kIdDigits); }

SecretKey::SecretKey(std::span<const std::byte, kBytes> seed) { std::ranges::copy(seed, seed_.begin()); }

SecretKey::SecretKey(const SecretKey& other) = default;

SecretKey& SecretKey::operator=(const SecretKey& other) = default;

SecretKey::~SecretKey() { ::explicit_bzero(seed_.data(), seed_.size()); }

bool is_weak(const PublicKey& key) {
    Sha256Digest text;  // for its digits
    for (std::size_t i = 0; i < text.bytes.size(); ++i)
        text.bytes[i] = std::to_integer<std::uint8_t>(key.bytes[i]);
    text.bytes.back() &= 0x7f;
    return std::ranges::find(kSmallOrder, text.hex()) != kSmallOrder.end();
}

Result<SecretKey> random_secret_key() {
    std::array<std::byte, SecretKey::kBytes> seed;
    const Overwriting overwriting(seed.data(), seed.size());
    if (::getentropy(seed.data(), seed.size()) != 0)
        return Status::from_errno(errno, "get random numbers from the system", {});
    return SecretKey(seed);
}

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

Result<const Ed25519*> ed25519() {
    // Kept for ever: threads may verify while the process ends. No lock that a fork could leave held, as that
    // of a static local is: two threads that are the first each open it, and one of them is too late.
    static constinit std::atomic<const OpenedEd25519*> the_one{nullptr};
    const OpenedEd25519* opened = the_one.load(std::memory_order_acquire);
    if (opened == nullptr) {
        auto fresh = std::make_unique<const OpenedEd25519>(open_ed25519());
        if (the_one.compare_exchange_strong(opened, fresh.get(), std::memory_order_acq_rel))
            opened = fresh.release();
    }
    if (!*opened) return opened->status();
    return opened->value().get();
}

std::string hex_of(const Signature& signature) {
    std::string digits;
    for (const std::byte byte : signature) digits += fmt::format("{:02x}", std::to_integer<int>(byte));
    return digits;
}

std::optional<Signature> parse_signature(std::string_view digits) {
    constexpr std::string_view kDigits = "0123456789abcdef";
    Signature signature;
    if (digits.size() != 2 * signature.size()) return std::nullopt;
    for (std::size_t i = 0; i < signature.size(); ++i) {
        const std::size_t high = kDigits.find(digits[2 * i]), low = kDigits.find(digits[2 * i + 1]);
        if (high == kDigits.npos || low == kDigits.npos) return std::nullopt;
        signature[i] = static_cast<std::byte>(high << 4 | low);
    }
    return signature;
}

}  // namespace attnsmith::cache
