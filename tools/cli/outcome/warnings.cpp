#include "cli/outcome/warnings.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/program/output.hpp"

namespace attnsmith::cli {

nlohmann::ordered_json to_json(const std::vector<ModelWarning>& warnings) {
    auto json = nlohmann::ordered_json::array();
    for (const ModelWarning& warning : warnings)
        json.push_back({{"kind", to_string(warning.kind)}, {"field", warning.field}, {"text", warning.text}});
    return json;
}

std::string list_text(const std::vector<ModelWarning>& warnings) {
    std::string text;
    for (const ModelWarning& warning : warnings)
        text += fmt::format("warning  {}: {}\n", printable(warning.field), printable(warning.text));
    return text;
}

}  // namespace attnsmith::cli
