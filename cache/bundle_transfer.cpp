// Store's export to a bundle and import of one.
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>

#include "cache/bundle.hpp"
#include "cache/judged_entry.hpp"
#include "cache/layer.hpp"
#include "cache/layout.hpp"
#include "cache/leftovers.hpp"
#include "cache/staged_file.hpp"
#include "cache/store.hpp"
#include "cache/tar.hpp"

namespace attnsmith::cache {
namespace {

// An entry to be exported, and the layer that has it.
struct Picked {
    BundledEntry entry;
    const Layer* layer = nullptr;
};

struct Selection {
    std::vector<Picked> picked;  // in the order of a bundle
    std::uint64_t skipped = 0;
    std::vector<BadEntry> bad;
};

bool has_last(const Selection& selection, const ListedEntry& listed) {
    if (selection.picked.empty()) return false;
    const layout::EntryName& last = selection.picked.back().entry.name;
    return last.key == listed.key && last.version == listed.version;
}

void pick(const Layer& layer, const ListedEntry& listed, Trust trust, Selection& selection) {
    const layout::EntryName name{listed.key, listed.version};
    const JudgedEntry judged = judge_entry(layer, name, trust);
    switch (judged.verdict) {
        case Verdict::sound:
            break;
        case Verdict::gone:
            return;
        case Verdict::of_another_format:
            ++selection.skipped;
            return;
        case Verdict::unreadable:
        case Verdict::untrusted:
        case Verdict::broken:
            selection.bad.push_back({listed.path, judged.status.message, "left out"});
            return;
    }
    const EntryFile& file = judged.file;
    const std::span<const std::byte> bytes(file.bytes.get(), file.size);
    selection.picked.push_back(
        {{.name = name, .bytes = file.size, .offset = 0, .sha256 = sha256_of(bytes)}, &layer});
}

Status stopped(const Path& target) { return Status::from_errno(ECANCELED, "go on exporting", target.full()); }

Status write_file(StagedFile& staged, std::string_view name, std::span<const std::byte> content) {
    const tar::Block zeros{};
    const tar::Block header = tar::encode_header(name, content.size());
    if (Status status = staged.append(header); !status.ok()) return status;
    if (Status status = staged.append(content); !status.ok()) return status;
    return staged.append(std::span(zeros).first(tar::padded(content.size()) - content.size()));
}

// ESTALE: an entry is not any more what it was when it was picked.
Status write_bundle(StagedFile& staged, const std::vector<Picked>& picked, const std::string& manifest,
                    const Path& target, const std::stop_token& stop) {
    if (Status status = write_file(staged, kManifestName, std::as_bytes(std::span(manifest))); !status.ok()) {
        return status;
    }
    for (const Picked& one : picked) {
        if (stop.stop_requested()) return stopped(target);
        const Result<EntryFile> file = one.layer->read(one.entry.name);
        const auto bytes =
            file ? std::span<const std::byte>(file->bytes.get(), file->size) : std::span<const std::byte>();
        if (!file || sha256_of(bytes) != one.entry.sha256) {
            return Status::from_errno(ESTALE, "export the entry", one.layer->path_of(one.entry.name));
        }
        if (Status status = write_file(staged, layout::entry_path(one.entry.name), bytes); !status.ok()) {
            return status;
        }
    }
    const tar::Block zeros{};
    for (std::size_t written = 0; written < tar::kEndBytes; written += zeros.size()) {
        if (Status status = staged.append(zeros); !status.ok()) return status;
    }
    return staged.finish();
}

// What killed exports of that name left. The time is that of a file just made beside them.
void remove_stale_partials(FileSystem& files, const Path& target, File& made) {
    const Result<FileInfo> now = made.stat();
    const Result<std::vector<std::string>> names = files.list_names({target.root, {}});
    if (!now || !names) return;
    for (const std::string& name : *names) {
        if (!layout::is_partial_name(name, target.relative)) continue;
        const Path path{target.root, name};
        const Result<FileInfo> found = files.stat(path);
        if (found && is_stale_staging(found->modified, now->modified))
            static_cast<void>(files.remove_file(path));
    }
}

// A file that the user named, as a name in its directory.
Result<Path> split_path(const std::string& file) {
    const std::size_t slash = file.rfind('/');
    Path path = slash == file.npos ? Path{".", file} : Path{file.substr(0, slash), file.substr(slash + 1)};
    if (path.root.empty()) path.root = "/";
    if (path.relative.empty() || path.relative == "." || path.relative == "..") {
        return Status::recoverable_error(EISDIR, file, "not the name of a file");
    }
    return path;
}

}  // namespace

Result<ExportReport> Store::export_bundle(const std::string& file, const Wanted& wanted,
                                          const std::stop_token& stop) const {
    const Result<Path> target = split_path(file);
    if (!target) return target.status();
    const Result<FileInfo> there = files_.stat(*target);
    if (there && there->kind != FileKind::regular) {
        return Status::recoverable_error(EEXIST, file, "there is something else than a file, left alone");
    }
    constexpr int kAttempts = 4;  // against others who evict or clear meanwhile
    Result<ExportReport> report = export_once(*target, wanted, stop);
    for (int attempt = 1; attempt < kAttempts && report.status().error_number == ESTALE; ++attempt) {
        report = export_once(*target, wanted, stop);
    }
    if (report) report->file = file;
    return report;
}

Result<ExportReport> Store::export_once(const Path& target, const Wanted& wanted,
                                        const std::stop_token& stop) const {
    Listing listing = list();
    std::ranges::stable_sort(listing.entries, [](const ListedEntry& a, const ListedEntry& b) {
        return comes_first_in_bundle({a.key, a.version}, {b.key, b.version});
    });
    Selection selection;
    for (const ListedEntry& entry : listing.entries) {  // of equal ones the lowest layer's comes first
        if (stop.stop_requested()) return stopped(target);
        if (has_last(selection, entry) || !wanted(entry)) continue;
        pick(*layers_[entry.layer], entry, options_.trust, selection);
    }
    std::vector<BundledEntry> entries;
    for (const Picked& one : selection.picked) entries.push_back(one.entry);
    const BundleHead head = place_entries(entries);
    if (head.manifest.size() > Bundle::kMaxManifestBytes) {
        return Status::recoverable_error(E2BIG, target.full(),
                                         fmt::format("{} entries are too many for a bundle", entries.size()));
    }
    ExportReport report{.file = {},
                        .keys = {},
                        .entries = entries.size(),
                        .bytes = head.file_bytes,
                        .skipped = selection.skipped,
                        .bad = std::move(selection.bad),
                        .unreadable = std::move(listing.unreadable)};
    for (const BundledEntry& entry : entries) report.keys.push_back(entry.name.key);
    if (entries.empty()) return report;

    // Beside the target, so that a kill leaves nothing under its name.
    Path aside{target.root, layout::partial_name(target.relative, layout::unique_token())};
    Result<std::unique_ptr<File>> created = files_.create_exclusively(aside, std::nullopt);
    if (!created) return created.status();
    remove_stale_partials(files_, target, **created);
    StagedFile staged(files_, std::move(aside), std::move(created).value());
    if (Status written = write_bundle(staged, selection.picked, head.manifest, target, stop); !written.ok())
        return written;
    if (Status moved = staged.move_to(target); !moved.ok()) return moved;
    if (Status synced = files_.sync_directory({target.root, {}}); !synced.ok()) return synced;
    return report;
}

Result<ImportReport> Store::import_bundle(const std::string& file) const {
    if (options_.directory.empty()) return no_cache_directory();
    if (Status trusted = judge(kWritableLayer); !trusted.ok()) return trusted;  // the caller tells
    const Result<Bundle> bundle = Bundle::open(files_, file);
    if (!bundle) return bundle.status();
    if (Status verified = bundle->verify(); !verified.ok()) return verified;

    ImportReport report{.file = file, .entries = bundle->entries().size()};
    for (const BundledEntry& entry : bundle->entries()) {
        // What is there and would not be used is no entry: it is replaced.
        if (judge_entry(*layers_[kWritableLayer], entry.name, options_.trust).verdict == Verdict::sound) {
            ++report.present;
            continue;
        }
        // Once more: the file may have changed since.
        const Result<EntryFile> read = bundle->read_checked(entry);
        Status published = read.status();
        if (read) {
            const std::span<const std::byte> bytes(read->bytes.get(), read->size);
            published = publish_bytes(entry.name.key, entry.name.version, bytes);
        }
        if (!published.ok()) {
            published.message = fmt::format("{} (after {} of {} entries)", published.message,
                                            report.present + report.published, report.entries);
            return published;
        }
        note_published(entry.name.key, entry.bytes);
        ++report.published;
        report.bytes += entry.bytes;
    }
    return report;
}

}  // namespace attnsmith::cache
