// How fast an attention runs with each tile that a kernel of a tuned family could have: what tuning tables
// are made from. Needs a GPU.
#pragma once

#include <chrono>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "attnsmith/runtime.hpp"
#include "families/family.hpp"
#include "problem/request/problem.hpp"

namespace attnsmith::bench {

struct TileSpeed {
    families::KernelConfig kernel{};
    double tflops = 0;
    std::string failure{};  // why it was not measured; empty where it was
    std::string toolchain{};
    int spill_bytes = 0;
};

struct TileSpeedOptions {
    bool quick = false;                                // fewer tiles and rounds
    std::chrono::steady_clock::time_point deadline{};  // when to make do with few rounds
    std::stop_token stop{};
};

// Which tiles a problem's are.
families::Phase phase_of(const problem::Problem& problem);

// Why no family whose tiles are tuned for the problem's phase serves it on the SM; nothing where one does.
std::optional<std::string> tuning_refusal(const problem::Problem& problem, const families::SmTraits& sm);

// The best first, what failed last; unordered, or none, after a stop. Of decode's tiles that are as fast as
// the best, the one with most CTAs an SM comes first. Of prefill, which tile is the best is measured first
// with two stages, then again of the best few with any; decode has so few kernels that all of them are
// measured at once. Kernels take turns, so that a clock that drifts is all theirs. REQUIRES: tuning_refusal()
// has nothing to say. Throws what the library throws where no launch could go on.
std::vector<TileSpeed> measure_tiles(Runtime& runtime, const problem::Problem& problem,
                                     const TileSpeedOptions& options);

}  // namespace attnsmith::bench
