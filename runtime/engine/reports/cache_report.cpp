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

}  // namespace

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

std::string unreadable_text(std::span<const CacheUnreadable> unreadable) {
    const auto& [path, reason] = unreadable.front();
    const std::size_t more = unreadable.size() - 1;
    return fmt::format("not everything could be read: {}{}{}{}", reason, path.empty() ? "" : ": ", path,
                       more == 0 ? "" : fmt::format(" (and {} more)", more));
}

std::string unreadable_text(std::span<const cache::Status> unreadable) {
    std::vector<CacheUnreadable> told;
    for (const cache::Status& one : unreadable) told.push_back({one.path, one.message});
    return unreadable_text(told);
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

nlohmann::ordered_json unreadable_json(std::span<const cache::Status> unreadable) {
    auto json = nlohmann::ordered_json::array();
    for (const cache::Status& one : unreadable) json.push_back({{"path", one.path}, {"reason", one.message}});
    return json;
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

void require_removed(const cache::RemoveReport& report) {
    require_deleted(report.status, report.entries > 0);
    if (report.entries > 0 || report.left == 0) return;
    throw CacheError(
        fmt::format("nothing was deleted: {} of its entries {} in read-only layers only, which are "
                    "not written to",
                    report.left, report.left == 1 ? "is" : "are"));
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
