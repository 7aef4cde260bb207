#include "reports/public_reports.hpp"

#include <utility>

namespace attnsmith::engine {
namespace {

CacheEntry report_of(const KernelEntry& kernel) {
    const cache::ListedEntry& entry = kernel.entry;
    return {.key = entry.key.hex(),
            .toolchain = entry.version.to_string(),
            .name = kernel.name,
            .sm = kernel.sm,
            .target = kernel.target,
            .bytes = entry.bytes,
            .modified = std::chrono::time_point_cast<std::chrono::system_clock::duration>(entry.modified),
            .layer = entry.layer,
            .path = entry.path};
}

std::vector<CacheEntry> report_of(std::span<const KernelEntry> kernels) {
    std::vector<CacheEntry> entries;
    for (const KernelEntry& kernel : kernels) entries.push_back(report_of(kernel));
    return entries;
}

CacheCounters report_of(const cache::CounterTotals& totals) {
    using cache::Event;
    CacheCounters counters{.hits = totals[Event::hit],
                           .misses = totals[Event::miss],
                           .miss_errors = totals[Event::miss_error],
                           .compiles = totals[Event::compile],
                           .waits = totals[Event::wait],
                           .remote_hits = totals[Event::remote_hit],
                           .remote_misses = totals[Event::remote_miss],
                           .remote_failures = totals[Event::remote_failure],
                           .remote_bytes = totals[Event::remote_bytes],
                           .quarantines = totals[Event::quarantine],
                           .evictions = totals[Event::eviction],
                           .bytes_read = totals[Event::bytes_read],
                           .bytes_published = totals[Event::bytes_published],
                           .bytes_evicted = totals[Event::bytes_evicted]};
    if (totals.since != 0)
        counters.since = std::chrono::time_point_cast<std::chrono::system_clock::duration>(
            cache::file_time_of(totals.since));
    return counters;
}

std::vector<CacheBadEntry> report_of(std::span<const cache::BadEntry> bad) {
    std::vector<CacheBadEntry> entries;
    for (const auto& [path, reason, action] : bad)
        entries.push_back({path, reason, action == cache::kQuarantined, action});
    return entries;
}

CacheLayer report_of(const cache::LayerStatistics& layer) {
    return {.directory = layer.directory,
            .entries = layer.entries,
            .bytes = layer.bytes,
            .allocated_bytes = layer.allocated_bytes,
            .not_trusted_because = layer.not_trusted_because,
            .not_usable_because = layer.not_usable_because,
            .unreadable = engine::report_of(layer.unreadable)};
}

CacheExplanation report_of(const Explanation& one) {
    CacheExplanation explanation{.name = one.name,
                                 .sm = one.sm,
                                 .key = one.key.hex(),
                                 .hit = one.hit,
                                 .fields = {},
                                 .entries = {},
                                 .nearest = {}};
    for (std::size_t i = 0; i < one.entries.size(); ++i)
        explanation.entries.push_back({report_of(one.entries[i]), one.faults[i]});
    for (const auto& [label, value] : one.fields) explanation.fields.push_back({label, value});
    if (one.nearest) {
        explanation.nearest.emplace().entry = report_of(one.nearest->kernel);
        for (const auto& [label, here, there] : one.nearest->differences)
            explanation.nearest->differences.push_back({label, here, there});
    }
    return explanation;
}

}  // namespace

std::vector<std::string> directories_of(const cache::Options& options) {
    std::vector<std::string> directories = {options.directory};
    directories.insert(directories.end(), options.read_only_layers.begin(), options.read_only_layers.end());
    return directories;
}

CacheListing report_of(const KernelList& list, const cache::Options& options) {
    return {directories_of(options), report_of(std::span(list.kernels)), report_of(list.unreadable)};
}

CacheStatistics report_of(const cache::Statistics& statistics) {
    CacheStatistics report{.directory = statistics.directory,
                           .writable = statistics.writable,
                           .not_writable_because = statistics.not_writable_because,
                           .not_trusted_because = statistics.not_trusted_because,
                           .entries = statistics.entries,
                           .bytes = statistics.bytes,
                           .allocated_bytes = statistics.allocated_bytes,
                           .max_bytes = {},
                           .quarantined = statistics.quarantined,
                           .staging = statistics.staging,
                           .counters = report_of(statistics.counters),
                           .layers = {},
                           .unreadable = report_of(statistics.unreadable)};
    if (statistics.max_bytes != 0) report.max_bytes = statistics.max_bytes;
    for (const cache::LayerStatistics& layer : statistics.layers) report.layers.push_back(report_of(layer));
    return report;
}

CacheVerification report_of(const cache::VerifyReport& report, const std::string& directory) {
    return {.directory = directory,
            .checked = report.checked,
            .unusable = report.unusable,
            .other_format = report.skipped,
            .stale_staging_removed = report.stale_staging_removed,
            .bad = report_of(report.bad)};
}

CacheGcReport report_of(const cache::EvictionReport& report, const std::string& directory) {
    CacheGcReport result{.directory = directory,
                         .entries = report.entries,
                         .quarantined = report.quarantined,
                         .staging = report.staging,
                         .locks = report.locks,
                         .allocated_bytes = report.bytes,
                         .max_bytes = report.limit,
                         .kept = {}};
    if (result.max_bytes == kNoLimit) result.max_bytes.reset();
    if (report.kept) result.kept = {report.kept->entries, report.kept->bytes};
    return result;
}

CacheClearReport report_of(const cache::ClearReport& report, const std::string& directory) {
    return {.directory = directory,
            .entries = report.entries,
            .quarantined = report.quarantined,
            .staging = report.staging,
            .locks = report.locks,
            .bytes = report.bytes,
            .staging_left = report.staging_left,
            .locks_left = report.locks_left};
}

CacheRemoveReport report_of(const cache::RemoveReport& report, const cache::Digest& key,
                            const std::string& directory) {
    return {.directory = directory,
            .key = key.hex(),
            .entries = report.entries,
            .bytes = report.bytes,
            .left = report.left};
}

CacheExportReport report_of(const cache::ExportReport& report) {
    return {.file = report.file,
            .entries = report.entries,
            .bytes = report.bytes,
            .other_format = report.skipped,
            .missing = 0,
            .bad = report_of(report.bad),
            .unreadable = report_of(report.unreadable),
            .unsupported = {},
            .skipped = {},
            .warnings = {},
            .signature_file = report.signature_file,
            .signed_by = report.signed_by};
}

CacheImageReport report_of(const cache::ImageReport& report, const std::string& tag) {
    return {.directory = report.directory,
            .tag = tag,
            .digest = "sha256:" + report.manifest.hex(),
            .entries = report.entries,
            .bytes = report.bytes,
            .other_format = report.skipped,
            .missing = 0,
            .bad = report_of(report.bad),
            .unreadable = report_of(report.unreadable),
            .unsupported = {},
            .skipped = {},
            .warnings = {}};
}

CacheImportReport report_of(const cache::ImportReport& report, const std::string& directory) {
    return {.file = report.file,
            .directory = directory,
            .entries = report.entries,
            .imported = report.published,
            .present = report.present,
            .bytes = report.bytes,
            .signed_by = report.signed_by};
}

CacheExplanations report_of(const Explained& explained, const cache::Options& options) {
    CacheExplanations report{.directories = directories_of(options),
                             .kernels = {},
                             .unreadable = report_of(explained.unreadable),
                             .unsupported = {},
                             .skipped = {},
                             .warnings = {}};
    for (const Explanation& one : explained.kernels) report.kernels.push_back(report_of(one));
    return report;
}

}  // namespace attnsmith::engine
