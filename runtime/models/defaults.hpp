// What transformers' configuration classes supply where a config.json is silent.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string_view>

namespace attnsmith::problem {

// How a file is silent about a field.
enum class Silence : std::uint8_t {
    top_level,  // the field is not there, in the file itself
    nested,     // the field is not there, in a part of the file such as text_config
    null,       // the field says null
};

// The default of the field, as a file would write it; absent where the class has none for such silence.
std::optional<nlohmann::json> class_default(std::string_view model_type, std::string_view name,
                                            Silence silence);

}  // namespace attnsmith::problem
