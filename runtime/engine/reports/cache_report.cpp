#include "engine/reports/cache_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <system_error>
#include <utility>

#include "problem/json_text.hpp"
#include "problem/vocabulary.hpp"

namespace attnsmith::engine {
namespace {

using Json = nlohmann::ordered_json;
using std::chrono::system_clock;

int sm_in(const nlohmann::json& metadata) {
    const auto sm = metadata.find("sm");
    return sm != metadata.end() && sm->is_number_integer() ? sm->get<int>() : 0;
}

KernelEntry read_entry(cache::ListedEntry listed) {
    KernelEntry kernel{.entry = std::move(listed), .name = {}, .target = {}};
    const auto metadata = problem::parse_json(kernel.entry.metadata).value_or(nullptr);
    if (!metadata.is_object()) return kernel;
    const auto text = [&](const char* field) {
        const auto found = metadata.find(field);
        return found != metadata.end() && found->is_string() ? found->get<std::string>() : std::string();
    };
    kernel.name = text("name");
    kernel.target = text("target");
    kernel.sm = sm_in(metadata);
    return kernel;
}

// Null where nothing was ever counted.
Json counters_json(const cache::CounterTotals& totals) {
    using cache::Event;
    const bool any = totals.since != 0;
    return {{"since", any ? Json(utc_text(cache::file_time_of(totals.since))) : Json()},
            {"hits", totals[Event::hit]},
            {"misses", totals[Event::miss]},
            {"miss_errors", totals[Event::miss_error]},
            {"compiles", totals[Event::compile]},
            {"waits", totals[Event::wait]},
            {"quarantines", totals[Event::quarantine]},
            {"evictions", totals[Event::eviction]},
            {"bytes_read", totals[Event::bytes_read]},
            {"bytes_published", totals[Event::bytes_published]},
            {"bytes_evicted", totals[Event::bytes_evicted]}};
}

}  // namespace

Json directories_json(const cache::Options& options) {
    Json json = Json::array({options.directory});
    for (const std::string& layer : options.read_only_layers) json.push_back(layer);
    return json;
}

Json entry_json(const KernelEntry& kernel) {
    const cache::ListedEntry& entry = kernel.entry;
    return {{"key", entry.key.hex()},
            {"toolchain", entry.version.to_string()},
            {"name", kernel.name},
            {"sm", kernel.sm},
            {"target", kernel.target},
            {"bytes", entry.bytes},
            {"modified", utc_text(entry.modified)},
            {"age_s", age_seconds(entry.modified)},
            {"layer", entry.layer},
            {"path", entry.path}};
}

KernelList list_kernels(const cache::Store& store) {
    cache::Listing listing = store.list();
    KernelList list{.kernels = {}, .unreadable = std::move(listing.unreadable)};
    for (cache::ListedEntry& listed : listing.entries) list.kernels.push_back(read_entry(std::move(listed)));
    return list;
}

cache::Digest find_key(std::string_view digits, const KernelList& stored) {
    constexpr std::size_t kFewestDigits = 4, kMostTold = 8;
    constexpr std::string_view kHexDigits = "0123456789abcdef";
    std::string wanted(digits);
    std::ranges::transform(wanted, wanted.begin(), [](char c) {
        return c >= 'A' && c <= 'F' ? static_cast<char>(c - 'A' + 'a') : c;
    });
    if (wanted.size() < kFewestDigits || wanted.size() > cache::Digest::kHexDigits ||
        wanted.find_first_not_of(kHexDigits) != wanted.npos) {
        throw InvalidRequest("key", problem::quote(digits),
                             "32 hexadecimal digits, as `attnsmith cache ls` prints, or the first 4 or more");
    }
    std::set<std::string> keys;
    for (const KernelEntry& kernel : stored.kernels) {
        std::string key = kernel.entry.key.hex();
        if (key.starts_with(wanted)) keys.insert(std::move(key));
    }
    if (keys.empty()) {
        const std::string unread =
            stored.unreadable.empty() ? std::string() : "; " + unreadable_text(stored.unreadable);
        throw CacheError(fmt::format(
            "no entry has the key {}; `attnsmith cache ls` lists those that there are{}", wanted, unread));
    }
    if (keys.size() == 1) return cache::Digest::parse(*keys.begin()).value();
    const std::vector<std::string> told(
        keys.begin(), std::next(keys.begin(), static_cast<std::ptrdiff_t>(std::min(keys.size(), kMostTold))));
    throw CacheError(fmt::format("{} keys begin with {}: {}{}; give more of its digits", keys.size(), wanted,
                                 fmt::join(told, ", "), keys.size() > told.size() ? ", ..." : ""));
}

std::string unreadable_text(std::span<const cache::Status> unreadable) {
    const std::size_t more = unreadable.size() - 1;
    return fmt::format("not everything could be read: {}{}", unreadable.front().to_string(),
                       more == 0 ? "" : fmt::format(" (and {} more)", more));
}

bool is_missing(const std::string& path) {
    std::error_code error;
    return std::filesystem::status(path, error).type() == std::filesystem::file_type::not_found;
}

std::string utc_text(cache::FileTime time) {
    const std::time_t seconds = system_clock::to_time_t(time);
    std::tm utc{};
    if (::gmtime_r(&seconds, &utc) == nullptr) return {};  // the year does not fit an int
    char text[64];
    return {text, std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc)};
}

