// Numerics of a model's attention on this machine's GPU: what `attnsmith check` runs.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "attnsmith/runtime.hpp"
#include "check/append.hpp"
#include "check/case.hpp"
#include "check/run_case.hpp"

namespace attnsmith::check {

struct ModelCheckOptions {
    std::uint64_t seed = 0;
    int threads = 0;                // of the reference; 0: all cores
    double reference_budget = 1e9;  // operations a case; above it a random sample of query rows is compared
};

// The cases for one attention of a model: real heads, dims, window, softcap and sinks on batches of reduced
// lengths (still longer than the window), with empty sequences. A prefill also continues from a cache. None
// of an append.
std::vector<Case> model_cases(const ModelAttention& attention);

// The cases for what writes a cache: steps of a decode, and prompts. Of anything else none.
std::vector<AppendCase> append_cases(const ModelAttention& attention);

// `done` of `total` cases are finished, `result` the latest.
using CheckProgress = std::function<void(const CaseResult& result, int done, int total)>;

// Runs model_cases() and append_cases() of every attention, in the model's order. Parts that cannot be
// planned (Model::unsupported) have no case. A failure is a result, not an exception.
std::vector<CaseResult> run_model_checks(Runtime& runtime, const Model& model,
                                         const ModelCheckOptions& options = {},
                                         const CheckProgress& progress = {});

}  // namespace attnsmith::check
