// 128-bit digests (XXH3) that name cache entries, and the hashing of labelled fields into one.
//
// XXH3 finds accidents, not attackers: what keeps foreign bytes out of a cache is who may write to its
// directory. Digests are the same on every host, whatever its byte order.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace attnsmith::cache {

// A plain value; the default one is all zero. Ordered as its hex text is.
class Digest {
  public:
    static constexpr std::size_t kBytes = 16;
    static constexpr std::size_t kHexDigits = 32;

    constexpr Digest() = default;
    constexpr Digest(std::uint64_t high, std::uint64_t low) : high_(high), low_(low) {}

    constexpr std::uint64_t high() const { return high_; }
    constexpr std::uint64_t low() const { return low_; }

    // 32 lower-case digits, the most significant first.
    std::string hex() const;

    // Accepts exactly what hex() writes.
    static std::optional<Digest> parse(std::string_view hex);

    friend constexpr auto operator<=>(const Digest&, const Digest&) = default;

  private:
    std::uint64_t high_ = 0;
    std::uint64_t low_ = 0;
};

Digest digest_of(std::span<const std::byte> bytes);
Digest digest_of(std::string_view text);

// One field of a key, as it is hashed and as people read it.
struct HashedField {
    std::string label;                   // UTF-8
    std::uint64_t bytes = 0;             // of the value
    std::string value;                   // verbatim; empty where `value_digest` stands for it
    std::optional<Digest> value_digest;  // for values that are long or not UTF-8

    friend bool operator==(const HashedField&, const HashedField&) = default;
};

// The key of these fields. Labels and values are length-delimited, so no two different sequences of fields
// are the same bytes; the order of the fields counts.
Digest digest_of(std::span<const HashedField> fields);

// The fields in the JSON text that FieldHasher::fields_json() gives; nothing for any other text. So whoever
// has that text can tell whether a key is theirs.
std::optional<std::vector<HashedField>> parse_fields(std::string_view json_text);

// Gathers labelled fields and hashes them. Copyable; not thread-safe.
class FieldHasher {
  public:
    // Longer values are hashed and dumped as their digest.
    static constexpr std::size_t kLongestDumpedValue = 256;

    FieldHasher& add(std::string_view label, std::string_view value);
    FieldHasher& add(std::string_view label, std::span<const std::byte> value);
    // Hashed as its decimal text.
    FieldHasher& add(std::string_view label, std::int64_t value);

    // The digest of all fields so far; more may be added afterwards.
    Digest digest() const { return digest_of(fields_); }

    const std::vector<HashedField>& fields() const { return fields_; }

    // JSON array of {"label", "value"} or {"label", "bytes", "digest"}, in order. To be kept in an entry's
    // metadata, so that a miss can be explained by the field that differs.
    std::string fields_json() const;

  private:
    std::vector<HashedField> fields_;
};

}  // namespace attnsmith::cache

template <>
struct std::hash<attnsmith::cache::Digest> {
    std::size_t operator()(const attnsmith::cache::Digest& digest) const noexcept {
        return static_cast<std::size_t>(digest.low());
    }
};
