// The kernel templates' text, embedded when the library is built.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "compiler/nvrtc.hpp"

namespace attnsmith::compiler {

struct EmbeddedFile {
    std::string_view name;  // relative to the folder that was embedded
    std::string_view text;
};

// In alphabetical order; names are as templates include them.
std::span<const EmbeddedFile> embedded_files();

// The files that `source` can reach through its #includes, in the order in which they are first met: what a
// kernel's key must cover. Throws Error for an include that is not embedded (a defect of a template).
std::vector<Header> reachable_headers(std::string_view source);

}  // namespace attnsmith::compiler
