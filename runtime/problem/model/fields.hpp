// What the name of a config.json's field says about attention, and when its value says nothing.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>

namespace attnsmith::problem {

// Whether the value turns a feature off: null, false, 0 or what is empty.
bool is_off(const nlohmann::json& value);

// Whether a word of the name is one of attention's, e.g. "window" in "my_window_rule".
bool speaks_of_attention(std::string_view name);

// Whether the field, though its name speaks of attention, changes no kernel of a model of this type.
bool is_daily_life(std::string_view model_type, std::string_view name);

// Whether the field is the configuration of a vision or audio tower by its name alone.
bool names_a_tower(std::string_view name);

}  // namespace attnsmith::problem
