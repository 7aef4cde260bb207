// What the terminal behind an output stream can do: its width, colours, and whether it can be drawn on.
#pragma once

#include <string>
#include <string_view>

namespace attnsmith::cli {

enum class Stream { output, error };

// Whether lines can be taken back there: a terminal, unless TERM is "dumb" or not set.
bool can_draw(Stream stream);

// NO_COLOR (of any value) takes colours away, CLICOLOR_FORCE (other than 0) gives them to files and pipes,
// too; else they are for a terminal that can_draw().
bool has_colour(Stream stream);

// COLUMNS where it is set, else the terminal's width, else 80.
int columns(Stream stream);

enum class Style { plain, bold, red, green, yellow };

// The text in that style where the stream has colours, else as it is.
std::string styled(std::string_view text, Style style, Stream stream);

// Columns that a text takes: its characters, taken as UTF-8, without escape sequences of styles.
std::size_t display_width(std::string_view text);

}  // namespace attnsmith::cli
