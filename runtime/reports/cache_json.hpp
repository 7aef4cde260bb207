// The cache's reports as JSON: of `attnsmith cache ... --json`, and of Runtime::cache_json.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "attnsmith/cache.hpp"
#include "settings/environment.hpp"

namespace attnsmith::engine {

nlohmann::ordered_json dir_json(const Settings& settings);        // schema attnsmith.cache-dir/1
nlohmann::ordered_json to_json(const CacheListing& list);         // attnsmith.cache-ls/1
nlohmann::ordered_json to_json(const CacheStatistics& of);        // attnsmith.cache-stat/1
nlohmann::ordered_json to_json(const CacheVerification& of);      // attnsmith.cache-verify/1
nlohmann::ordered_json to_json(const CacheGcReport& report);      // attnsmith.cache-gc/1
nlohmann::ordered_json to_json(const CacheClearReport& report);   // attnsmith.cache-clear/1
nlohmann::ordered_json to_json(const CacheRemoveReport& report);  // attnsmith.cache-rm/1
nlohmann::ordered_json to_json(const CacheExportReport& report);  // attnsmith.cache-export/1
nlohmann::ordered_json to_json(const CacheImageReport& report);   // the same
nlohmann::ordered_json to_json(const CacheImportReport& report);  // attnsmith.cache-import/1
nlohmann::ordered_json to_json(const CachePushReport& report);    // attnsmith.cache-push/1
nlohmann::ordered_json to_json(const SigningKey& key);            // attnsmith.cache-keygen/1
nlohmann::ordered_json to_json(const CacheExplanations& of);      // attnsmith.cache-explain/1

}  // namespace attnsmith::engine
