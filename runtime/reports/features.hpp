// What this build can do, by the lists that the code itself goes by.
#pragma once

#include <string>
#include <vector>

namespace attnsmith::engine {

// "op:attention", "backend:mma", "cache:stat" and so on, each once. Valid for ever.
const std::vector<std::string>& feature_names() noexcept;

// feature_names() as a JSON array on one line. Valid for ever.
const std::string& features_json() noexcept;

}  // namespace attnsmith::engine
