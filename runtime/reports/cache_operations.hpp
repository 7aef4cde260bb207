// The cache's operations by their names, as the C ABI has them (attnsmith_cache()).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "attnsmith/runtime.hpp"

namespace attnsmith::engine {

// Their names.
std::vector<std::string_view> cache_operations();

// Does an operation by its name. `options` is a JSON object with the operation's options. Throws
// InvalidRequest for another operation or option, CacheError where there is no directory, and what the
// operation throws. Returns the JSON that `attnsmith cache OPERATION --json` prints.
std::string run_cache_operation(const Runtime& runtime, std::string_view operation, std::string_view options);

}  // namespace attnsmith::engine
