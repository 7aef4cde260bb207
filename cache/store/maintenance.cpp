// What people ask of a whole cache: Store's list, stat, verify, gc, clear and remove.

#include <algorithm>
#include <chrono>
#include <iterator>
#include <tuple>
#include <utility>

#include "cache/entries/entry_file.hpp"
#include "cache/entries/judged_entry.hpp"
#include "cache/entries/layer.hpp"
#include "cache/entries/layout.hpp"
#include "cache/entries/leftovers.hpp"
#include "cache/store/store.hpp"

namespace attnsmith::cache {
namespace {

// For another evictor: somebody sits before it, and evicting takes less than this.
constexpr auto kLongestGcWait = std::chrono::seconds(10);

std::uint64_t count_named(FileSystem& files, const std::string& root, std::string_view directory,
                          bool (*is_ours)(std::string_view), std::vector<Status>& unreadable) {
    const std::vector<NamedFile> found = list_and_note(files, {root, std::string(directory)}, unreadable);
    return static_cast<std::uint64_t>(
        std::count_if(found.begin(), found.end(), [&](const NamedFile& file) { return is_ours(file.name); }));
}

LayerStatistics measure_layer(FileSystem& files, const Layer& layer, Trust trust) {
    LayerSize size = layer.measure();
    LayerStatistics statistics;
    statistics.directory = layer.path();
    statistics.entries = size.entries;
    statistics.bytes = size.bytes;
    statistics.allocated_bytes = size.allocated_bytes;
    statistics.unreadable = std::move(size.unreadable);
    const Result<FileInfo> info = files.stat({layer.path(), {}});
    if (!info) {
        statistics.not_usable_because = info.status().message;
        return statistics;
    }
    for (const Status& part : statistics.unreadable) {
        if (part.path == layer.path()) statistics.not_usable_because = part.message;
    }
    if (const auto reason = reason_for_distrust(*info, trust)) {
        statistics.not_trusted_because = *reason;
        statistics.trust_remedy = trust_remedy(*info, trust);
    }
    return statistics;
}

std::string describe(const Result<bool>& moved_to_quarantine) {
    if (!moved_to_quarantine) return "left in place: " + moved_to_quarantine.status().message;
    return *moved_to_quarantine ? std::string(kQuarantined) : "replaced meanwhile";
}

bool list_order(const ListedEntry& a, const ListedEntry& b) {
    return std::tie(a.key, b.version, a.layer) < std::tie(b.key, a.version, b.layer);
}

}  // namespace

Listing Store::list() const {
    Listing listing;
    for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
        if (Status judged = judge(layer); !judged.ok()) {
            listing.unreadable.push_back(std::move(judged));
            continue;
        }
        FoundEntries found = layers_[layer]->find_all();
        std::ranges::move(found.unreadable, std::back_inserter(listing.unreadable));
        for (const FoundEntry& entry : found.entries) {
            if (entry.info.kind != FileKind::regular) continue;
            Result<std::string> metadata = layers_[layer]->read_metadata(entry.name);
            if (!metadata) {
                note_unreadable(metadata.status(), listing.unreadable);
                continue;
            }
            listing.entries.push_back({entry.name.key, entry.name.version, entry.info.bytes,
                                       entry.info.modified, layer, entry.path.full(),
                                       std::move(metadata).value()});
        }
    }
    std::ranges::sort(listing.entries, list_order);
    return listing;
}

Statistics Store::stat() const {
    const std::string& root = options_.directory;
    LayerStatistics own = measure_layer(files_, *layers_[kWritableLayer], options_.trust);
    Statistics statistics;
    statistics.directory = root;
    statistics.entries = own.entries;
    statistics.bytes = own.bytes;
    statistics.allocated_bytes = own.allocated_bytes;
    statistics.max_bytes = options_.max_bytes;
    statistics.unreadable = std::move(own.unreadable);
    const Status trusted = judge(kWritableLayer);
    if (trusted.ok()) counters_.flush(directory_mode());
    statistics.counters = read_counters(files_, root);
    statistics.quarantined = count_named(files_, root, layout::kQuarantineDirectory,
                                         layout::is_quarantine_name, statistics.unreadable);
    statistics.staging =
        count_named(files_, root, layout::kStagingDirectory, layout::is_staging_name, statistics.unreadable);

    Status writable = root.empty() ? no_cache_directory() : trusted;
    statistics.not_trusted_because = own.not_trusted_because;
    statistics.trust_remedy = own.trust_remedy;
    if (writable.ok()) writable = files_.check_writable({root, {}});
    statistics.writable = writable.ok();
    if (!writable.ok()) statistics.not_writable_because = writable.to_string();

    for (std::size_t layer = kWritableLayer + 1; layer < layers_.size(); ++layer) {
        statistics.layers.push_back(measure_layer(files_, *layers_[layer], options_.trust));
    }
    return statistics;
}

VerifyReport Store::verify() const {
    VerifyReport report;
    for (std::size_t layer = 0; layer < layers_.size(); ++layer) verify_layer(layer, report);
    if (!check_trust(kWritableLayer).ok()) return report;
    FileClock clock(files_, options_.directory, directory_mode());
    Remover remover(files_);
    report.stale_staging_removed =
        remove_stale_staging_files(files_, options_.directory, clock, remover).files;
    if (!remover.status().ok()) {
        report.bad.push_back({remover.status().path, remover.status().message, "left in place"});
        ++report.unusable;
    }
    return report;
}

