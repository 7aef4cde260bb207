// Reports as JSON that the public to_json() does not write.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>

#include "attnsmith/coverage.hpp"
#include "attnsmith/prewarm.hpp"
#include "cache/files/status.hpp"
#include "settings/environment.hpp"

namespace attnsmith::engine {

std::string pull_json(const PrewarmReport& report);  // schema attnsmith.cache-pull/1
std::string places_json(const Settings& settings);   // schema attnsmith.cache-dir/1

// Parts of other reports.
nlohmann::ordered_json unreadable_json(std::span<const cache::Status> unreadable);
nlohmann::ordered_json unsupported_json(const std::vector<PrewarmRefusal>& unsupported);
nlohmann::ordered_json skipped_json(const std::vector<SkippedPart>& skipped);
nlohmann::ordered_json warnings_json(const std::vector<ModelWarning>& warnings);

}  // namespace attnsmith::engine
