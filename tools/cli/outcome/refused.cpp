#include "cli/outcome/refused.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/program/output.hpp"

namespace attnsmith::cli {
namespace {

std::string where(const Refused& part) {
    return part.sm == 0 ? part.name : fmt::format("{} on sm {}", part.name, part.sm);
}

}  // namespace

std::vector<Refused> refused_parts(const std::vector<UnsupportedPart>& parts) {
    std::vector<Refused> refused;
    for (const UnsupportedPart& part : parts) refused.push_back({part.name, part.reason});
    return refused;
}

nlohmann::ordered_json to_json(const std::vector<Refused>& refused) {
    auto json = nlohmann::ordered_json::array();
    for (const Refused& part : refused) {
        json.push_back({{"name", part.name}, {"reason", part.reason}});
        if (part.sm != 0) json.back()["sm"] = part.sm;
    }
    return json;
}

std::string list_text(const std::vector<Refused>& refused) {
    std::string text;
    for (const Refused& part : refused) {
        text += fmt::format("unsupported  {}: {}\n", printable(where(part)), printable(part.reason));
    }
    return text;
}

nlohmann::ordered_json to_json(const std::vector<SkippedPart>& skipped) {
    auto json = nlohmann::ordered_json::array();
    for (const SkippedPart& part : skipped) json.push_back({{"name", part.name}, {"reason", part.reason}});
    return json;
}

std::string list_text(const std::vector<SkippedPart>& skipped) {
    std::string text;
    for (const SkippedPart& part : skipped)
        text += fmt::format("skipped  {}: {}\n", printable(part.name), printable(part.reason));
    return text;
}

std::string summary_of(const std::vector<Refused>& refused) {
    std::vector<std::string> parts;
    for (const Refused& part : refused) parts.push_back(fmt::format("{} ({})", where(part), part.reason));
    return fmt::format("{} {} not supported: {}", refused.size(),
                       refused.size() == 1 ? "part is" : "parts are", fmt::join(parts, "; "));
}

}  // namespace attnsmith::cli
