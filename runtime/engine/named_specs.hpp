// A coverage as the list of its specs, and what of the coverage goes into a report on that list.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "attnsmith/coverage.hpp"
#include "attnsmith/prewarm.hpp"

namespace attnsmith::engine {

// The attention's name; its op, of a request that has none.
std::string name_of(const ModelAttention& attention);

// Each spec once, with the name of the first attention that has it.
struct NamedSpecs {
    std::vector<AttentionSpec> specs{};
    std::vector<std::string> names{};
};
NamedSpecs named_specs(const Coverage& coverage);

// The coverage's unsupported parts, then those of its specs that no kernel serves, which get their names.
std::vector<PrewarmRefusal> unsupported_of(const Coverage& coverage, const NamedSpecs& specs,
                                           std::vector<PrewarmRefusal> not_served);

// The report is one on the specs; afterwards it is one on the coverage.
template <class Report>
void add_coverage(const Coverage& coverage, const NamedSpecs& specs, Report& report) {
    report.unsupported = unsupported_of(coverage, specs, std::move(report.unsupported));
    report.skipped = coverage.skipped;
    report.warnings = coverage.warnings;
}

}  // namespace attnsmith::engine
