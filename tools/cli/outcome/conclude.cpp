#include "cli/outcome/conclude.hpp"

#include <nlohmann/json.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/program/output.hpp"
#include "reports/report_json.hpp"

namespace attnsmith::cli {
namespace {

constexpr const char* kAllow = "allow-unsupported";
constexpr const char* kStrict = "strict";

bool given(const Command& command, const char* flag) { return command.knows(flag) && command.has(flag); }

std::string summary_of(const std::vector<ModelWarning>& warnings) {
    std::vector<std::string> fields;
    for (const ModelWarning& warning : warnings) fields.push_back(printable(warning.field));
    return fmt::format("{} {} under --strict: {}", warnings.size(),
                       warnings.size() == 1 ? "warning counts" : "warnings count", fmt::join(fields, ", "));
}

}  // namespace

void add_doubt_flags(Command& command) {
    command.add_switch(kAllow, "parts of a model that are not supported are listed, but are no failure");
    command.add_switch(kStrict,
                       "exit 1, after the work is done, where a model has a type, a field or a part that is "
                       "not known or not supported");
}

std::string text_of(const Doubts& doubts) {
    const std::string refused = list_text(doubts.refused);
    if (verbosity() == Verbosity::quiet) return refused;
    return refused + list_text(doubts.skipped) + list_text(doubts.warnings);
}

void add_doubts(nlohmann::ordered_json& report, const Doubts& doubts) {
    report["unsupported"] = engine::unsupported_json(doubts.refused);
    report["skipped"] = engine::skipped_json(doubts.skipped);
    report["warnings"] = engine::warnings_json(doubts.warnings);
}

std::vector<std::string> failing_doubts(const Command& command, const Doubts& doubts) {
    const auto& [refused, skipped, warnings] = doubts;
    const bool strict = given(command, kStrict);
    std::vector<std::string> troubles;
    if (!refused.empty() && (strict || !given(command, kAllow))) troubles.push_back(summary_of(refused));
    if (!warnings.empty() && strict) troubles.push_back(summary_of(warnings));
    return troubles;
}

int conclude(const std::vector<std::string>& troubles) {
    if (troubles.empty()) return kSuccess;
    print_error(fmt::format("{}", fmt::join(troubles, "; ")));
    return kFailure;
}

}  // namespace attnsmith::cli
