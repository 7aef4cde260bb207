// The two documents of a remote layer (FORMAT.md, "A remote"): a manifest says which bytes are the entry of a
// key and a toolchain, and a hint which toolchains a key has entries of. Pure functions. Internal to cache/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cache/digest/digest.hpp"
#include "cache/digest/sha256.hpp"
#include "cache/entries/entry.hpp"
#include "cache/files/status.hpp"
#include "cache/signing/keys.hpp"

namespace attnsmith::cache {

struct Manifest {
    Digest key;
    std::string key_fields;  // as FieldHasher::fields_json() gives them
    Version toolchain;
    std::string target;  // of the machine code, "sm_90a": a field of the key
    std::uint64_t bytes = 0;
    Sha256Digest sha256;

    friend bool operator==(const Manifest&, const Manifest&) = default;
};

struct SignedBy {
    std::string key_id;
    Signature signature;

    friend bool operator==(const SignedBy&, const SignedBy&) = default;
};

struct ParsedManifest {
    Manifest manifest;
    std::string signed_text;  // what a signature is of
    std::optional<SignedBy> signed_by;
};

inline constexpr std::uint64_t kMaxManifestBytes = std::uint64_t{1} << 18;
inline constexpr std::uint64_t kMaxHintBytes = std::uint64_t{1} << 14;

// Where they lie below a remote's address: "ac/" or "cas/" and 64 digits.
std::string manifest_path(const Digest& key, const Version& toolchain);
std::string hint_path(const Digest& key);
std::string entry_path(const Sha256Digest& sha256);

// The manifest of an entry; nothing where its metadata has no fields that give the key, or no target.
std::optional<Manifest> manifest_of(const Digest& key, const Version& toolchain, const Entry& entry,
                                    std::span<const std::byte> encoded_entry);

// What is signed: one line.
std::string manifest_text(const Manifest& manifest);
// The document: that line, and one with the signature, if there is one.
std::string encode_manifest(std::string_view signed_text, const std::optional<SignedBy>& signed_by);
// EBADMSG, with why, for anything but a manifest; EPROTONOSUPPORT for one of another release.
Result<ParsedManifest> parse_manifest(std::span<const std::byte> document);

// Lists what is there and what was just pushed, newest first and without equal ones. Where that is more than
// a hint has, it lists what was pushed alone: nobody has so many, and who wrote them is not to hide it.
std::string encode_hint(const Digest& key, std::vector<Version> toolchains, const Version& pushed);
// EBADMSG for anything but the key's hint; EPROTONOSUPPORT for one of another release.
Result<std::vector<Version>> parse_hint(const Digest& key, std::span<const std::byte> document);

}  // namespace attnsmith::cache
