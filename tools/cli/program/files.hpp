// Files that the command line names.
#pragma once

#include <string>

namespace attnsmith::cli {

// The text of a file; "-" is standard input. A file far too long for what is read here is cut: the JSON
// parser then refuses it for its length. Throws BadUsage naming the file.
std::string read_text(const std::string& path);

// The same of a file that may be long, one line after the other.
std::string read_long_text(const std::string& path);

// As read_text(), of `path` or, where that is a directory, of the config.json in it.
std::string read_model_text(const std::string& path);

// Throws BadUsage for a path that write_text() could not write to.
void require_writable(const std::string& path);

// Replaces the file, or makes it: whoever reads it sees all of the old text or all of the new. Throws Error.
void write_text(const std::string& path, const std::string& text);

}  // namespace attnsmith::cli
