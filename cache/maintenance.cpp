// What people ask of a whole cache: Store's list, stat, verify and clear.

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <tuple>

#include "cache/entry_file.hpp"
#include "cache/layer.hpp"
#include "cache/layout.hpp"
#include "cache/store.hpp"

namespace attnsmith::cache {
namespace {

// Far above any publish: whoever made it is dead.
constexpr auto kStagingIsStaleAfter = std::chrono::hours(1);

Path path_in(const std::string& root, std::string_view directory, const std::string& name) {
    return {root, layout::in_directory(directory, name)};
}

std::uint64_t count_named(FileSystem& files, const std::string& root, std::string_view directory,
                          bool (*is_ours)(std::string_view)) {
    const std::vector<NamedFile> found = list_files_if_any(files, {root, std::string(directory)});
    return static_cast<std::uint64_t>(
        std::count_if(found.begin(), found.end(), [&](const NamedFile& file) { return is_ours(file.name); }));
}

LayerStatistics measure_layer(const Layer& layer) {
    LayerStatistics statistics{.directory = layer.path()};
    for (const FoundEntry& found : layer.find_all().entries) {
        if (found.info.kind != FileKind::regular) continue;
        ++statistics.entries;
        statistics.bytes += found.info.bytes;
    }
    return statistics;
}

enum class Verdict { sound, of_another_format, gone, unreadable, broken };

struct Examination {
    Verdict verdict;
    std::string reason;
    FileInfo info;  // of the file that was read
};

Examination examine(const Layer& layer, const FoundEntry& found) {
    if (found.info.kind != FileKind::regular) return {Verdict::broken, "not a regular file", found.info};
    const Result<EntryFile> file = layer.read(found.name);
    if (!file) {
        // Gone: evicted or cleared since it was listed.
        const bool gone = file.status().error_number == ENOENT;
        return {gone ? Verdict::gone : Verdict::unreadable, file.status().message, found.info};
    }
    const DecodeResult result = check_entry_file(*file, found.name);
    const auto* failure = std::get_if<DecodeFailure>(&result);
    if (failure == nullptr) return {Verdict::sound, {}, file->info};
    return {failure->broken() ? Verdict::broken : Verdict::of_another_format, failure->reason, file->info};
}

std::string describe(const Result<bool>& moved_to_quarantine) {
    if (!moved_to_quarantine) return "left in place: " + moved_to_quarantine.status().message;
    return *moved_to_quarantine ? "quarantined" : "replaced meanwhile";
}

bool list_order(const ListedEntry& a, const ListedEntry& b) {
    return std::tie(a.key, b.version, a.layer) < std::tie(b.key, a.version, b.layer);
}

// Removes files and keeps the account.
class Remover {
  public:
    Remover(FileSystem& files, ClearReport& report) : files_(files), report_(report) {}

    // Gone already is as good, but not counted.
    bool remove(const Path& path, std::uint64_t bytes) {
        Status status = files_.remove_file(path);
        if (status.ok()) {
            report_.bytes += bytes;
            return true;
        }
        if (status.error_number != ENOENT) note_failure(std::move(status));
        return false;
    }

    void note_failure(Status status) {
        if (report_.status.ok()) report_.status = std::move(status);
    }

  private:
    FileSystem& files_;
    ClearReport& report_;
};

std::uint64_t remove_stale_staging_files(FileSystem& files, const std::string& root, Remover& remover) {
    const FileTime oldest_live = std::chrono::system_clock::now() - kStagingIsStaleAfter;
    std::uint64_t removed = 0;
    for (const NamedFile& file : list_files_if_any(files, {root, std::string(layout::kStagingDirectory)})) {
        if (!layout::is_staging_name(file.name) || file.info.modified >= oldest_live) continue;
        removed +=
            remover.remove(path_in(root, layout::kStagingDirectory, file.name), file.info.bytes) ? 1 : 0;
    }
    return removed;
}

std::uint64_t remove_quarantined(FileSystem& files, const std::string& root, Remover& remover) {
    std::uint64_t removed = 0;
    for (const NamedFile& file :
         list_files_if_any(files, {root, std::string(layout::kQuarantineDirectory)})) {
        if (!layout::is_quarantine_name(file.name)) continue;
        removed +=
            remover.remove(path_in(root, layout::kQuarantineDirectory, file.name), file.info.bytes) ? 1 : 0;
    }
    return removed;
}

// A lock file is removed under its own lock, so that nobody holds it and whoever gets it next sees that it is
// gone.
std::uint64_t remove_idle_lock_files(FileSystem& files, const std::string& root, Remover& remover) {
    std::uint64_t removed = 0;
    for (const NamedFile& file : list_files_if_any(files, {root, std::string(layout::kLocksDirectory)})) {
        if (!layout::is_lock_name(file.name)) continue;
        const Path path = path_in(root, layout::kLocksDirectory, file.name);
        const Lock lock = acquire_lock(files, path, file.info.mode, std::chrono::nanoseconds::zero());
        if (lock.held() && remover.remove(path, file.info.bytes)) ++removed;
    }
    return removed;
}

}  // namespace

std::vector<ListedEntry> Store::list() const {
    std::vector<ListedEntry> listed;
    for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
        for (const FoundEntry& found : layers_[layer]->find_all().entries) {
            if (found.info.kind != FileKind::regular) continue;
            listed.push_back({found.name.key, found.name.version, found.info.bytes, found.info.modified,
                              layer, found.path.full(), layers_[layer]->read_metadata(found.name)});
        }
    }
    std::sort(listed.begin(), listed.end(), list_order);
    return listed;
}

Statistics Store::stat() const {
    const std::string& root = options_.directory;
    const LayerStatistics own = measure_layer(*layers_[kWritableLayer]);
    Statistics statistics;
    statistics.directory = root;
    statistics.entries = own.entries;
    statistics.bytes = own.bytes;
    statistics.quarantined =
        count_named(files_, root, layout::kQuarantineDirectory, layout::is_quarantine_name);
    statistics.staging = count_named(files_, root, layout::kStagingDirectory, layout::is_staging_name);

    const Status writable = root.empty() ? no_cache_directory() : files_.check_writable({root, {}});
    statistics.writable = writable.ok();
    if (!writable.ok()) statistics.not_writable_because = writable.to_string();

    for (std::size_t layer = kWritableLayer + 1; layer < layers_.size(); ++layer) {
        statistics.layers.push_back(measure_layer(*layers_[layer]));
    }
    return statistics;
}

VerifyReport Store::verify() const {
    VerifyReport report;
    for (std::size_t layer = 0; layer < layers_.size(); ++layer) verify_layer(layer, report);
    ClearReport unused;
    Remover remover(files_, unused);
    report.stale_staging_removed = remove_stale_staging_files(files_, options_.directory, remover);
    return report;
}

void Store::verify_layer(std::size_t layer, VerifyReport& report) const {
    const FoundEntries found = layers_[layer]->find_all();
    for (const Status& unreadable : found.unreadable) {
        report.bad.push_back({unreadable.path, unreadable.message, "left in place"});
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
    Remover remover(files_, report);
    const FoundEntries found = find_entries(files_, root);
    for (const Status& unreadable : found.unreadable) remover.note_failure(unreadable);
    for (const FoundEntry& entry : found.entries) {
        report.entries += remover.remove(entry.path, entry.info.bytes) ? 1 : 0;
    }
    report.quarantined = remove_quarantined(files_, root, remover);
    report.staging = remove_stale_staging_files(files_, root, remover);
    report.locks = remove_idle_lock_files(files_, root, remover);
    return report;
}

}  // namespace attnsmith::cache
