// Export to a bundle and import of one: `attnsmith cache export` and `import`, and the operations of these
// names of Runtime::cache_json.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "attnsmith/coverage.hpp"
#include "attnsmith/runtime.hpp"
#include "cache/store/store.hpp"

namespace attnsmith::engine {

// What an export was asked for.
struct ParsedExport {
    CacheExportOptions options{};
    std::optional<Coverage> model{};  // that the specs are of: what its reader warns of is told
};

// Throws CacheError where the file cannot be written or there is nothing to put into it.
CacheExportReport export_bundle(Runtime::Impl& runtime, const CacheExportOptions& options);
// Throws CacheError where the bundle is not sound (nothing is published then) or cannot be stored.
CacheImportReport import_bundle(const cache::Store& store, const std::string& file);

// `options` are {"file", "sm", "model", "model_options"} for an export, {"file"} for an import. Both throw
// InvalidRequest naming the field.
ParsedExport parse_export_options(const nlohmann::json& object);
std::string parse_import_file(const nlohmann::json& object);

}  // namespace attnsmith::engine
