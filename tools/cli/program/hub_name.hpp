#pragma once

#include <string>

namespace attnsmith::cli {

// "org/name", as the Hugging Face hub calls a model.
bool is_hub_name(const std::string& path);

}  // namespace attnsmith::cli
