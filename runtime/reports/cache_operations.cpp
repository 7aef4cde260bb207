#include "reports/cache_operations.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>

#include "attnsmith/coverage.hpp"
#include "engine/runtime_impl.hpp"
#include "problem/json_text.hpp"
#include "problem/vocabulary.hpp"
#include "reports/cache_bundles.hpp"
#include "reports/cache_directories.hpp"
#include "reports/report_json.hpp"

namespace attnsmith::engine {

namespace {

// What operations take: a runtime, and options that have no other fields than the operation's.
std::string run_ls(const Runtime& runtime, const nlohmann::json&) { return to_json(runtime.cache().list()); }

std::string text_option(const nlohmann::json& options, const char* name) {
    const nlohmann::json& given = options.at(name);
    if (!given.is_string()) throw InvalidRequest(name, problem::describe(given), "a text");
    return given.get<std::string>();
}

std::string run_explain(const Runtime& runtime, const nlohmann::json& options) {
    const bool key = options.contains("key"), request = options.contains("request");
    if (key == request)
        throw InvalidRequest("key", key ? "a key and a request" : "nothing",
                             "a key or a request, one of the two");
    if (key) return to_json(runtime.cache().explain(text_option(options, "key")));
    const AttentionRequest asked = parse_request(problem::one_line(options.at("request")));
    if (asked.sm.empty()) throw InvalidRequest("request.sm", "nothing", "compute capabilities");
    const CacheExplanations explained = runtime.cache().explain({&asked.spec, 1}, asked.sm);
    if (!explained.unsupported.empty()) throw Unsupported(explained.unsupported.front().reason, {});
    return to_json(explained);
}

std::string run_stat(const Runtime& runtime, const nlohmann::json&) {
    return to_json(runtime.cache().stat());
}

std::string run_verify(const Runtime& runtime, const nlohmann::json&) {
    return to_json(runtime.cache().verify());
}

std::string run_gc(const Runtime& runtime, const nlohmann::json& options) {
    CacheGcOptions limit;
    if (const auto given = options.find("max_bytes"); given != options.end()) {
        if (!given->is_number_unsigned())
            throw InvalidRequest("max_bytes", problem::one_line(*given), "a number of bytes");
        limit.max_bytes = given->get<std::uint64_t>();
    }
    return to_json(runtime.cache().gc(limit));
}

std::string run_clear(const Runtime& runtime, const nlohmann::json&) {
    return to_json(runtime.cache().clear());
}

std::string run_rm(const Runtime& runtime, const nlohmann::json& options) {
    if (!options.contains("key"))
        throw InvalidRequest("key", "nothing", "the key of an entry, or how it begins");
    return to_json(runtime.cache().remove(text_option(options, "key")));
}

std::string run_dir(const Runtime& runtime, const nlohmann::json&) {
    return places_json(impl_of(runtime).settings);
}

std::string run_export(const Runtime& runtime, const nlohmann::json& options) {
    const ParsedExport parsed = parse_export_options(options);
    if (parsed.image) return to_json(runtime.cache().export_image(parsed.place, *parsed.image));
    return to_json(runtime.cache().export_bundle(parsed.place, parsed.options));
}

std::string run_push(const Runtime& runtime, const nlohmann::json& options) {
    ParsedSelection selection = parse_selection(options);
    CachePushOptions push;
    push.sms = std::move(selection.sms);
    push.coverage = std::move(selection.coverage);
    return to_json(runtime.cache().push(push));
}

std::string run_import(const Runtime& runtime, const nlohmann::json& options) {
    return to_json(runtime.cache().import_bundle(parse_import_file(options)));
}

constexpr std::string_view kExplainOptions[] = {"key", "request"};
constexpr std::string_view kRmOptions[] = {"key"};
constexpr std::string_view kGcOptions[] = {"max_bytes"};
constexpr std::string_view kExportOptions[] = {"file", "oci", "tag", "sm", "model", "model_options"};
constexpr std::string_view kImportOptions[] = {"file"};
constexpr std::string_view kPushOptions[] = {"sm", "model", "model_options"};

struct Operation {
    std::string_view name;
    std::span<const std::string_view> options;
    std::string (*run)(const Runtime& runtime, const nlohmann::json& options);
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
                                     {"import", kImportOptions, run_import},
                                     {"push", kPushOptions, run_push}};

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

std::string run_cache_operation(const Runtime& runtime, std::string_view operation,
                                std::string_view options) {
    require_directories(impl_of(runtime).settings, "give cache_dirs");
    const Operation& known = find_operation(operation);
    const nlohmann::json object = problem::parse_json_object(options, {.what = "options"});
    refuse_unknown_options(known, object);
    return known.run(runtime, object);
}

}  // namespace attnsmith::engine
