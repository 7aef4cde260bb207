// The help of a command, laid out for a width.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cli/program/command.hpp"

namespace attnsmith::cli {

// For standard output: wrapped at `width` columns, in colour where that has them.
std::string help_text(const Command& command, int width);

// "attnsmith cache explain [OPTIONS] [KEY]", "attnsmith cache rm [OPTIONS] KEY"
std::string usage_of(const Command& command);

// "-j, --jobs N"
std::string label_of(const Flag& flag);

// The flags of a help by groups, each in the order of its first flag, what all commands have last.
struct FlagGroup {
    std::string name;
    std::vector<const Flag*> flags;
};
std::vector<FlagGroup> grouped_flags(const Command& command);

// A part of a command's details: running text, or lines that stay as they are (examples), with their heading.
struct Paragraph {
    std::string text;                // of lines, their heading: "Example:"
    std::vector<std::string> lines;  // empty: it is running text
};
std::vector<Paragraph> paragraphs_of(std::string_view details);

// An example's lines: several, each but the last with a backslash at its end, where it is longer than
// `width`.
std::vector<std::string> wrapped_example(const std::string& example, std::size_t width);

}  // namespace attnsmith::cli
