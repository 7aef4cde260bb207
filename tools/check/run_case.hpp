// Runs one Case on the GPU and judges everything that the specification promises about it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "check/case.hpp"

namespace attnsmith::check {

struct RunOptions {
    std::uint64_t seed = 0;
    int threads = 0;                // of the reference; 0: all cores
    double reference_budget = 2e9;  // operations a step; above it a random sample of query rows is compared
    // How a Call is launched and waited for; absent: launch(), then synchronize().
    std::function<void(const Runtime&, const Call&)> launch;
};

// By the names of its fields.
std::string describe(const CallStatus& status);

// Uploads fresh random data with NaN in all memory that no sequence owns, launches, and checks: outputs (each
// element written, within tolerance), LSE, every byte outside the outputs untouched, repeated launches equal
// bit for bit, and the Call's status. Never throws for a wrong result: it is in the CaseResult. What the
// library throws is a failure too.
CaseResult run_case(Runtime& runtime, const Case& test, const RunOptions& options);

}  // namespace attnsmith::check
