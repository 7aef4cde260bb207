// Files that the command line names.
#pragma once

#include <string>

namespace attnsmith::cli {

// The text of a file; "-" is standard input. A file far too long for what is read here is cut: the JSON
// parser then refuses it for its length. Throws BadUsage naming the file.
std::string read_text(const std::string& path);

// As read_text(), of `path` or, where that is a directory, of the config.json in it.
std::string read_model_text(const std::string& path);

}  // namespace attnsmith::cli
