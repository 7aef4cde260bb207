// Text for people that may come from anywhere: file names, metadata, configs. A terminal or a log must show
// what is there, and must not be told by it what to do.
#pragma once

#include <string>
#include <string_view>

namespace attnsmith::problem {

// The text on one line, with everything written out that a terminal would obey or not show: control
// characters (line feeds too) as \x1b, bytes that are no UTF-8 as \xff, and what changes the direction of
// text, breaks lines or has no width as \u202e. All other text stays as it is.
std::string visible(std::string_view text);

// The same for text of several lines: line feeds and tabs stay.
std::string visible_lines(std::string_view text);

// The same for JSON text, whose meaning stays: \u202e is JSON's own spelling. REQUIRES: `json` is valid JSON.
std::string visible_json(std::string_view json);

}  // namespace attnsmith::problem
