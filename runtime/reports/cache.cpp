// Cache: what the store says, in the public API's words.
#include "attnsmith/cache.hpp"

#include <utility>

#include "engine/runtime_impl.hpp"
#include "reports/cache_bundles.hpp"
#include "reports/cache_directories.hpp"
#include "reports/cache_push.hpp"
#include "reports/deletions.hpp"
#include "reports/explain.hpp"
#include "reports/kernel_list.hpp"
#include "reports/public_reports.hpp"

namespace attnsmith {

using engine::report_of;

struct Cache::Impl {
    explicit Impl(std::shared_ptr<Runtime::Impl> held) : runtime(std::move(held)) {}

    const cache::Store& store() const {
        engine::require_directories(runtime->settings, "give cache_dirs");
        return runtime->cubins.store();
    }
    const std::string& directory() const { return store().options().directory; }

    const std::shared_ptr<Runtime::Impl> runtime;
};

Cache Runtime::cache() const {
    (void)impl();  // throws for what was moved from
    return Cache(std::make_shared<const Cache::Impl>(impl_));
}

std::vector<std::string> Cache::directories() const { return impl_->runtime->settings.cache_dirs; }

CacheListing Cache::list() const {
    return report_of(engine::list_kernels(impl_->store()), impl_->store().options());
}

CacheStatistics Cache::stat() const { return report_of(impl_->store().stat()); }

CacheVerification Cache::verify() const { return report_of(impl_->store().verify(), impl_->directory()); }

CacheGcReport Cache::gc(const CacheGcOptions& options) const {
    const cache::EvictionReport report = impl_->store().gc(options.max_bytes);
    engine::require_collected(report);
    return report_of(report, impl_->directory());
}

CacheClearReport Cache::clear() const {
    const cache::ClearReport report = impl_->store().clear();
    engine::require_cleared(report);
    return report_of(report, impl_->directory());
}

CacheRemoveReport Cache::remove(std::string_view key) const {
    const cache::Digest digest = engine::find_key(key, engine::list_kernels(impl_->store()));
    const cache::RemoveReport report = impl_->store().remove(digest);
    engine::require_removed(report);
    return report_of(report, digest, impl_->directory());
}

CacheExportReport Cache::export_bundle(const CacheExportOptions& options) const {
    (void)impl_->store();
    return engine::export_bundle(*impl_->runtime, options);
}

CacheImageReport Cache::export_image(const CacheImageOptions& options) const {
    (void)impl_->store();
    return engine::export_image(*impl_->runtime, options);
}

CacheImportReport Cache::import_bundle(const std::string& file) const {
    return engine::import_bundle(impl_->store(), file);
}

CachePushReport Cache::push(const CachePushOptions& options) const {
    (void)impl_->store();
    return engine::push_entries(*impl_->runtime, options);
}

CacheExplanations Cache::explain(std::string_view key) const {
    engine::KernelList stored = engine::list_kernels(impl_->store());
    engine::Explanation one = engine::explain_key(impl_->store(), key, stored);
    return report_of({{std::move(one)}, std::move(stored.unreadable)}, {}, impl_->store().options());
}

CacheExplanations Cache::explain(std::span<const AttentionSpec> specs, std::span<const int> sms) const {
    const cache::Store& store = impl_->store();
    if (sms.empty()) throw InvalidRequest("sms", "nothing", "compute capabilities");
    std::vector<PrewarmRefusal> unserved;
    const engine::Explained explained = engine::explain(*impl_->runtime, specs, sms, unserved);
    return report_of(explained, std::move(unserved), store.options());
}

}  // namespace attnsmith
