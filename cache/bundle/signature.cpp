#include "cache/bundle/signature.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <optional>
#include <string_view>
#include <vector>

#include "cache/files/named_file.hpp"
#include "cache/signing/system_ed25519.hpp"

namespace attnsmith::cache {
namespace {

constexpr const char* kSignatureSchema = "attnsmith.bundle-signature/1";
constexpr std::string_view kKey = "key ";
constexpr std::string_view kManifest = "manifest-sha256 ";
constexpr std::string_view kSignature = "ed25519 ";
constexpr std::size_t kMaxBytes = 4096;  // far more than one has

// The lines that are signed. The first keeps what is signed here from being taken for anything else that the
// key signs.
std::string signed_text(std::string_view key_id, const Sha256Digest& manifest) {
    return fmt::format("{}\n{}{}\n{}{}\n", kSignatureSchema, kKey, key_id, kManifest, manifest.hex());
}

// The rest of the next line, which begins so; nothing where it does not, or does not end.
std::optional<std::string_view> take_line(std::string_view& text, std::string_view begin) {
    const std::size_t end = text.find('\n');
    if (!text.starts_with(begin) || end == text.npos || end < begin.size()) return std::nullopt;
    const std::string_view line = text.substr(begin.size(), end - begin.size());
    text.remove_prefix(end + 1);
    return line;
}

struct Parsed {
    std::string_view key_id;
    Sha256Digest manifest;
    Signature signature;
};

std::optional<Parsed> parse(std::string_view text) {
    const auto schema = take_line(text, kSignatureSchema);
    if (!schema || !schema->empty()) return std::nullopt;
    const auto key_id = take_line(text, kKey);
    if (!key_id) return std::nullopt;
    const auto hex = take_line(text, kManifest);
    const auto manifest = hex ? Sha256Digest::parse(*hex) : std::nullopt;
    if (!manifest) return std::nullopt;
    const auto digits = take_line(text, kSignature);
    const auto signature = digits ? parse_signature(*digits) : std::nullopt;
    if (!signature || !text.empty()) return std::nullopt;
    return Parsed{*key_id, *manifest, *signature};
}

// What is no key's id does not get into a message as it is.
std::string shown_id(std::string_view id) { return PublicKey::is_id(id) ? std::string(id) : "another key"; }

Status refuse(const std::string& path, std::string why) {
    return Status::recoverable_error(EPERM, path, "the bundle is not trusted: " + std::move(why));
}

Status by_another_key(const Bundle& bundle, std::string_view id, std::span<const PublicKey> trusted) {
    std::vector<std::string> ids;
    for (const PublicKey& key : trusted) ids.push_back(key.id());
    return refuse(bundle.path(),
                  fmt::format("key {} signed it, and only {} {} trusted (trust_key_files, --trust-key)",
                              shown_id(id), fmt::join(ids, ", "), ids.size() == 1 ? "is" : "are"));
}

}  // namespace

std::string signature_path(const std::string& bundle) { return bundle + ".sig"; }

Result<std::string> signature_text(const Ed25519& ed25519, const SecretKey& key,
                                   const Sha256Digest& manifest) {
    const Result<PublicKey> known = ed25519.public_key_of(key);
    if (!known) return known.status();
    std::string text = signed_text(known->id(), manifest);
    const Result<Signature> signature = ed25519.sign(key, std::as_bytes(std::span(text)));
    if (!signature) return signature.status();
    return text + fmt::format("{}{}\n", kSignature, hex_of(*signature));
}

Result<PublicKey> find_signer(FileSystem& files, const Bundle& bundle, std::span<const PublicKey> trusted) {
    const Result<const Ed25519*> opened = ed25519();
    if (!opened) return opened.status();
    const std::string path = signature_path(bundle.path());
    std::string text;
    const Status read = read_named_file(files, path, kMaxBytes, text);
    if (read.error_number == ENOENT) {
        return refuse(bundle.path(), fmt::format("it is not signed, there is no {} (sign it: attnsmith cache "
                                                 "export --sign-key)",
                                                 path));
    }
    if (!read.ok()) return read;
    const std::optional<Parsed> parsed = parse(text);
    if (!parsed) {
        return Status::recoverable_error(EBADMSG, path,
                                         "not a bundle's signature of a form that this build reads");
    }
    const auto message = std::as_bytes(std::span(std::string_view(text)))
                             .first(signed_text(parsed->key_id, parsed->manifest).size());
    bool is_known = false;
    for (const PublicKey& key : trusted) {
        if (key.id() != parsed->key_id) continue;
        is_known = true;
        const Result<bool> verified = (*opened)->verify(key, message, parsed->signature);
        if (!verified) return verified.status();
        if (!*verified) continue;
        if (parsed->manifest == bundle.manifest_sha256()) return key;
        return refuse(bundle.path(), fmt::format("key {} signed another manifest than it has: the bundle was "
                                                 "changed since, or {} is another bundle's",
                                                 key.id(), path));
    }
    if (!is_known) return by_another_key(bundle, parsed->key_id, trusted);
    return refuse(bundle.path(), fmt::format("the signature in {} is wrong: it is not by key {}, which it "
                                             "names, or was changed since",
                                             path, parsed->key_id));
}

}  // namespace attnsmith::cache
