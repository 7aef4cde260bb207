// Writes an archive's parts one behind the other, to whatever takes bytes. Internal to cache/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include "cache/files/status.hpp"

namespace attnsmith::cache::tar {

using Append = std::function<Status(std::span<const std::byte>)>;

Status append_zeros(const Append& append, std::uint64_t bytes);

// Header, content and padding. REQUIRES: what encode_header() does.
Status append_file(const Append& append, std::string_view name, std::span<const std::byte> content);

}  // namespace attnsmith::cache::tar
