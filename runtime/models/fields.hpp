// What the name of a config.json's field says about attention, and when its value says nothing.
#pragma once

#include <initializer_list>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace attnsmith::problem {

// Whether the value turns a feature off: null, false, 0 or what is empty.
bool is_off(const nlohmann::json& value);

// Whether a word of the name is one of attention's, e.g. "window" in "my_window_rule".
bool speaks_of_attention(std::string_view name);

// Whether one of `words` is a word of the name: "head" is one of "head_dim" and none of "overhead".
bool has_word(std::string_view name, std::initializer_list<std::string_view> words);

// A name for messages, part by part: "text_config.\"x\\n\"".
std::string printable_field(std::string_view field);

// Whether the field, though its name speaks of attention, changes no kernel of a model of this type.
bool is_daily_life(std::string_view model_type, std::string_view name);

// Whether the field is the configuration of a vision or audio tower by its name alone.
bool names_a_tower(std::string_view name);

}  // namespace attnsmith::problem
