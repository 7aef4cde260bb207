#include "cli/warnings.hpp"

#include <fmt/format.h>

#include "cli/output.hpp"

namespace attnsmith::cli {

void add_strict_flag(Command& command) {
    command.add_switch("strict",
                       "exit 1, after the work is done, where a model has a type, a field or a part that is "
                       "not known");
}

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

std::string strict_trouble(const Command& command, const std::vector<ModelWarning>& warnings) {
    if (!command.has("strict") || warnings.empty()) return "";
    std::vector<std::string> fields;
    for (const ModelWarning& warning : warnings) fields.push_back(printable(warning.field));
    return fmt::format("{} {} under --strict: {}", warnings.size(),
                       warnings.size() == 1 ? "warning counts" : "warnings count", fmt::join(fields, ", "));
}

}  // namespace attnsmith::cli
