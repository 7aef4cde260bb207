// Export to a bundle or an image, and import of a bundle: `attnsmith cache export` and `import`, and the
// operations of these names of attnsmith_cache().
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
#include "engine/runtime_access.hpp"

namespace attnsmith::engine {

// Which kernels of the cache are asked for.
struct ParsedSelection {
    std::vector<int> sms{};
    std::optional<Coverage> coverage{};  // of a model
};

// What an export was asked for.
struct ParsedExport {
    std::string place{};                       // the bundle's file, or the image's directory
    CacheExportOptions options{};              // to a bundle, unless there is an `image`
    std::optional<CacheImageOptions> image{};  // with the same selection
};

// Throws CacheError where the file cannot be written or there is nothing to put into it.
CacheExportReport export_bundle(RuntimeImpl& runtime, const std::string& file,
                                const CacheExportOptions& options);
// The same of an image's directory; InvalidRequest for its tag.
CacheImageReport export_image(RuntimeImpl& runtime, const std::string& directory,
                              const CacheImageOptions& options);
// Throws CacheError where the bundle is not sound (nothing is published then) or cannot be stored.
CacheImportReport import_bundle(const cache::Store& store, const std::string& file);

// `options` are {"file", "sm", "model", "model_options"} for an export, where {"oci", "tag"} may stand
// instead of the file, and {"file"} for an import. Both throw InvalidRequest naming the field.
ParsedExport parse_export_options(const nlohmann::json& object);
// {"sm", "model", "model_options"} of an export or a push; likewise.
ParsedSelection parse_selection(const nlohmann::json& object);
std::string parse_import_file(const nlohmann::json& object);

}  // namespace attnsmith::engine
