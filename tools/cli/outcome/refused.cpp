#include "cli/outcome/refused.hpp"

#include <fmt/format.h>

#include <utility>

#include "cli/program/output.hpp"

namespace attnsmith::cli {
namespace {

std::string where(const PrewarmRefusal& part) {
    return part.sm == 0 ? part.name : fmt::format("{} on sm {}", part.name, part.sm);
}

}  // namespace

PrewarmRefusal refused(std::string name, std::string reason, int sm) {
    return {.spec = {}, .sm = sm, .name = std::move(name), .reason = std::move(reason)};
}

std::vector<PrewarmRefusal> refused_parts(const std::vector<UnsupportedPart>& parts) {
    std::vector<PrewarmRefusal> all;
    for (const UnsupportedPart& part : parts) all.push_back(refused(part.name, part.reason));
    return all;
}

std::string list_text(const std::vector<PrewarmRefusal>& refused) {
    std::string text;
    for (const PrewarmRefusal& part : refused) {
        text += fmt::format("unsupported  {}: {}\n", printable(where(part)), printable(part.reason));
    }
    return text;
}

std::string list_text(const std::vector<SkippedPart>& skipped) {
    std::string text;
    for (const SkippedPart& part : skipped)
        text += fmt::format("skipped  {}: {}\n", printable(part.name), printable(part.reason));
    return text;
}

std::string summary_of(const std::vector<PrewarmRefusal>& refused) {
    std::vector<std::string> parts;
    for (const PrewarmRefusal& part : refused)
        parts.push_back(fmt::format("{} ({})", where(part), part.reason));
    return fmt::format("{} {} not supported: {}", refused.size(),
                       refused.size() == 1 ? "part is" : "parts are", fmt::join(parts, "; "));
}

}  // namespace attnsmith::cli
