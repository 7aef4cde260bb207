#include "cache/digest/digest.hpp"

#include <fmt/format.h>

#include <charconv>
#include <nlohmann/json.hpp>

#ifndef XXH_INLINE_ALL
#define XXH_INLINE_ALL
#endif
#include <xxhash.h>

namespace attnsmith::cache {
namespace {

constexpr std::string_view kFieldsFormat = "attnsmith.fields/2";

// What a field's value is told from its digest by.
constexpr std::string_view kVerbatim = "value";
constexpr std::string_view kByDigest = "digest";

Digest digest_of_raw(const void* bytes, std::size_t size) {
    const XXH128_hash_t hash = XXH3_128bits(bytes, size);
    return {hash.high64, hash.low64};
}

std::optional<std::uint64_t> parse_sixteen_digits(std::string_view hex) {
    for (const char digit : hex) {
        const bool is_lower_hex = (digit >= '0' && digit <= '9') || (digit >= 'a' && digit <= 'f');
        if (!is_lower_hex) return std::nullopt;
    }
    std::uint64_t value = 0;
    std::from_chars(hex.data(), hex.data() + hex.size(), value, 16);
    return value;
}

void append_length_delimited(std::string& buffer, std::string_view bytes) {
    for (int shift = 0; shift < 64; shift += 8) {
        buffer.push_back(static_cast<char>(static_cast<std::uint64_t>(bytes.size()) >> shift));
    }
    buffer.append(bytes);
}

const std::string* text_in(const nlohmann::json& object, const char* name) {
    const auto found = object.find(name);
    return found == object.end() ? nullptr : found->get_ptr<const std::string*>();
}

std::optional<HashedField> parse_field(const nlohmann::json& json) {
    if (!json.is_object()) return std::nullopt;
    const std::string* const label = text_in(json, "label");
    if (label == nullptr) return std::nullopt;
    HashedField field{.label = *label, .bytes = 0, .value = {}, .value_digest = {}};
    if (const std::string* const value = text_in(json, "value")) {
        field.value = *value;
        field.bytes = value->size();
        return json.size() == 2 ? std::optional(std::move(field)) : std::nullopt;
    }
    const std::string* const hex = text_in(json, "digest");
    const auto bytes = json.find("bytes");
    if (hex == nullptr || bytes == json.end() || !bytes->is_number_unsigned() || json.size() != 3)
        return std::nullopt;
    field.bytes = bytes->get<std::uint64_t>();
    field.value_digest = Digest::parse(*hex);
    return field.value_digest ? std::optional(std::move(field)) : std::nullopt;
}

// JSON text is the judge of UTF-8, since JSON is where the value is to stand.
bool is_utf8(std::string_view text) {
    try {
        nlohmann::json(text).dump();
        return true;
    } catch (const nlohmann::json::type_error&) {
        return false;
    }
}

}  // namespace

std::string Digest::hex() const { return fmt::format("{:016x}{:016x}", high_, low_); }

std::optional<Digest> Digest::parse(std::string_view hex) {
    if (hex.size() != kHexDigits) return std::nullopt;
    const auto high = parse_sixteen_digits(hex.substr(0, 16));
    const auto low = parse_sixteen_digits(hex.substr(16));
    if (!high || !low) return std::nullopt;
    return Digest(*high, *low);
}

Digest digest_of(std::span<const std::byte> bytes) { return digest_of_raw(bytes.data(), bytes.size()); }

Digest digest_of(std::string_view text) { return digest_of_raw(text.data(), text.size()); }

Digest digest_of(std::span<const HashedField> fields) {
    std::string hashed;
    append_length_delimited(hashed, kFieldsFormat);
    for (const HashedField& field : fields) {
        append_length_delimited(hashed, field.label);
        append_length_delimited(hashed, field.value_digest ? kByDigest : kVerbatim);
        append_length_delimited(hashed, field.value);
        if (!field.value_digest) continue;
        append_length_delimited(hashed, fmt::format_int(field.bytes).c_str());
        append_length_delimited(hashed, field.value_digest->hex());
    }
    return digest_of(std::string_view(hashed));
}

std::optional<std::vector<HashedField>> parse_fields(std::string_view json_text) {
    const auto json = nlohmann::json::parse(json_text, nullptr, false);
    if (!json.is_array()) return std::nullopt;
    std::vector<HashedField> fields;
    for (const nlohmann::json& one : json) {
        auto field = parse_field(one);
        if (!field) return std::nullopt;
        fields.push_back(std::move(*field));
    }
    return fields;
}

FieldHasher& FieldHasher::add(std::string_view label, std::string_view value) {
    HashedField field{.label = std::string(label), .bytes = value.size(), .value = {}, .value_digest = {}};
    if (value.size() <= kLongestDumpedValue && is_utf8(value)) {
        field.value = value;
    } else {
        field.value_digest = digest_of(value);
    }
    fields_.push_back(std::move(field));
    return *this;
}

FieldHasher& FieldHasher::add(std::string_view label, std::span<const std::byte> value) {
    return add(label, std::string_view(reinterpret_cast<const char*>(value.data()), value.size()));
}

FieldHasher& FieldHasher::add(std::string_view label, std::int64_t value) {
    return add(label, std::string_view(fmt::format_int(value).c_str()));
}

std::string FieldHasher::fields_json() const {
    auto fields = nlohmann::ordered_json::array();
    for (const HashedField& field : fields_) {
        nlohmann::ordered_json json{{"label", field.label}};
        if (field.value_digest) {
            json["bytes"] = field.bytes;
            json["digest"] = field.value_digest->hex();
        } else {
            json["value"] = field.value;
        }
        fields.push_back(std::move(json));
    }
    return fields.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace attnsmith::cache
