// The JSON of what a Runtime reports: prewarming, devices, the cache.
#include <nlohmann/json.hpp>
#include <span>

#include "attnsmith/runtime.hpp"
#include "engine/runtime_impl.hpp"
#include "problem/json_text.hpp"
#include "reports/cache_directories.hpp"
#include "reports/cache_operations.hpp"

namespace attnsmith {
namespace {

using Json = nlohmann::ordered_json;

// File names and what drivers say may be any bytes; JSON is UTF-8.
std::string text_of(const Json& json) { return problem::indented(json); }

Json kernel_json(const PrewarmedKernel& kernel) {
    Json json = {{"name", kernel.name},   {"sm", kernel.sm},           {"key", kernel.key},
                 {"state", kernel.state}, {"ms", kernel.milliseconds}, {"cubin_bytes", kernel.cubin_bytes}};
    if (!kernel.error.empty()) json["error"] = kernel.error;
    return json;
}

}  // namespace

std::string to_json(const PrewarmedKernel& kernel) { return problem::one_line(kernel_json(kernel)); }

std::string to_json(const PrewarmReport& report) {
    Json json = {{"schema", "attnsmith.prewarm/1"}};
    json["summary"] = {{"total", report.total},
                       {"hits", report.hits},
                       {"compiled", report.compiled},
                       {"remote", report.remote},
                       {"waited", report.waited},
                       {"pushed", report.pushed},
                       {"missing", report.missing},
                       {"failed", report.failed},
                       {"cancelled", report.cancelled},
                       {"unsupported", report.unsupported.size()},
                       {"ok", report.ok()},
                       {"seconds", report.seconds}};
    json["kernels"] = Json::array();
    for (const PrewarmedKernel& kernel : report.kernels) json["kernels"].push_back(kernel_json(kernel));
    json["unsupported"] = Json::array();
    for (const PrewarmRefusal& refusal : report.unsupported) {
        json["unsupported"].push_back(
            {{"spec", refusal.spec}, {"sm", refusal.sm}, {"reason", refusal.reason}});
    }
    return text_of(json);
}

std::string to_json(std::span<const DeviceInfo> devices) {
    Json json = Json::array();
    for (const DeviceInfo& device : devices) {
        json.push_back({{"device", device.device},
                        {"index", device.device},
                        {"name", device.name},
                        {"sm", device.sm},
                        {"sm_count", device.sm_count},
                        {"memory_bytes", device.memory_bytes}});
    }
    return text_of(json);
}

std::string Runtime::cache_json(std::string_view operation, std::string_view options) const {
    engine::require_directories(impl().settings, "give cache_dirs");
    return text_of(engine::run_cache_operation(*this, operation, options));
}

}  // namespace attnsmith
