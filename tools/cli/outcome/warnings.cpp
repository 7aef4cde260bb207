#include "cli/outcome/warnings.hpp"

#include <fmt/format.h>

#include "cli/program/output.hpp"

namespace attnsmith::cli {

std::string list_text(const std::vector<ModelWarning>& warnings) {
    std::string text;
    for (const ModelWarning& warning : warnings)
        text += fmt::format("warning  {}: {}\n", printable(warning.field), printable(warning.text));
    return text;
}

}  // namespace attnsmith::cli
