// Coverages of JSON that is parsed already: what flags say, for one.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <nlohmann/json_fwd.hpp>
#include <string_view>

#include "attnsmith/coverage.hpp"

namespace attnsmith::problem {

// As attnsmith::request_coverage(), without its warnings, and attnsmith::model_coverage().
Coverage coverage_of_request(const nlohmann::json& request);
Coverage coverage_of_model(std::string_view config_json, const nlohmann::json& options);

// For tables of what is known already: equal for equal ones, and seldom for others.
std::size_t hash_of(std::initializer_list<std::string_view> texts);

}  // namespace attnsmith::problem
