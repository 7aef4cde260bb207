#include "reports/report_json.hpp"

#include <chrono>
#include <span>
#include <vector>

#include "attnsmith/runtime.hpp"
#include "cache/remote/address.hpp"
#include "problem/json_text.hpp"
#include "problem/report/json.hpp"
#include "reports/tables/cache.hpp"
#include "reports/tables/places.hpp"
#include "reports/tables/prewarm.hpp"
#include "reports/unreadable.hpp"
#include "settings/entry_times.hpp"

namespace attnsmith {
namespace problem {

template <>
struct Written<std::chrono::system_clock::time_point> {
    static nlohmann::ordered_json write(std::chrono::system_clock::time_point time) {
        return engine::utc_text(time);
    }
};

}  // namespace problem

namespace {

template <class Report>
std::string text_of(const Report& report) {
    return problem::indented(problem::written(report));
}

}  // namespace

std::string to_json(const PrewarmedKernel& kernel) { return problem::one_line(problem::json_of(kernel)); }
std::string to_json(const PrewarmReport& report) { return text_of(report); }
std::string to_json(std::span<const DeviceInfo> devices) {
    return text_of(std::vector<DeviceInfo>(devices.begin(), devices.end()));
}
std::string to_json(const CacheListing& report) { return text_of(report); }
std::string to_json(const CacheStatistics& report) { return text_of(report); }
std::string to_json(const CacheVerification& report) { return text_of(report); }
std::string to_json(const CacheGcReport& report) { return text_of(report); }
std::string to_json(const CacheClearReport& report) { return text_of(report); }
std::string to_json(const CacheRemoveReport& report) { return text_of(report); }
std::string to_json(const CacheExportReport& report) { return text_of(report); }
std::string to_json(const CacheImageReport& report) { return text_of(report); }
std::string to_json(const CacheImportReport& report) { return text_of(report); }
std::string to_json(const CachePushReport& report) { return text_of(report); }
std::string to_json(const SigningKey& key) { return text_of(key); }
std::string to_json(const CacheExplanations& report) { return text_of(report); }

namespace engine {

std::string pull_json(const PrewarmReport& report) {
    using Table = problem::ReportTable<PullReport>;
    nlohmann::ordered_json json = {{"schema", Table::schema}};
    problem::write_fields(Table::fields, report, json);
    return problem::indented(json);
}

std::string places_json(const Settings& settings) {
    CachePlaces places{
        .directories = settings.cache_dirs, .remotes = {}, .named_by = settings.cache_dirs_named_by};
    for (const std::string& address : settings.remotes)
        places.remotes.push_back(cache::shown_address(address));
    return text_of(places);
}

nlohmann::ordered_json unreadable_json(std::span<const cache::Status> unreadable) {
    return problem::written(report_of(unreadable));
}
nlohmann::ordered_json unsupported_json(const std::vector<PrewarmRefusal>& unsupported) {
    return problem::written(unsupported);
}
nlohmann::ordered_json skipped_json(const std::vector<SkippedPart>& skipped) {
    return problem::written(skipped);
}
nlohmann::ordered_json warnings_json(const std::vector<ModelWarning>& warnings) {
    return problem::written(warnings);
}

}  // namespace engine
}  // namespace attnsmith
