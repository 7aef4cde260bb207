// The operations of Runtime::cache_json, by their names.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <span>

#include "engine/reports/cache_bundles.hpp"
#include "engine/reports/cache_report.hpp"
#include "engine/reports/explain.hpp"
#include "engine/runtime_impl.hpp"
#include "problem/json_text.hpp"
#include "problem/vocabulary.hpp"

namespace attnsmith::engine {

using Json = nlohmann::ordered_json;

namespace {

// What operations take: a runtime, and options that have no other fields than the operation's.
Json run_ls(Runtime::Impl& runtime, const nlohmann::json&) {
    const cache::Store& store = runtime.cubins.store();
    return ls_json(store, list_kernels(store));
}

Json run_explain(Runtime::Impl& runtime, const nlohmann::json& options) {
    return explain_json(runtime.cubins.store(), explain(runtime, options));
}

Json run_stat(Runtime::Impl& runtime, const nlohmann::json&) {
    return stat_json(runtime.cubins.store().stat());
}

Json run_verify(Runtime::Impl& runtime, const nlohmann::json&) {
    const cache::Store& store = runtime.cubins.store();
    return verify_json(store.verify(), store.options().directory);
}

Json run_gc(Runtime::Impl& runtime, const nlohmann::json& options) {
    std::optional<std::uint64_t> max_bytes;
    if (const auto given = options.find("max_bytes"); given != options.end()) {
        if (!given->is_number_unsigned()) {
            throw InvalidRequest("max_bytes", given->dump(), "a number of bytes");
        }
        max_bytes = given->get<std::uint64_t>();
    }
    const cache::Store& store = runtime.cubins.store();
    const cache::EvictionReport report = store.gc(max_bytes);
    require_collected(report);
    return gc_json(report, store.options().directory);
}

Json run_clear(Runtime::Impl& runtime, const nlohmann::json&) {
    const cache::Store& store = runtime.cubins.store();
    const cache::ClearReport report = store.clear();
    require_cleared(report);
    return clear_json(report, store.options().directory);
}

Json run_rm(Runtime::Impl& runtime, const nlohmann::json& options) {
    const auto digits = options.find("key");
    if (digits == options.end())
        throw InvalidRequest("key", "nothing", "the key of an entry, or how it begins");
    if (!digits->is_string()) throw InvalidRequest("key", problem::describe(*digits), "a text");
    const cache::Store& store = runtime.cubins.store();
    const cache::Digest key = find_key(digits->get_ref<const std::string&>(), list_kernels(store));
    const cache::RemoveReport report = store.remove(key);
    require_removed(report);
    return rm_json(report, key, store.options().directory);
}

Json run_dir(Runtime::Impl& runtime, const nlohmann::json&) { return dir_json(runtime.settings); }

Json run_export(Runtime::Impl& runtime, const nlohmann::json& options) {
    const ExportOptions parsed = parse_export_options(options);
    Json json = export_json(export_bundle(runtime, parsed));
    if (!parsed.model) return json;
    const Json told = Json::parse(to_json(*parsed.model));
    json["unsupported"] = told["unsupported"];
    json["skipped_combinations"] = told["skipped"];
    json["warnings"] = told["warnings"];
    return json;
}

Json run_import(Runtime::Impl& runtime, const nlohmann::json& options) {
    const cache::Store& store = runtime.cubins.store();
    return import_json(import_bundle(store, parse_import_file(options)), store.options().directory);
}

constexpr std::string_view kExplainOptions[] = {"key", "request"};
constexpr std::string_view kRmOptions[] = {"key"};
constexpr std::string_view kGcOptions[] = {"max_bytes"};
constexpr std::string_view kExportOptions[] = {"file", "sm", "model", "model_options"};
constexpr std::string_view kImportOptions[] = {"file"};

struct Operation {
    std::string_view name;
    std::span<const std::string_view> options;
    Json (*run)(Runtime::Impl& runtime, const nlohmann::json& options);
};

constexpr Operation kOperations[] = {{"ls", {}, run_ls},
                                     {"explain", kExplainOptions, run_explain},
                                     {"stat", {}, run_stat},
                                     {"dir", {}, run_dir},
                                     {"verify", {}, run_verify},
                                     {"gc", kGcOptions, run_gc},
                                     {"clear", {}, run_clear},
                                     {"rm", kRmOptions, run_rm},
                                     {"export", kExportOptions, run_export},
                                     {"import", kImportOptions, run_import}};

const Operation& find_operation(std::string_view name) {
    const auto found = std::ranges::find(kOperations, name, &Operation::name);
    if (found != std::end(kOperations)) return *found;
    throw InvalidRequest("operation", problem::quote(name), problem::join_or(cache_operations()));
}

void refuse_unknown_options(const Operation& operation, const nlohmann::json& options) {
    for (const auto& item : options.items()) {
        if (std::ranges::find(operation.options, item.key()) != operation.options.end()) continue;
        throw InvalidRequest(problem::field_name(item.key()), "an unknown option",
                             operation.options.empty()
                                 ? fmt::format("no option: {} takes none", operation.name)
                                 : problem::join_or(operation.options));
    }
}

}  // namespace

std::vector<std::string_view> cache_operations() {
    std::vector<std::string_view> names;
    for (const Operation& known : kOperations) names.push_back(known.name);
    return names;
}

Json run_cache_operation(Runtime::Impl& runtime, std::string_view operation, std::string_view options) {
    const Operation& known = find_operation(operation);
    const nlohmann::json object = problem::parse_json_object(options, {.what = "options"});
    refuse_unknown_options(known, object);
    return known.run(runtime, object);
}

}  // namespace attnsmith::engine
