// Export to a bundle and import of one: `attnsmith cache export` and `import`, and the operations of these
// names of Runtime::cache_json.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "attnsmith/coverage.hpp"
#include "attnsmith/runtime.hpp"
#include "cache/store/store.hpp"

namespace attnsmith::engine {

struct ExportOptions {
    std::string file;
    std::vector<int> sms{};  // empty: of all
    // Only the kernels that planning could choose for these, on `sms` or else on those that the cache has
    // anything for. Nothing: all kernels.
    std::optional<std::vector<AttentionSpec>> specs{};
    std::stop_token stop{};
    std::optional<Coverage> model{};  // that the specs are of: what its reader warns of is told
};

struct Exported {
    cache::ExportReport report;
    // Kernels of the specs that the cache lacks, on the SMs that were named or that it has any of them for.
    std::uint64_t missing = 0;
    // Of the specs, those that no kernel serves on an SM that was named.
    std::vector<PrewarmRefusal> unserved{};
};

// Throws CacheError where the file cannot be written or there is nothing to put into it.
Exported export_bundle(Runtime::Impl& runtime, const ExportOptions& options);
// Throws CacheError where the bundle is not sound (nothing is published then) or cannot be stored.
cache::ImportReport import_bundle(const cache::Store& store, const std::string& file);

// `options` are {"file", "sm", "model", "model_options"} for an export, {"file"} for an import. Both throw
// InvalidRequest naming the field.
ExportOptions parse_export_options(const nlohmann::json& object);
std::string parse_import_file(const nlohmann::json& object);

nlohmann::ordered_json export_json(const Exported& exported);
nlohmann::ordered_json import_json(const cache::ImportReport& report, const std::string& directory);

}  // namespace attnsmith::engine
