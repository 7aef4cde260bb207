#include "cache/signing/keys.hpp"

#include <fmt/format.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>

#include "cache/digest/sha256.hpp"
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
