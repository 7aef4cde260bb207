#include "cli/conclude.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/output.hpp"

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

std::vector<std::string> failing_doubts(const Command& command, const std::vector<Refused>& refused,
                                        const std::vector<ModelWarning>& warnings) {
    const bool strict = given(command, kStrict);
    std::vector<std::string> doubts;
    if (!refused.empty() && (strict || !given(command, kAllow))) doubts.push_back(summary_of(refused));
    if (!warnings.empty() && strict) doubts.push_back(summary_of(warnings));
    return doubts;
}

int conclude(const std::vector<std::string>& troubles) {
    if (troubles.empty()) return kSuccess;
    print_error(fmt::format("{}", fmt::join(troubles, "; ")));
    return kFailure;
}

}  // namespace attnsmith::cli
