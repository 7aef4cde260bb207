#include "cache/entries/entry.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <limits>

#include "cache/digest/byte_order.hpp"

namespace attnsmith::cache {
namespace {

// As PNG's: a byte over 127, a CR LF and an end-of-file character show transfers that took it for text.
constexpr std::array<unsigned char, 8> kEntryMagic = {0x89, 'A', 'S', 'C', 'E', '\r', '\n', 0x1a};

// Offsets in the header, see FORMAT.md.
constexpr std::size_t kEntryFormatAt = 8;
constexpr std::size_t kReservedAt = 12;
constexpr std::size_t kKeyAt = 16;
constexpr std::size_t kVersionAt = 32;
constexpr std::size_t kReservedToo = 44;
constexpr std::size_t kMetadataBytesAt = 48;
constexpr std::size_t kPayloadBytesAt = 56;

void put_header(std::byte* at, const Digest& key, const Version& version, const Entry& entry) {
    std::memcpy(at, kEntryMagic.data(), kEntryMagic.size());
    put_little_endian(at + kEntryFormatAt, kEntryFormat);
    put_little_endian(at + kReservedAt, std::uint32_t{0});
    put_digest(at + kKeyAt, key);
    put_little_endian(at + kVersionAt, static_cast<std::uint32_t>(version.major));
    put_little_endian(at + kVersionAt + 4, static_cast<std::uint32_t>(version.minor));
    put_little_endian(at + kVersionAt + 8, static_cast<std::uint32_t>(version.build));
    put_little_endian(at + kReservedToo, std::uint32_t{0});
    put_little_endian(at + kMetadataBytesAt, static_cast<std::uint64_t>(entry.metadata.size()));
    put_little_endian(at + kPayloadBytesAt, static_cast<std::uint64_t>(entry.payload.size()));
}

bool has_magic(std::span<const std::byte> bytes) {
    return bytes.size() >= kEntryMagic.size() &&
           std::memcmp(bytes.data(), kEntryMagic.data(), kEntryMagic.size()) == 0;
}

std::uint32_t format_of(const std::byte* header) {
    return get_little_endian<std::uint32_t>(header + kEntryFormatAt);
}

std::optional<int> get_version_part(const std::byte* at) {
    const auto part = get_little_endian<std::uint32_t>(at);
    if (part > static_cast<std::uint32_t>(std::numeric_limits<int>::max())) return std::nullopt;
    return static_cast<int>(part);
}

std::optional<Version> get_version(const std::byte* at) {
    const auto major = get_version_part(at);
    const auto minor = get_version_part(at + 4);
    const auto build = get_version_part(at + 8);
    if (!major || !minor || !build) return std::nullopt;
    return Version{*major, *minor, *build};
}

bool reserved_fields_are_zero(const std::byte* header) {
    return get_little_endian<std::uint32_t>(header + kReservedAt) == 0 &&
           get_little_endian<std::uint32_t>(header + kReservedToo) == 0;
}

bool checksum_matches(std::span<const std::byte> file_bytes) {
    const std::size_t covered = file_bytes.size() - Digest::kBytes;
    return digest_of(file_bytes.first(covered)) == get_digest(file_bytes.data() + covered);
}

std::optional<int> parse_version_part(std::string_view text) {
    const bool has_leading_zero = text.size() > 1 && text.front() == '0';
    if (text.empty() || has_leading_zero || text.front() == '-') return std::nullopt;
    int value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
    return value;
}

// What can be said of the whole file before its parts are looked at. The checksum comes first but for a wrong
// length, which is the better word for a torn file.
std::optional<DecodeFailure> find_damage(std::span<const std::byte> bytes) {
    if (bytes.size() < kEntryOverheadBytes) {
        return DecodeFailure{DecodeFailureKind::truncated, fmt::format("{} bytes are too few", bytes.size())};
    }
    if (!has_magic(bytes)) return DecodeFailure{DecodeFailureKind::not_an_entry, "not a cache entry"};
    if (format_of(bytes.data()) == kEntryFormat) {
        const auto header = decode_entry_header(bytes);
        if (header && kEntryOverheadBytes + header->metadata_bytes + header->payload_bytes != bytes.size()) {
            return DecodeFailure{
                DecodeFailureKind::truncated,
                fmt::format("{} bytes, its header says {}", bytes.size(),
                            kEntryOverheadBytes + header->metadata_bytes + header->payload_bytes)};
        }
    }
    if (!checksum_matches(bytes)) return DecodeFailure{DecodeFailureKind::corrupt, "the checksum is wrong"};
    return std::nullopt;
}

}  // namespace

std::string Version::to_string() const { return fmt::format("{}.{}.{}", major, minor, build); }

std::optional<Version> Version::parse(std::string_view text) {
    const std::size_t first_dot = text.find('.');
    if (first_dot == std::string_view::npos) return std::nullopt;
    const std::size_t second_dot = text.find('.', first_dot + 1);
    if (second_dot == std::string_view::npos) return std::nullopt;
    const auto major = parse_version_part(text.substr(0, first_dot));
    const auto minor = parse_version_part(text.substr(first_dot + 1, second_dot - first_dot - 1));
    const auto build = parse_version_part(text.substr(second_dot + 1));
    if (!major || !minor || !build) return std::nullopt;
    return Version{*major, *minor, *build};
}

std::vector<std::byte> encode_entry(const Digest& key, const Version& version, const Entry& entry) {
    const std::size_t covered = kEntryHeaderBytes + entry.metadata.size() + entry.payload.size();
    std::vector<std::byte> bytes(covered + Digest::kBytes);
    put_header(bytes.data(), key, version, entry);
    const auto metadata = std::as_bytes(std::span(entry.metadata));
    const auto metadata_end = std::copy(metadata.begin(), metadata.end(), bytes.begin() + kEntryHeaderBytes);
    std::copy(entry.payload.begin(), entry.payload.end(), metadata_end);
    put_digest(bytes.data() + covered, digest_of(std::span(bytes).first(covered)));
    return bytes;
}

DecodeResult decode_entry(std::span<const std::byte> file_bytes, const Digest& expected_key) {
    if (auto damage = find_damage(file_bytes)) return *damage;
    if (const auto format = format_of(file_bytes.data()); format != kEntryFormat) {
        return DecodeFailure{DecodeFailureKind::other_format,
                             fmt::format("format version {}, this build reads {}", format, kEntryFormat)};
    }
    const auto header = decode_entry_header(file_bytes);
    if (!header || !reserved_fields_are_zero(file_bytes.data())) {
        return DecodeFailure{DecodeFailureKind::corrupt, "a header field is out of its range"};
    }
    if (header->key != expected_key) {
        return DecodeFailure{DecodeFailureKind::wrong_key, fmt::format("it is of key {}", header->key.hex())};
    }
    const auto metadata = file_bytes.subspan(kEntryHeaderBytes, header->metadata_bytes);
    const auto payload =
        file_bytes.subspan(kEntryHeaderBytes + header->metadata_bytes, header->payload_bytes);
    return DecodedEntry{header->version,
                        Entry{std::string(reinterpret_cast<const char*>(metadata.data()), metadata.size()),
                              std::vector<std::byte>(payload.begin(), payload.end())}};
}

std::optional<EntryHeader> decode_entry_header(std::span<const std::byte> first_bytes) {
    if (first_bytes.size() < kEntryHeaderBytes || !has_magic(first_bytes)) return std::nullopt;
    const std::byte* at = first_bytes.data();
    const auto version = get_version(at + kVersionAt);
    const EntryHeader header{.key = get_digest(at + kKeyAt),
                             .version = version.value_or(Version{}),
                             .metadata_bytes = get_little_endian<std::uint64_t>(at + kMetadataBytesAt),
                             .payload_bytes = get_little_endian<std::uint64_t>(at + kPayloadBytesAt)};
    const bool readable = format_of(at) == kEntryFormat && version &&
                          header.metadata_bytes <= kMaxEntryBytes && header.payload_bytes <= kMaxEntryBytes;
    return readable ? std::optional(header) : std::nullopt;
}

}  // namespace attnsmith::cache
