// The headers of a strict uncompressed ustar archive (POSIX.1-1988): every file of a name and length has one
// header only, and every directory of a name. What is read are regular files alone, and whatever differs from
// their headers in any byte is refused. Pure functions. Internal to cache/.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>

namespace attnsmith::cache::tar {

inline constexpr std::size_t kBlockBytes = 512;
// Two blocks of zeros.
inline constexpr std::size_t kEndBytes = 2 * kBlockBytes;
inline constexpr std::size_t kLongestName = 99;
inline constexpr std::uint64_t kMaxFileBytes = (std::uint64_t{1} << 33) - 1;  // 11 octal digits

using Block = std::array<std::byte, kBlockBytes>;

struct Header {
    std::string name;
    std::uint64_t bytes = 0;
};

struct Refusal {
    std::size_t offset = 0;  // in the header
    std::string reason;      // one line, printable
};

// Mode 0644, owner, group and time 0, no owner's names.
// REQUIRES: name has 1 to kLongestName bytes and no NUL; bytes <= kMaxFileBytes.
Block encode_header(std::string_view name, std::uint64_t bytes);

// The same of a directory, with mode 0755. A slash ends its name, as programs that write tar do it.
// REQUIRES: name ends in '/', has at most kLongestName bytes and no NUL.
Block encode_directory_header(std::string_view name);

// Takes exactly what encode_header() makes. The name is any text: what it may be is for the caller.
std::variant<Header, Refusal> decode_header(std::span<const std::byte, kBlockBytes> block);

// What a file of so many bytes takes, without its header.
// REQUIRES: bytes <= kMaxFileBytes.
constexpr std::uint64_t padded(std::uint64_t bytes) {
    return (bytes + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
}

// A text from an archive for people to read: quoted, without control characters, not long.
std::string quoted(std::string_view text);

}  // namespace attnsmith::cache::tar
