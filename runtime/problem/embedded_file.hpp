// A file of the repository that is part of the library, embedded when that is built
// (tools/cmake/EmbedFiles.cmake).
#pragma once

#include <string_view>

namespace attnsmith::problem {

struct EmbeddedFile {
    std::string_view name;  // relative to the folder that was embedded
    std::string_view text;
};

}  // namespace attnsmith::problem
