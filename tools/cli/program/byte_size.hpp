// Sizes on the command line: 512M, 1.5GiB, 2000000000.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace attnsmith::cli {

// A number of bytes below 2^63. K, M, G and T, or KiB and so on, in either case, are powers of 1024; before
// them the number may have a fraction. Throws InvalidRequest naming the field.
std::uint64_t parse_byte_size(const std::string& field, std::string_view text);

}  // namespace attnsmith::cli
