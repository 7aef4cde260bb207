// Completion of the program's words in shells.
#pragma once

#include <string>

#include "cli/program/command.hpp"

namespace attnsmith::cli {

// What an argument is called that names one of the program's commands.
inline constexpr const char* kCommandArgument = "COMMAND";

enum class Shell { bash, zsh, fish };

// The shell's script: commands, flags, and the values of flags that are words, files or directories.
std::string completion_text(const Command& root, Shell shell);

}  // namespace attnsmith::cli
