// Reading a file that a flag names, with errors that name the file.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

#include "attnsmith/error.hpp"
#include "cli/program/command.hpp"

namespace attnsmith::cli {

inline std::string shown_name(const std::string& path) { return path == "-" ? "standard input" : path; }

// Gives what `read` makes of the file at `path`; its errors name the file. `document` is what they call the
// whole of it, for which the file's own name says more.
template <typename Read>
auto read_document(const std::string& path, std::string_view document, Read read) {
    try {
        return read();
    } catch (const InvalidFlag&) {
        throw;
    } catch (const InvalidRequest& error) {
        const std::string text = error.what();
        if (error.field() == document) throw BadUsage(shown_name(path) + text.substr(document.size()));
        throw BadUsage(fmt::format("{}: {}", shown_name(path), text));
    }
}

}  // namespace attnsmith::cli
