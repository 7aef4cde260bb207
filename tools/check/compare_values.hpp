// The outputs of one launch against the reference.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "check/case.hpp"
#include "check/reference.hpp"
#include "check/storage.hpp"

namespace attnsmith::check {

struct ComparedValues {
    std::string fault;         // the first that was found; empty: there is none
    std::size_t compared = 0;  // query rows
    std::size_t total = 0;
    double max_abs_error = 0;
    double element_ratio = 0;  // as CaseResult has them
    double pooled_ratio = 0;
    double rounding_ratio = 0;  // of elements beyond their tolerance: error / bound of one rounding
    int vacuous_pools = 0;
    double lse_ratio = 0;
};

struct CompareOptions {
    std::uint64_t seed = 0;
    int threads = 0;    // of the reference; 0: all cores
    double budget = 0;  // operations; above it a random sample of query rows is compared
};

// `outputs` are those of a launch of the step.
ComparedValues compare_values(const Case& test, const Step& step, const Storage& storage,
                              const Storage::Outputs& outputs, const CompareOptions& options);

}  // namespace attnsmith::check
