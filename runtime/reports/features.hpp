// What this build can do, by the lists that the code itself goes by.
#pragma once

#include <string>
#include <vector>

namespace attnsmith::engine {

// "op:attention", "backend:mma", "cache:stat" and so on, each once.
std::vector<std::string> features();

}  // namespace attnsmith::engine