std::int64_t age_seconds(cache::FileTime time) {
    return std::chrono::duration_cast<std::chrono::seconds>(system_clock::now() - time).count();
}

int sm_of(const cache::ListedEntry& entry) {
    const auto metadata = problem::parse_json(entry.metadata).value_or(nullptr);
    return metadata.is_object() ? sm_in(metadata) : 0;
}

void require_directories(const Settings& settings, std::string_view remedy) {
    if (settings.cache_dirs.empty()) {
        throw CacheError(
            fmt::format("there is no cache directory ({}): {}", remedy, settings.no_cache_because));
    }
    for (const std::string& place : settings.cache_dirs) {
        std::error_code ignored;
        const auto status = std::filesystem::status(place, ignored);
        if (!std::filesystem::exists(status) || std::filesystem::is_directory(status)) continue;
        if (&place == &settings.cache_dirs.front()) {
            throw InvalidRequest(settings.cache_dirs_named_by, place, "a directory; bundles can follow it");
        }
        if (!std::filesystem::is_regular_file(status)) {
            throw InvalidRequest(settings.cache_dirs_named_by, place, "a directory or a bundle");
        }
    }
}

Json unreadable_json(std::span<const cache::Status> unreadable) {
    Json json = Json::array();
    for (const cache::Status& one : unreadable) json.push_back({{"path", one.path}, {"reason", one.message}});
    return json;
}

Json ls_json(const cache::Store& store, const KernelList& list) {
    Json json = {{"schema", "attnsmith.cache-ls/1"}, {"directories", directories_json(store.options())}};
    json["entries"] = Json::array();
    for (const KernelEntry& kernel : list.kernels) json["entries"].push_back(entry_json(kernel));
    json["unreadable"] = unreadable_json(list.unreadable);
    return json;
}

Json stat_json(const cache::Statistics& statistics) {
    Json json = {{"schema", "attnsmith.cache-stat/1"},
                 {"directory", statistics.directory},
                 {"writable", statistics.writable},
                 {"not_writable_because", statistics.not_writable_because},
                 {"not_trusted_because", statistics.not_trusted_because},
                 {"entries", statistics.entries},
                 {"bytes", statistics.bytes},
                 {"allocated_bytes", statistics.allocated_bytes},
                 {"max_bytes", statistics.max_bytes},
                 {"quarantined", statistics.quarantined},
                 {"staging", statistics.staging},
                 {"counters", counters_json(statistics.counters)},
                 {"layers", Json::array()}};
    for (const cache::LayerStatistics& layer : statistics.layers) {
        json["layers"].push_back({{"directory", layer.directory},
                                  {"entries", layer.entries},
                                  {"bytes", layer.bytes},
                                  {"allocated_bytes", layer.allocated_bytes},
                                  {"not_trusted_because", layer.not_trusted_because},
                                  {"not_usable_because", layer.not_usable_because},
                                  {"unreadable", unreadable_json(layer.unreadable)}});
    }
    json["unreadable"] = unreadable_json(statistics.unreadable);
    return json;
}

