#include "cli/program/hub_name.hpp"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <cstring>

namespace attnsmith::cli {

bool is_hub_name(const std::string& path) {
    const std::size_t slash = path.find('/');
    if (slash == 0 || slash == path.npos || slash + 1 == path.size()) return false;
    return path.front() != '.' && std::ranges::count(path, '/') == 1 && !path.ends_with(".json") &&
           std::ranges::all_of(path, [](unsigned char letter) {
               return std::isalnum(letter) != 0 || std::strchr("/-_.", letter) != nullptr;
           });
}

}  // namespace attnsmith::cli
