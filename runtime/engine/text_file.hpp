// Files whose text a JSON parser gets. One far too long is cut: the parser then refuses it for its length.
#pragma once

#include <string>
#include <system_error>

namespace attnsmith::engine {

// Why it could not be read, or nothing; of an open file, from where it stands to its end.
std::error_code read_text(const std::string& path, std::string& text);
std::error_code read_text(int descriptor, std::string& text);

}  // namespace attnsmith::engine