void Store::verify_layer(std::size_t layer, VerifyReport& report) const {
    if (const Status trusted = check_trust(layer); !trusted.ok()) {
        report.bad.push_back({layers_[layer]->path(), trusted.message, "left in place"});
        ++report.unusable;
        return;
    }
    const std::size_t bad_before = report.bad.size();
    const FoundEntries found = layers_[layer]->find_all();
    for (const Status& unreadable : found.unreadable) {
        report.bad.push_back({unreadable.path, unreadable.message, "left in place"});
        ++report.unusable;
    }
    for (const FoundEntry& entry : found.entries) verify_entry(entry, layer, report);
    // After the entries, which say more of themselves.
    const Status whole = layers_[layer]->check_rest();
    if (!whole.ok() && report.bad.size() == bad_before) {
        report.bad.push_back({layers_[layer]->path(), whole.message, "left in place"});
        ++report.unusable;
    }
}

void Store::verify_entry(const FoundEntry& found, std::size_t layer, VerifyReport& report) const {
    JudgedEntry judged;
    if (found.info.kind == FileKind::regular) {
        judged = judge_entry(*layers_[layer], found.name, options_, Depth::content);
    } else {
        judged.verdict = Verdict::broken;
        judged.status.message = "not a regular file";
        judged.file.info = found.info;
    }
    if (judged.verdict == Verdict::gone) return;
    ++report.checked;
    if (judged.verdict == Verdict::sound) return;
    if (judged.verdict == Verdict::of_another_format) {
        ++report.skipped;
        return;
    }
    report.bad.push_back({found.path.full(), judged.status.message, {}});
    std::string& action = report.bad.back().action;
    if (layer != kWritableLayer) {
        action = "left in place: a read-only layer";
    } else if (judged.verdict != Verdict::broken) {
        action = "left in place";
    } else if (found.info.kind == FileKind::directory) {
        // Never ours, and clear() removes none: it would be in quarantine for ever.
        action = "left in place: a directory";
    } else {
        action = describe(
            quarantine({found.name.key, found.name.version, layer, found.path.full()}, judged.file.info));
    }
}

ClearReport Store::clear() const {
    ClearReport report;
    const std::string& root = options_.directory;
    Remover remover(files_);
    if (Status trusted = check_trust(kWritableLayer); !trusted.ok()) {
        report.status = std::move(trusted);
        return report;
    }
    const FoundEntries found = find_entries(files_, root);
    for (const Status& unreadable : found.unreadable) remover.note_failure(unreadable);
    for (const FoundEntry& entry : found.entries) {
        if (entry.info.kind == FileKind::directory) continue;
        report.entries += remover.remove(entry.path, entry.info) == Removal::removed ? 1 : 0;
    }
    report.quarantined = remove_quarantined(files_, root, 0, remover).files;
    FileClock clock(files_, root, directory_mode());
    const Removed staging = remove_stale_staging_files(files_, root, clock, remover);
    report.staging = staging.files;
    report.staging_left = staging.in_use;
    report.bytes = remover.bytes();
    const Removed locks = remove_idle_lock_files(files_, root, FileTime::max(), remover);
    report.locks = locks.files;
    report.locks_left = locks.in_use;
    remove_counters(files_, root, remover);
    report.status = remover.status();
    return report;
}

RemoveReport Store::remove(const Digest& key) const {
    RemoveReport report;
    Remover remover(files_);
    for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
        if (layers_[layer]->path().empty()) continue;
        Status trusted = check_trust(layer);
        const Result<std::vector<Version>> versions =
            trusted.ok() ? layers_[layer]->versions_of(key) : Result<std::vector<Version>>(trusted);
        if (!versions) {
            if (!is_absence(versions.status())) remover.note_failure(versions.status());
            continue;
        }
        if (layer != kWritableLayer) {
            report.left += versions->size();
            continue;
        }
        for (const Version& version : *versions) {
            const Path path{options_.directory, layout::entry_path({key, version})};
            const Result<FileInfo> info = files_.stat(path);
            const Removal removal = remover.remove(path, info ? *info : FileInfo{});
            report.entries += removal == Removal::removed ? 1 : 0;
        }
    }
    report.bytes = remover.bytes();
    report.status = remover.status();
    return report;
}

EvictionReport Store::gc(std::optional<std::uint64_t> max_bytes) const {
    EvictionReport report;
    if (options_.directory.empty()) {
        report.status = no_cache_directory();
        return report;
    }
    if (Status trusted = check_trust(kWritableLayer); !trusted.ok()) {
        report.status = std::move(trusted);
        return report;
    }
    EvictionLimits limits{.lock_wait =
                              std::min<std::chrono::nanoseconds>(options_.lock_wait, kLongestGcWait)};
    if (max_bytes) {
        limits.start_above = limits.stop_at = *max_bytes;
        limits.grace = {};
    } else if (options_.max_bytes > 0) {
        limits.start_above = limits.stop_at = options_.max_bytes;
    }
    return run_evictor(limits);
}

}  // namespace attnsmith::cache
