// Base64 (RFC 4648) of what PEM files hold. Internal to cache/signing.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace attnsmith::cache {

// Appends; never allocates where `text` has room for it.
void append_base64(std::span<const std::byte> bytes, std::string& text);

// How many bytes there are, written to the beginning of `bytes`; nothing for what append_base64() would not
// write so, or for more than there is room for.
std::optional<std::size_t> decode_base64(std::string_view text, std::span<std::byte> bytes);

}  // namespace attnsmith::cache
