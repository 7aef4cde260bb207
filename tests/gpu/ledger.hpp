// What ran on which hardware, as committed in tests/gpu/LEDGER.json.
#pragma once

#include <string>
#include <vector>

#include "check/case.hpp"

namespace attnsmith::gpu_tests {

struct LedgerHeader {
    std::string sources;  // SHA-256 over kernel_templates and runtime, see run_ledger.sh
    std::string gpu;
    std::string driver;
    std::uint64_t seed = 0;
    double seconds = 0;
};

struct Totals {
    int passed = 0, failed = 0, skipped = 0;

    void count(check::Outcome outcome);
};

Totals count(const std::vector<check::CaseResult>& results);

// The worst of a case's errors as a share of what is allowed.
double accuracy_ratio(const check::CaseResult& result);

void write_ledger(const std::string& path, const LedgerHeader& header,
                  const std::vector<check::CaseResult>& results);

}  // namespace attnsmith::gpu_tests
