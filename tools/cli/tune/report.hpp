// What `attnsmith tune` says of what it measured.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/tile_speeds.hpp"
#include "families/traits.hpp"
#include "families/tuning.hpp"
#include "problem/request/problem.hpp"

namespace attnsmith::cli {

// The attentions that an entry of the table is for, and the one of them that is measured.
struct TuningClass {
    families::TuningMatch match;
    problem::Problem problem;
};

// "head dims 128 and 128, paged KV, causal mask"
std::string text_of(const families::TuningMatch& match);
// A line on the class, and a table of its tiles, the best first.
std::string speeds_text(const TuningClass& of, const std::vector<bench::TileSpeed>& speeds);

// Schema attnsmith.tune/1, without classes yet.
nlohmann::ordered_json tune_json(const families::DeviceTraits& device);
// The same as speeds_text(), for its "classes".
nlohmann::ordered_json speeds_json(const TuningClass& of, const std::vector<bench::TileSpeed>& speeds);

}  // namespace attnsmith::cli
