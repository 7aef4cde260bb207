// Cache: what the store says, in the public API's words.
#include "attnsmith/cache.hpp"

#include <utility>

#include "engine/held.hpp"
#include "engine/named_specs.hpp"
#include "engine/runtime_impl.hpp"
#include "reports/cache_bundles.hpp"
#include "reports/cache_directories.hpp"
#include "reports/cache_push.hpp"
#include "reports/deletions.hpp"
#include "reports/explain.hpp"
#include "reports/kernel_list.hpp"
#include "reports/public_reports.hpp"

namespace attnsmith {

using engine::held, engine::report_of;

struct __attribute__((visibility("hidden"))) Cache::Impl {
    explicit Impl(std::shared_ptr<engine::RuntimeImpl> held) : runtime(std::move(held)) {}

    const cache::Store& store() const {
        engine::require_directories(runtime->settings, "give cache_dirs");
        return runtime->cubins.store();
    }
    const std::string& directory() const { return store().options().directory; }

    const std::shared_ptr<engine::RuntimeImpl> runtime;
};

Cache Runtime::cache() const {
    (void)impl();  // throws for what was moved from
    return Cache(std::make_shared<const Cache::Impl>(impl_));
}

std::vector<std::string> Cache::directories() const {
    return held(impl_, "Cache").runtime->settings.cache_dirs;
}

CacheListing Cache::list() const {
    return report_of(engine::list_kernels(held(impl_, "Cache").store()),
                     held(impl_, "Cache").store().options());
}

CacheStatistics Cache::stat() const { return report_of(held(impl_, "Cache").store().stat()); }

CacheVerification Cache::verify() const {
    return report_of(held(impl_, "Cache").store().verify(), held(impl_, "Cache").directory());
}

CacheGcReport Cache::gc(const CacheGcOptions& options) const {
    const cache::EvictionReport report = held(impl_, "Cache").store().gc(options.max_bytes);
    engine::require_collected(report);
    return report_of(report, held(impl_, "Cache").directory());
}

CacheClearReport Cache::clear() const {
    const cache::ClearReport report = held(impl_, "Cache").store().clear();
    engine::require_cleared(report);
    return report_of(report, held(impl_, "Cache").directory());
}

CacheRemoveReport Cache::remove(std::string_view key) const {
    const cache::Digest digest = engine::find_key(key, engine::list_kernels(held(impl_, "Cache").store()));
    const cache::RemoveReport report = held(impl_, "Cache").store().remove(digest);
    engine::require_removed(report);
    return report_of(report, digest, held(impl_, "Cache").directory());
}

CacheExportReport Cache::export_bundle(const std::string& file, const CacheExportOptions& options) const {
    (void)held(impl_, "Cache").store();
    return engine::export_bundle(*held(impl_, "Cache").runtime, file, options);
}

CacheImageReport Cache::export_image(const std::string& directory, const CacheImageOptions& options) const {
    (void)held(impl_, "Cache").store();
    return engine::export_image(*held(impl_, "Cache").runtime, directory, options);
}

CacheImportReport Cache::import_bundle(const std::string& file) const {
    return engine::import_bundle(held(impl_, "Cache").store(), file);
}

CachePushReport Cache::push(const CachePushOptions& options) const {
    (void)held(impl_, "Cache").store();
    return engine::push_entries(*held(impl_, "Cache").runtime, options);
}

CacheExplanations Cache::explain(std::string_view key) const {
    engine::KernelList stored = engine::list_kernels(held(impl_, "Cache").store());
    engine::Explanation one = engine::explain_key(held(impl_, "Cache").store(), key, stored);
    return report_of({{std::move(one)}, std::move(stored.unreadable)},
                     held(impl_, "Cache").store().options());
}

CacheExplanations Cache::explain(std::span<const AttentionSpec> specs, std::span<const int> sms) const {
    const cache::Store& store = held(impl_, "Cache").store();
    if (sms.empty()) throw InvalidRequest("sms", "nothing", "compute capabilities");
    std::vector<PrewarmRefusal> unsupported;
    const engine::Explained explained =
        engine::explain(*held(impl_, "Cache").runtime, specs, sms, unsupported);
    CacheExplanations report = report_of(explained, store.options());
    report.unsupported = std::move(unsupported);
    return report;
}

CacheExplanations Cache::explain(const Coverage& coverage, const std::vector<int>& sms) const {
    const engine::NamedSpecs named = engine::named_specs(coverage);
    CacheExplanations report = explain(named.specs, sms);
    engine::add_coverage(coverage, named, report);
    return report;
}

}  // namespace attnsmith
