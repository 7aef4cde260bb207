// Files whose text a JSON parser gets. One far too long is cut: the parser then refuses it for its length.
#pragma once

#include <cstddef>
#include <string>
#include <system_error>

namespace attnsmith::engine {

inline constexpr std::size_t kMostTextBytes = std::size_t{2} << 20;  // twice what the JSON parser takes

// Why it could not be read, or nothing; of an open file, from where it stands to its end. A pipe, as the
// shell's <(command) is one, is read until its writer leaves. A FIFO that nobody opens for writing within 5
// seconds is an error.
std::error_code read_text(const std::string& path, std::string& text,
                          std::size_t most_bytes = kMostTextBytes);
std::error_code read_text(int descriptor, std::string& text, std::size_t most_bytes = kMostTextBytes);

}  // namespace attnsmith::engine
