// What is in the names of files that are not whole yet, so that no two writers take one name. Internal to
// cache/.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace attnsmith::cache {

// Differs between calls, threads and processes (also after fork).
std::uint64_t unique_token();

// As it is in names: 16 hexadecimal digits.
std::string token_text(std::uint64_t token);
// Takes "<before><token>" off the end of a name. False, where it does not end so.
bool remove_token(std::string_view& name, std::string_view before);

}  // namespace attnsmith::cache
