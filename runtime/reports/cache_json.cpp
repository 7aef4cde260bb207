#include "reports/cache_json.hpp"

#include <nlohmann/json.hpp>

#include "cache/remote/address.hpp"
#include "reports/unreadable.hpp"
#include "settings/entry_times.hpp"

namespace attnsmith::engine {
namespace {

using Json = nlohmann::ordered_json;

Json bad_json(std::span<const CacheBadEntry> bad) {
    Json json = Json::array();
    for (const auto& [path, reason, action] : bad)
        json.push_back({{"path", path}, {"reason", reason}, {"action", action}});
    return json;
}

Json entry_json(const CacheEntry& entry) {
    return {{"key", entry.key},
            {"toolchain", entry.toolchain},
            {"name", entry.name},
            {"sm", entry.sm},
            {"target", entry.target},
            {"bytes", entry.bytes},
            {"modified", utc_text(entry.modified)},
            {"age_s", age_seconds(entry.modified)},
            {"layer", entry.layer},
            {"path", entry.path}};
}

Json counters_json(const CacheCounters& counters) {
    return {{"since", counters.since ? Json(utc_text(*counters.since)) : Json()},
            {"hits", counters.hits},
            {"misses", counters.misses},
            {"miss_errors", counters.miss_errors},
            {"compiles", counters.compiles},
            {"waits", counters.waits},
            {"remote_hits", counters.remote_hits},
            {"remote_misses", counters.remote_misses},
            {"remote_failures", counters.remote_failures},
            {"remote_bytes", counters.remote_bytes},
            {"quarantines", counters.quarantines},
            {"evictions", counters.evictions},
            {"bytes_read", counters.bytes_read},
            {"bytes_published", counters.bytes_published},
            {"bytes_evicted", counters.bytes_evicted}};
}

Json layer_json(const CacheLayer& layer) {
    return {{"directory", layer.directory},
            {"entries", layer.entries},
            {"bytes", layer.bytes},
            {"allocated_bytes", layer.allocated_bytes},
            {"not_trusted_because", layer.not_trusted_because},
            {"not_usable_because", layer.not_usable_because},
            {"unreadable", unreadable_json(layer.unreadable)}};
}

Json pushed_json(const CachePushedEntry& entry) {
    return {{"name", entry.name},           {"sm", entry.sm},       {"key", entry.key},
            {"toolchain", entry.toolchain}, {"bytes", entry.bytes}, {"state", entry.state}};
}

Json explanation_json(const CacheExplanation& one) {
    Json json = {{"name", one.name},        {"sm", one.sm},
                 {"key", one.key},          {"state", one.hit ? "hit" : "miss"},
                 {"fields", Json::array()}, {"entries", Json::array()}};
    for (const auto& [label, value] : one.fields)
        json["fields"].push_back({{"label", label}, {"value", value}});
    for (std::size_t i = 0; i < one.entries.size(); ++i) {
        json["entries"].push_back(entry_json(one.entries[i]));
        json["entries"].back()["fault"] = one.faults[i];
    }
    if (one.nearest) {
        json["nearest"] = {{"entry", entry_json(one.nearest->entry)}, {"differences", Json::array()}};
        for (const auto& [label, here, there] : one.nearest->differences)
            json["nearest"]["differences"].push_back({{"label", label}, {"here", here}, {"there", there}});
    }
    return json;
}

Json shown(const std::vector<std::string>& addresses) {
    Json json = Json::array();
    for (const std::string& address : addresses) json.push_back(cache::shown_address(address));
    return json;
}

}  // namespace

Json dir_json(const Settings& settings) {
    return {{"schema", "attnsmith.cache-dir/1"},
            {"directories", settings.cache_dirs},
            {"remotes", shown(settings.remotes)},
            {"named_by", settings.cache_dirs_named_by}};
}

Json to_json(const CacheListing& list) {
    Json json = {
        {"schema", "attnsmith.cache-ls/1"}, {"directories", list.directories}, {"entries", Json::array()}};
    for (const CacheEntry& entry : list.entries) json["entries"].push_back(entry_json(entry));
    json["unreadable"] = unreadable_json(list.unreadable);
    return json;
}

Json to_json(const CacheStatistics& of) {
    Json json = {{"schema", "attnsmith.cache-stat/1"},
                 {"directory", of.directory},
                 {"writable", of.writable},
                 {"not_writable_because", of.not_writable_because},
                 {"not_trusted_because", of.not_trusted_because},
                 {"entries", of.entries},
                 {"bytes", of.bytes},
                 {"allocated_bytes", of.allocated_bytes},
                 {"max_bytes", of.max_bytes},
                 {"quarantined", of.quarantined},
                 {"staging", of.staging},
                 {"counters", counters_json(of.counters)},
                 {"layers", Json::array()}};
    for (const CacheLayer& layer : of.layers) json["layers"].push_back(layer_json(layer));
    json["unreadable"] = unreadable_json(of.unreadable);
    return json;
}

Json to_json(const CacheVerification& of) {
    return {{"schema", "attnsmith.cache-verify/1"},
            {"directory", of.directory},
            {"checked", of.checked},
            {"unusable", of.unusable},
            {"skipped", of.skipped},
            {"stale_staging_removed", of.stale_staging_removed},
            {"bad", bad_json(of.bad)}};
}

Json to_json(const CacheGcReport& report) {
    Json json = {{"schema", "attnsmith.cache-gc/1"},
                 {"directory", report.directory},
                 {"entries", report.entries},
                 {"quarantined", report.quarantined},
                 {"staging", report.staging},
                 {"locks", report.locks},
                 {"allocated_bytes", report.allocated_bytes},
                 {"max_bytes", report.max_bytes ? Json(*report.max_bytes) : Json()}};
    if (report.kept) {
        json["kept_entries"] = report.kept->entries;
        json["kept_allocated_bytes"] = report.kept->allocated_bytes;
    }
    return json;
}

Json to_json(const CacheClearReport& report) {
    return {{"schema", "attnsmith.cache-clear/1"},
            {"directory", report.directory},
            {"entries", report.entries},
            {"quarantined", report.quarantined},
            {"staging", report.staging},
            {"locks", report.locks},
            {"bytes", report.bytes},
            {"staging_left", report.staging_left},
            {"locks_left", report.locks_left}};
}

Json to_json(const CacheRemoveReport& report) {
    return {{"schema", "attnsmith.cache-rm/1"}, {"directory", report.directory}, {"key", report.key},
            {"entries", report.entries},        {"bytes", report.bytes},         {"left", report.left}};
}

Json to_json(const CacheExportReport& report) {
    Json json = {{"schema", "attnsmith.cache-export/1"},
                 {"file", report.file},
                 {"entries", report.entries},
                 {"bytes", report.bytes},
                 {"skipped", report.skipped},
                 {"missing", report.missing},
                 {"bad", bad_json(report.bad)},
                 {"unreadable", unreadable_json(report.unreadable)}};
    if (report.signed_by.empty()) return json;
    json["signature_file"] = report.signature_file;
    json["signed_by"] = report.signed_by;
    return json;
}

Json to_json(const CacheImageReport& report) {
    return {{"schema", "attnsmith.cache-export/1"},
            {"oci", report.oci},
            {"tag", report.tag},
            {"digest", report.digest},
            {"entries", report.entries},
            {"bytes", report.bytes},
            {"skipped", report.skipped},
            {"missing", report.missing},
            {"bad", bad_json(report.bad)},
            {"unreadable", unreadable_json(report.unreadable)}};
}

Json to_json(const CacheImportReport& report) {
    Json json = {{"schema", "attnsmith.cache-import/1"},
                 {"file", report.file},
                 {"directory", report.directory},
                 {"entries", report.entries},
                 {"imported", report.imported},
                 {"present", report.present},
                 {"bytes", report.bytes}};
    if (!report.signed_by.empty()) json["signed_by"] = report.signed_by;
    return json;
}

Json to_json(const CachePushReport& report) {
    Json json = {{"schema", "attnsmith.cache-push/1"},
                 {"remotes", report.remotes},
                 {"pushed", report.pushed},
                 {"present", report.present},
                 {"failed", report.failed},
                 {"cancelled", report.cancelled},
                 {"bytes", report.bytes},
                 {"skipped", report.skipped},
                 {"seconds", report.seconds},
                 {"entries", Json::array()},
                 {"missing", Json::array()},
                 {"bad", bad_json(report.bad)},
                 {"unreadable", unreadable_json(report.unreadable)}};
    if (!report.signed_by.empty()) json["signed_by"] = report.signed_by;
    for (const CachePushedEntry& entry : report.entries) {
        Json& one = json["entries"].emplace_back(pushed_json(entry));
        if (!entry.error.empty()) one["error"] = entry.error;
    }
    for (const auto& [name, sm, key] : report.missing)
        json["missing"].push_back({{"name", name}, {"sm", sm}, {"key", key}});
    return json;
}

Json to_json(const SigningKey& key) {
    return {{"schema", "attnsmith.cache-keygen/1"},
            {"key_id", key.key_id},
            {"secret_key_file", key.secret_key_file},
            {"public_key_file", key.public_key_file}};
}

Json to_json(const CacheExplanations& of) {
    Json json = {
        {"schema", "attnsmith.cache-explain/1"}, {"directories", of.directories}, {"kernels", Json::array()}};
    for (const CacheExplanation& one : of.kernels) json["kernels"].push_back(explanation_json(one));
    json["unreadable"] = unreadable_json(of.unreadable);
    return json;
}

}  // namespace attnsmith::engine
