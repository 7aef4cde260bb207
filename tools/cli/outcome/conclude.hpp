// How a command over models ends: what is not supported or not known is said, and makes the exit code.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <concepts>
#include <cstddef>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "attnsmith/coverage.hpp"
#include "attnsmith/runtime.hpp"
#include "cli/outcome/refused.hpp"
#include "cli/outcome/warnings.hpp"
#include "cli/program/command.hpp"

namespace attnsmith::cli {

// --allow-unsupported: what is not supported is listed, but does not fail the command.
// --strict: warnings fail it, too, and unsupported parts in any case.
void add_doubt_flags(Command& command);

// What a command did not do, or is not sure of.
struct Doubts {
    std::vector<PrewarmRefusal> refused{};
    std::vector<SkippedPart> skipped{};
    std::vector<ModelWarning> warnings{};

    Doubts() = default;
    // Those of what was read: more may be refused later.
    explicit Doubts(const Coverage& coverage)
        : refused(refused_parts(coverage.unsupported)),
          skipped(coverage.skipped),
          warnings(coverage.warnings) {}
    explicit Doubts(const Model& model)
        : refused(refused_parts(model.unsupported)), warnings(model.warnings) {}
    // Those that a report on a coverage has.
    template <class Report>
    requires std::same_as<decltype(Report::unsupported), std::vector<PrewarmRefusal>>
    explicit Doubts(const Report& report)
        : refused(report.unsupported), skipped(report.skipped), warnings(report.warnings) {}
};

// A line for each; of what is refused alone under --quiet.
std::string text_of(const Doubts& doubts);
// Adds "unsupported", "skipped" and "warnings" to a report.
void add_doubts(nlohmann::ordered_json& report, const Doubts& doubts);

// A line for each kind of doubt that fails the command; none where it may succeed.
std::vector<std::string> failing_doubts(const Command& command, const Doubts& doubts);

// "REASON (NAME for sm N and 3 more)", once for all that failed for one and the same reason, as they all do
// where there is no NVRTC. The reason of the first item comes first: that a remote is left alone follows from
// what it answered before. Items have a name, sm, state and error.
template <class Item>
std::string failures_text(const std::vector<Item>& items) {
    std::vector<const Item*> first;  // of each reason
    std::map<std::string, std::size_t> count;
    for (const Item& item : items) {
        if (item.state == decltype(item.state)::failed && ++count[item.error] == 1) first.push_back(&item);
    }
    std::vector<std::string> reasons;
    for (const Item* item : first) {
        const std::size_t others = count[item->error] - 1;
        reasons.push_back(fmt::format("{} ({} for sm {}{})", item->error, item->name, item->sm,
                                      others > 0 ? fmt::format(" and {} more", others) : ""));
    }
    return fmt::format("{}", fmt::join(reasons, "; "));
}

// Prints all troubles as one error. Returns the exit code.
int conclude(const std::vector<std::string>& troubles);

}  // namespace attnsmith::cli
