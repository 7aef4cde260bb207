// What people ask of a whole cache: Store's list, stat, verify, gc and clear.

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <iterator>
#include <memory>
#include <tuple>
#include <utility>

#include "cache/entry_file.hpp"
#include "cache/layer.hpp"
#include "cache/layout.hpp"
#include "cache/leftovers.hpp"
#include "cache/store.hpp"

namespace attnsmith::cache {
namespace {

std::uint64_t count_named(FileSystem& files, const std::string& root, std::string_view directory,
                          bool (*is_ours)(std::string_view)) {
    const std::vector<NamedFile> found = list_files_if_any(files, {root, std::string(directory)});
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

enum class Verdict { sound, of_another_format, gone, unreadable, broken };

struct Examination {
    Verdict verdict;
    std::string reason;
    FileInfo info;  // of the file that was read
    std::unique_ptr<File>
        file;  // that file, open, so that nothing else gets its inode; null if there is none
};

Examination examine(const Layer& layer, const FoundEntry& found) {
    if (found.info.kind != FileKind::regular) {
        return {Verdict::broken, "not a regular file", found.info, nullptr};
    }
    Result<EntryFile> file = layer.read(found.name);
    if (!file) {
        // Gone: evicted or cleared since it was listed.
        const bool gone = file.status().error_number == ENOENT;
        return {gone ? Verdict::gone : Verdict::unreadable, file.status().message, found.info, nullptr};
    }
    const DecodeResult result = check_entry_file(*file, found.name);
    const auto* failure = std::get_if<DecodeFailure>(&result);
    const Verdict verdict = failure == nullptr  ? Verdict::sound
                            : failure->broken() ? Verdict::broken
                                                : Verdict::of_another_format;
    return {verdict, failure == nullptr ? std::string() : failure->reason, file->info, std::move(file->file)};
}

std::string describe(const Result<bool>& moved_to_quarantine) {
    if (!moved_to_quarantine) return "left in place: " + moved_to_quarantine.status().message;
    return *moved_to_quarantine ? "quarantined" : "replaced meanwhile";
}

bool list_order(const ListedEntry& a, const ListedEntry& b) {
    return std::tie(a.key, b.version, a.layer) < std::tie(b.key, a.version, b.layer);
}

}  // namespace

Listing Store::list() const {
    Listing listing;
    for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
        if (Status judged = judge(layer); !judged.ok()) {
            if (judged.error_number == EPERM) {
                static_cast<void>(check_trust(layer));  // tells
            } else {
                listing.unreadable.push_back(std::move(judged));
            }
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
    statistics.quarantined =
        count_named(files_, root, layout::kQuarantineDirectory, layout::is_quarantine_name);
    statistics.staging = count_named(files_, root, layout::kStagingDirectory, layout::is_staging_name);

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
    Remover remover(files_);
    report.stale_staging_removed = remove_stale_staging_files(files_, options_.directory, remover);
    return report;
}

void Store::verify_layer(std::size_t layer, VerifyReport& report) const {
    if (const Status trusted = check_trust(layer); !trusted.ok()) {
        report.bad.push_back({layers_[layer]->path(), trusted.message, "left in place"});
        ++report.unusable;
        return;
    }
    const FoundEntries found = layers_[layer]->find_all();
    for (const Status& unreadable : found.unreadable) {
        report.bad.push_back({unreadable.path, unreadable.message, "left in place"});
        ++report.unusable;
    }
    for (const FoundEntry& entry : found.entries) verify_entry(entry, layer, report);
}

void Store::verify_entry(const FoundEntry& found, std::size_t layer, VerifyReport& report) const {
    const Examination seen = examine(*layers_[layer], found);
    if (seen.verdict == Verdict::gone) return;
    ++report.checked;
    if (seen.verdict == Verdict::sound) return;
    if (seen.verdict == Verdict::of_another_format) {
        ++report.skipped;
        return;
    }
    report.bad.push_back({found.path.full(), seen.reason, {}});
    std::string& action = report.bad.back().action;
    if (layer != kWritableLayer) {
        action = "left in place: a read-only layer";
    } else if (seen.verdict == Verdict::unreadable) {
        action = "left in place";
    } else {
        action =
            describe(quarantine({found.name.key, found.name.version, layer, found.path.full()}, seen.info));
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
        report.entries += remover.remove(entry.path, entry.info) ? 1 : 0;
    }
    report.quarantined = remove_quarantined(files_, root, 0, remover);
    report.staging = remove_stale_staging_files(files_, root, remover);
    report.bytes = remover.bytes();
    report.locks = remove_idle_lock_files(files_, root, FileTime::max(), remover);
    remove_counters(files_, root, remover);
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
    EvictionLimits limits{.lock_wait = options_.lock_wait};
    if (max_bytes) {
        limits.start_above = limits.stop_at = *max_bytes;
        limits.grace = {};
    } else if (options_.max_bytes > 0) {
        limits.start_above = limits.stop_at = options_.max_bytes;
    }
    return run_evictor(limits);
}

}  // namespace attnsmith::cache
