// Coverages of JSON that is parsed already: what flags say, for one.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

#include "attnsmith/coverage.hpp"

namespace attnsmith::problem {

// As attnsmith::request_coverage() and attnsmith::model_coverage().
Coverage coverage_of_request(const nlohmann::json& request);
Coverage coverage_of_model(std::string_view config_json, const nlohmann::json& options);

}  // namespace attnsmith::problem
