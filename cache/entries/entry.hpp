// A cache entry and its bytes on disk. FORMAT.md is the specification; everything here is a pure function.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "cache/digest/digest.hpp"

namespace attnsmith::cache {

// The toolchain that made an entry. The cache only orders versions; parts are not negative.
struct Version {
    int major = 0;
    int minor = 0;
    int build = 0;

    // "13.0.88"
    std::string to_string() const;

    // Accepts exactly what to_string() writes for parts >= 0.
    static std::optional<Version> parse(std::string_view text);

    friend auto operator<=>(const Version&, const Version&) = default;
};

struct Entry {
    std::string metadata;            // the text of a JSON object, UTF-8
    std::vector<std::byte> payload;  // the cubin

    friend bool operator==(const Entry&, const Entry&) = default;
};

// Why an entry is not what its key and its version say, by what only its publisher knows; nothing if it is,
// or is of a kind that the publisher does not know. Called from any thread; must not throw.
using CheckContent =
    std::function<std::optional<std::string>(const Digest& key, const Version& version, const Entry& entry)>;

inline constexpr std::uint32_t kEntryFormat = 1;
inline constexpr std::size_t kEntryHeaderBytes = 64;
// What one entry takes beside its metadata and payload: header and checksum.
inline constexpr std::size_t kEntryOverheadBytes = kEntryHeaderBytes + Digest::kBytes;
// No kernel comes near. Larger files are not read: a damaged length must not exhaust the memory.
inline constexpr std::uint64_t kMaxEntryBytes = std::uint64_t{1} << 28;

enum class DecodeFailureKind {
    truncated,     // shorter or longer than its header says
    not_an_entry,  // other magic
    corrupt,       // the checksum or a reserved field is wrong
    other_format,  // whole, but of another format version: to be skipped, not destroyed
    wrong_key,     // whole, but of another key than its name says
};

struct DecodeFailure {
    DecodeFailureKind kind = DecodeFailureKind::corrupt;
    std::string reason;  // one line

    // Broken bytes, as opposed to those of another release.
    bool broken() const { return kind != DecodeFailureKind::other_format; }
};

struct DecodedEntry {
    Version version;
    Entry entry;
};

using DecodeResult = std::variant<DecodedEntry, DecodeFailure>;

// The first kEntryHeaderBytes of an entry.
struct EntryHeader {
    Digest key;
    Version version;
    std::uint64_t metadata_bytes = 0;
    std::uint64_t payload_bytes = 0;
};

// The same arguments give the same bytes.
// REQUIRES: version's parts are not negative.
std::vector<std::byte> encode_entry(const Digest& key, const Version& version, const Entry& entry);

// Checks every byte. Does not check that the metadata is JSON: a publisher does.
DecodeResult decode_entry(std::span<const std::byte> file_bytes, const Digest& expected_key);

// The header alone, which no checksum covers: for listings, not for loading. Nothing for other formats and
// for lengths over kMaxEntryBytes.
std::optional<EntryHeader> decode_entry_header(std::span<const std::byte> first_bytes);

}  // namespace attnsmith::cache
