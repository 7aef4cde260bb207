// The operations of Runtime::cache_json.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>
#include <vector>

#include "attnsmith/runtime.hpp"

namespace attnsmith::engine {

// Their names.
std::vector<std::string_view> cache_operations();

// Does an operation by its name. `options` is a JSON object with the operation's options. Throws
// InvalidRequest for another operation or option, and what the operation throws.
nlohmann::ordered_json run_cache_operation(const Runtime& runtime, std::string_view operation,
                                           std::string_view options);

}  // namespace attnsmith::engine
