// Keys as PEM: one form is read, the one that is written, and of anything else it is said what it is.
#include "cache/signing/key_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <iterator>
#include <optional>
#include <span>

#include "cache/signing/base64.hpp"
#include "cache/signing/secrets.hpp"

namespace attnsmith::cache {
namespace {

// What a key's bytes follow in DER: RFC 8410, 7 (PrivateKeyInfo, version 0, without a public key) and 4
// (SubjectPublicKeyInfo).
constexpr std::array<std::uint8_t, 16> kSecretPrefix = {0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06,
                                                        0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20};
constexpr std::array<std::uint8_t, 12> kPublicPrefix = {0x30, 0x2a, 0x30, 0x05, 0x06, 0x03,
                                                        0x2b, 0x65, 0x70, 0x03, 0x21, 0x00};
constexpr std::size_t kKeyBytes = 32;
constexpr std::size_t kLongestDer = kSecretPrefix.size() + kKeyBytes;

constexpr std::string_view kSecretLabel = "PRIVATE KEY";
constexpr std::string_view kPublicLabel = "PUBLIC KEY";
constexpr std::string_view kBegin = "-----BEGIN ";
constexpr std::string_view kEnd = "-----END ";
constexpr std::string_view kDashes = "-----";
constexpr std::string_view kBlanks = " \t\r\n";

// One of the two kinds of key: how it is written.
struct Form {
    const char* what;
    std::string_view label;
    std::span<const std::uint8_t> prefix;
};
constexpr Form kSecretForm = {"an Ed25519 secret key", kSecretLabel, kSecretPrefix};
constexpr Form kPublicForm = {"an Ed25519 public key", kPublicLabel, kPublicPrefix};

void append_pem(const Form& form, std::span<const std::byte> key, std::string& text) {
    std::array<std::byte, kLongestDer> der;
    const Overwriting overwriting(der.data(), der.size());
    auto end = std::ranges::copy(std::as_bytes(form.prefix), der.begin()).out;
    end = std::ranges::copy(key, end).out;
    // All at once, so that no memory is left behind that had part of a secret.
    text.reserve(2 * (kBegin.size() + form.label.size() + kDashes.size() + 1) + 2 * kLongestDer);
    text.append(kBegin).append(form.label).append(kDashes).append("\n");
    append_base64(std::span(der.begin(), end), text);
    text.append("\n").append(kEnd).append(form.label).append(kDashes).append("\n");
}

struct KnownLabel {
    std::string_view label;
    const char* what;
};
constexpr KnownLabel kLabels[] = {
    {"ENCRYPTED PRIVATE KEY",
     "an encrypted key (`openssl pkey -in FILE -out NEW` writes one without a password)"},
    {"OPENSSH PRIVATE KEY", "a key of OpenSSH's"},
    {"RSA PRIVATE KEY", "an RSA key"},
    {"RSA PUBLIC KEY", "an RSA key"},
    {"EC PARAMETERS", "an EC key"},
    {"EC PRIVATE KEY", "an EC key"},
    {"DSA PRIVATE KEY", "a DSA key"},
    {"CERTIFICATE", "a certificate"},
    {"CERTIFICATE REQUEST", "a certificate request"},
};

// The object identifiers of other algorithms (X.690), as they stand within the first bytes of a key.
struct KnownAlgorithm {
    std::string_view identifier;
    const char* what;
};
constexpr KnownAlgorithm kAlgorithms[] = {
    {"\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x01", "an RSA key"},
    {"\x06\x07\x2a\x86\x48\xce\x3d\x02\x01", "an EC key"},
    {"\x06\x07\x2a\x86\x48\xce\x38\x04\x01", "a DSA key"},
    {"\x06\x03\x2b\x65\x6e", "an X25519 key, which cannot sign"},
    {"\x06\x03\x2b\x65\x6f", "an X448 key, which cannot sign"},
    {"\x06\x03\x2b\x65\x71", "an Ed448 key"},
    {"\x06\x03\x2b\x65\x70", "an Ed25519 key in another form than OpenSSL writes by default"},
};

Status refuse(const Form& form, std::string_view what) {
    return Status::recoverable_error(
        EINVAL, {},
        fmt::format("not {}, as `attnsmith cache keygen` and OpenSSL write it: this is {}", form.what, what));
}

std::string_view trimmed(std::string_view text) {
    const std::size_t first = text.find_first_not_of(kBlanks);
    if (first == text.npos) return {};
    return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

const char* what_without_pem(std::string_view text) {
    if (text.starts_with("ssh-")) return "a key of OpenSSH's";
    // A sequence, and bytes that no text has.
    const auto is_control = [](char c) { return c >= 0 && c < ' '; };
    if (text.front() == 0x30 && std::ranges::any_of(text.substr(0, kPublicPrefix.size()), is_control))
        return "DER, not PEM (`openssl pkey -inform DER -in FILE -out NEW` writes PEM)";
    return "no PEM file";
}

std::string what_by_label(const Form& form, std::string_view label) {
    if (label == kSecretLabel && form.label == kPublicLabel)
        return "the secret key; the public one is the file with .pub";
    if (label == kPublicLabel && form.label == kSecretLabel)
        return "the public key; the secret one is the file without .pub";
    const auto found = std::ranges::find(kLabels, label, &KnownLabel::label);
    return found != std::end(kLabels) ? found->what : "a PEM file of another kind";
}

// By how it begins: it may be too long to be decoded whole.
std::string what_by_algorithm(std::string_view base64) {
    constexpr std::size_t kLooked = 64;
    std::array<std::byte, kLooked> der{};
    const Overwriting overwriting(der.data(), der.size());
    const std::size_t whole = std::min(base64.size(), kLooked) / 4 * 4;
    if (!decode_base64(base64.substr(0, whole), der)) return "broken: its base64 is";
    const std::string_view bytes(reinterpret_cast<const char*>(der.data()), der.size());
    for (const KnownAlgorithm& known : kAlgorithms) {
        if (bytes.find(known.identifier) != bytes.npos) return known.what;
    }
    return "a key of another algorithm, or broken";
}

// The label and what is between the lines, or a refusal.
struct Block {
    std::string_view label, body;
};
Result<Block> find_block(const Form& form, std::string_view text) {
    if (text.size() > kMaxKeyBytes) return refuse(form, "far too long");
    text = trimmed(text);
    if (text.empty()) return refuse(form, "empty");
    const std::size_t begin = text.find(kBegin);
    if (begin == text.npos) return refuse(form, what_without_pem(text));
    if (begin != 0) return refuse(form, "PEM with something else before it");
    const std::size_t label_end = text.find(kDashes, kBegin.size());
    if (label_end == text.npos || text.substr(0, label_end).find('\n') != text.npos)
        return refuse(form, "broken PEM: its first line does not end");
    Block block;
    block.label = text.substr(kBegin.size(), label_end - kBegin.size());
    if (block.label != form.label) return refuse(form, what_by_label(form, block.label));
    const std::size_t body = label_end + kDashes.size();
    const std::string end_line = fmt::format("{}{}{}", kEnd, form.label, kDashes);
    const std::size_t end = text.find(end_line, body);
    if (end == text.npos) return refuse(form, "cut: there is no END line");
    block.body = text.substr(body, end - body);
    const std::string_view rest = trimmed(text.substr(end + end_line.size()));
    if (rest.starts_with(kBegin)) return refuse(form, "several keys: give each its own file");
    if (!rest.empty()) return refuse(form, "PEM with something else behind it");
    if (block.body.find("DEK-Info:") != block.body.npos) return refuse(form, kLabels[0].what);
    return block;
}

// Writes the key's bytes, or says what is there instead.
Status parse(const Form& form, std::string_view text, std::span<std::byte, kKeyBytes> key) {
    const Result<Block> block = find_block(form, text);
    if (!block) return block.status();
    // Lines may be broken anywhere, as by who pastes them.
    SecretText base64;
    base64.get().reserve(block->body.size());
    std::ranges::copy_if(block->body, std::back_inserter(base64.get()),
                         [](char c) { return kBlanks.find(c) == kBlanks.npos; });
    std::array<std::byte, kLongestDer> der;
    const Overwriting overwriting(der.data(), der.size());
    const std::optional<std::size_t> size = decode_base64(base64.get(), der);
    const auto prefix = std::as_bytes(form.prefix);
    if (size != prefix.size() + key.size() || !std::equal(prefix.begin(), prefix.end(), der.begin())) {
        return refuse(form, what_by_algorithm(base64.get()));
    }
    std::copy_n(der.begin() + static_cast<std::ptrdiff_t>(prefix.size()), key.size(), key.begin());
    return Status::success();
}

}  // namespace

std::string encode(const SecretKey& key) {
    std::string text;
    append_pem(kSecretForm, key.seed(), text);
    return text;
}

std::string encode(const PublicKey& key) {
    std::string text;
    append_pem(kPublicForm, key.bytes, text);
    return text;
}

Result<SecretKey> parse_secret_key(std::string_view text) {
    std::array<std::byte, kKeyBytes> seed;
    const Overwriting overwriting(seed.data(), seed.size());
    if (Status parsed = parse(kSecretForm, text, seed); !parsed.ok()) return parsed;
    return SecretKey(seed);
}

Result<PublicKey> parse_public_key(std::string_view text) {
    PublicKey key;
    if (Status parsed = parse(kPublicForm, text, key.bytes); !parsed.ok()) return parsed;
    if (is_weak(key)) return refuse(kPublicForm, "one that anybody can sign for (of small order)");
    return key;
}

}  // namespace attnsmith::cache
