#include "cache/remote/manifest.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <nlohmann/json.hpp>
#include <utility>

#include "cache/digest/json_within.hpp"

namespace attnsmith::cache {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kManifestSchema = "attnsmith.manifest/1";
constexpr std::string_view kHintSchema = "attnsmith.hint/1";
constexpr std::string_view kPlaces = "attnsmith.remote/1";
constexpr std::string_view kSignatureWord = "ed25519";
constexpr std::size_t kMostToolchains = 16;  // of a hint
constexpr int kDeepest = 4;

std::string place_of(std::string_view text) {
    return "ac/" + sha256_of(std::as_bytes(std::span(text))).hex();
}

Status malformed(std::string why) { return Status::recoverable_error(EBADMSG, {}, std::move(why)); }

Status of_another_release(std::string_view what, const std::string& schema) {
    return Status::recoverable_error(
        EPROTONOSUPPORT, {},
        fmt::format("the {} is of another release ({} bytes of schema)", what, schema.size()));
}

// A member that is a text; nothing where it is none.
std::optional<std::string> member_text(const Json& object, const char* member) {
    const auto found = object.find(member);
    if (found == object.end() || !found->is_string()) return std::nullopt;
    return found->get<std::string>();
}

std::string_view chars_of(std::span<const std::byte> bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// "ed25519 <key id> <signature>", with a line feed; nothing where it is not.
std::optional<SignedBy> parse_signed_by(std::string_view line) {
    const std::size_t id = kSignatureWord.size() + 1, digits = id + PublicKey::kIdDigits + 1;
    if (line.size() <= digits || !line.starts_with(kSignatureWord) || line.back() != '\n' ||
        line[id - 1] != ' ' || line[digits - 1] != ' ')
        return std::nullopt;
    const std::string_view key_id = line.substr(id, PublicKey::kIdDigits);
    const auto signature = parse_signature(line.substr(digits, line.size() - digits - 1));
    if (!PublicKey::is_id(key_id) || !signature) return std::nullopt;
    return SignedBy{std::string(key_id), *signature};
}

std::vector<Version> newest_first(std::vector<Version> toolchains) {
    std::ranges::sort(toolchains, std::greater<>());
    toolchains.erase(std::unique(toolchains.begin(), toolchains.end()), toolchains.end());
    return toolchains;
}

// The manifest of a line, or why it is none.
Result<Manifest> parse_line(std::string_view line) {
    const Json json = parse_json_within(line, kDeepest);
    if (!json.is_object()) return malformed("the manifest is no JSON object");
    const auto schema = member_text(json, "schema");
    if (!schema) return malformed("the manifest has no schema");
    if (*schema != kManifestSchema) return of_another_release("manifest", *schema);

    Manifest manifest;
    const auto key = Digest::parse(member_text(json, "key").value_or(""));
    const auto toolchain = Version::parse(member_text(json, "toolchain").value_or(""));
    const auto sha256 = Sha256Digest::parse(member_text(json, "sha256").value_or(""));
    const auto target = member_text(json, "target");
    const auto bytes = json.find("bytes");
    const auto fields = json.find("key_fields");
    if (!key || !toolchain || !sha256 || !target || bytes == json.end() || !bytes->is_number_unsigned() ||
        fields == json.end())
        return malformed("the manifest lacks key, key_fields, toolchain, target, bytes or sha256");
    manifest.key = *key;
    manifest.key_fields = fields->dump();
    manifest.toolchain = *toolchain;
    manifest.target = *target;
    manifest.bytes = bytes->get<std::uint64_t>();
    manifest.sha256 = *sha256;
    if (manifest.bytes < kEntryOverheadBytes || manifest.bytes > kMaxEntryBytes)
        return malformed(fmt::format("the manifest says {} bytes, which no entry has", manifest.bytes));
    // So there is one text of it, and what was signed is what was read.
    if (manifest_text(manifest) != line) return malformed("the manifest is not written as manifests are");
    const auto parsed = parse_fields(manifest.key_fields);
    if (!parsed || digest_of(std::span<const HashedField>(*parsed)) != manifest.key)
        return malformed("the manifest's key_fields do not give its key");
    const auto named = std::ranges::find(*parsed, "target", &HashedField::label);
    if (named == parsed->end() || named->value != manifest.target)
        return malformed("the manifest's key_fields name another target");
    return manifest;
}

}  // namespace

std::string manifest_path(const Digest& key, const Version& toolchain) {
    return place_of(fmt::format("{}\n{}\n{}\n", kPlaces, key.hex(), toolchain.to_string()));
}

std::string hint_path(const Digest& key) { return place_of(fmt::format("{}\n{}\n", kPlaces, key.hex())); }

std::string entry_path(const Sha256Digest& sha256) { return "cas/" + sha256.hex(); }

std::optional<Manifest> manifest_of(const Digest& key, const Version& toolchain, const Entry& entry,
                                    std::span<const std::byte> encoded_entry) {
    const Json metadata = Json::parse(entry.metadata, nullptr, false);
    if (!metadata.is_object() || !metadata.contains("key_fields")) return std::nullopt;
    const std::string fields = metadata["key_fields"].dump();
    const auto parsed = parse_fields(fields);
    if (!parsed || digest_of(std::span<const HashedField>(*parsed)) != key) return std::nullopt;
    const auto target = std::ranges::find(*parsed, "target", &HashedField::label);
    if (target == parsed->end()) return std::nullopt;
    return Manifest{key, fields, toolchain, target->value, encoded_entry.size(), sha256_of(encoded_entry)};
}

std::string manifest_text(const Manifest& manifest) {
    Json json;
    json["schema"] = kManifestSchema;
    json["key"] = manifest.key.hex();
    json["toolchain"] = manifest.toolchain.to_string();
    json["target"] = manifest.target;
    json["bytes"] = manifest.bytes;
    json["sha256"] = manifest.sha256.hex();
    json["key_fields"] = Json::parse(manifest.key_fields, nullptr, false);
    return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string encode_manifest(std::string_view signed_text, const std::optional<SignedBy>& signed_by) {
    std::string document(signed_text);
    if (signed_by)
        document +=
            fmt::format("{} {} {}\n", kSignatureWord, signed_by->key_id, hex_of(signed_by->signature));
    return document;
}

Result<ParsedManifest> parse_manifest(std::span<const std::byte> document) {
    const std::string_view text = chars_of(document);
    if (text.size() > kMaxManifestBytes) return malformed("the manifest is too long");
    const std::size_t end = text.find('\n');
    if (end == std::string_view::npos) return malformed("the manifest does not end with a line feed");
    const std::string_view line = text.substr(0, end + 1), rest = text.substr(end + 1);
    Result<Manifest> manifest = parse_line(line);
    if (!manifest) return manifest.status();
    ParsedManifest parsed{std::move(*manifest), std::string(line), {}};
    if (rest.empty()) return parsed;
    parsed.signed_by = parse_signed_by(rest);
    if (!parsed.signed_by) return malformed("what follows the manifest is no signature");
    return parsed;
}

std::string encode_hint(const Digest& key, std::vector<Version> toolchains, const Version& pushed) {
    toolchains.push_back(pushed);
    toolchains = newest_first(std::move(toolchains));
    if (toolchains.size() > kMostToolchains) toolchains = {pushed};
    Json json;
    json["schema"] = kHintSchema;
    json["key"] = key.hex();
    json["toolchains"] = Json::array();
    for (const Version& version : toolchains) json["toolchains"].push_back(version.to_string());
    return json.dump() + "\n";
}

Result<std::vector<Version>> parse_hint(const Digest& key, std::span<const std::byte> document) {
    if (document.size() > kMaxHintBytes) return malformed("the hint is too long");
    const Json json = parse_json_within(chars_of(document), kDeepest);
    if (!json.is_object()) return malformed("the hint is no JSON object");
    const auto schema = member_text(json, "schema");
    if (!schema) return malformed("the hint has no schema");
    if (*schema != kHintSchema) return of_another_release("hint", *schema);
    if (member_text(json, "key") != key.hex()) return malformed("the hint is another key's");
    const auto list = json.find("toolchains");
    if (list == json.end() || !list->is_array() || list->size() > kMostToolchains)
        return malformed("the hint lists no toolchains");
    std::vector<Version> toolchains;
    for (const Json& one : *list) {
        const auto version = Version::parse(one.is_string() ? one.get<std::string>() : "");
        if (!version) return malformed("the hint lists something that is no toolchain");
        toolchains.push_back(*version);
    }
    return newest_first(std::move(toolchains));
}

}  // namespace attnsmith::cache