Json verify_json(const cache::VerifyReport& report, const std::string& directory) {
    Json json = {{"schema", "attnsmith.cache-verify/1"},
                 {"directory", directory},
                 {"checked", report.checked},
                 {"unusable", report.unusable},
                 {"skipped", report.skipped},
                 {"stale_staging_removed", report.stale_staging_removed},
                 {"bad", Json::array()}};
    for (const cache::BadEntry& bad : report.bad) {
        json["bad"].push_back(bad_json(bad));
    }
    return json;
}

Json bad_json(const cache::BadEntry& bad) {
    return {{"path", bad.path}, {"reason", bad.reason}, {"action", bad.action}};
}

Json clear_json(const cache::ClearReport& report, const std::string& directory) {
    return {{"schema", "attnsmith.cache-clear/1"},
            {"directory", directory},
            {"entries", report.entries},
            {"quarantined", report.quarantined},
            {"staging", report.staging},
            {"locks", report.locks},
            {"bytes", report.bytes},
            {"staging_left", report.staging_left},
            {"locks_left", report.locks_left}};
}

namespace {

void require_deleted(const cache::Status& status, bool anything) {
    if (status.ok()) return;
    throw CacheError(
        fmt::format("{} could be deleted: {}", anything ? "not everything" : "nothing", status.to_string()));
}

}  // namespace

void require_cleared(const cache::ClearReport& report) {
    require_deleted(report.status, report.entries + report.quarantined + report.staging + report.locks > 0);
}

Json rm_json(const cache::RemoveReport& report, const cache::Digest& key, const std::string& directory) {
    return {{"schema", "attnsmith.cache-rm/1"}, {"directory", directory}, {"key", key.hex()},
            {"entries", report.entries},        {"bytes", report.bytes},  {"left", report.left}};
}

void require_removed(const cache::RemoveReport& report) {
    require_deleted(report.status, report.entries > 0);
    if (report.entries > 0 || report.left == 0) return;
    throw CacheError(
        fmt::format("nothing was deleted: {} of its entries {} in read-only layers only, which are "
                    "not written to",
                    report.left, report.left == 1 ? "is" : "are"));
}

Json dir_json(const Settings& settings) {
    return {{"schema", "attnsmith.cache-dir/1"},
            {"directories", settings.cache_dirs},
            {"named_by", settings.cache_dirs_named_by}};
}

Json gc_json(const cache::EvictionReport& report, const std::string& directory) {
    Json json = {
        {"schema", "attnsmith.cache-gc/1"}, {"directory", directory},
        {"entries", report.entries},        {"quarantined", report.quarantined},
        {"staging", report.staging},        {"locks", report.locks},
        {"allocated_bytes", report.bytes},  {"max_bytes", report.limit ? Json(*report.limit) : Json()}};
    if (report.kept) {
        json["kept_entries"] = report.kept->entries;
        json["kept_allocated_bytes"] = report.kept->bytes;
    }
    return json;
}

void require_collected(const cache::EvictionReport& report) {
    if (report.busy) {
        throw CacheError("nothing was deleted: another process is evicting from this directory; try again");
    }
    const bool anything = report.entries + report.quarantined + report.staging + report.locks > 0;
    require_deleted(report.status, anything);
    require_deleted(report.leftover_status, anything);
}

}  // namespace attnsmith::engine
