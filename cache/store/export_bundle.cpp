// Store's export to a bundle.
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>

#include "cache/bundle/bundle.hpp"
#include "cache/bundle/picking.hpp"
#include "cache/bundle/signature.hpp"
#include "cache/bundle/tar.hpp"
#include "cache/bundle/tar_append.hpp"
#include "cache/entries/layer.hpp"
#include "cache/entries/layout.hpp"
#include "cache/files/named_file.hpp"
#include "cache/files/partial_file.hpp"
#include "cache/files/staged_file.hpp"
#include "cache/image/layout_directory.hpp"
#include "cache/signing/system_ed25519.hpp"
#include "cache/store/store.hpp"

namespace attnsmith::cache {
namespace {

// The entries of a bundle that is being written: read once, judged, and appended as they are picked, so that
// whatever others evict or clear meanwhile, the bundle holds what its manifest says.
struct Selection {
    std::vector<BundledEntry> picked;  // in the order of a bundle
    LeftOut left_out;
};

bool has_last(const Selection& selection, const ListedEntry& listed) {
    if (selection.picked.empty()) return false;
    const layout::EntryName& last = selection.picked.back().name;
    return last.key == listed.key && last.version == listed.version;
}

tar::Append to(StagedFile& staged) {
    return [&staged](std::span<const std::byte> bytes) { return staged.append(bytes); };
}

// Fails only where the bundle cannot be written.
Status pick_into(const Layer& layer, const ListedEntry& listed, const Options& options, StagedFile& staged,
                 Selection& selection) {
    const std::optional<JudgedEntry> judged = pick(layer, listed, options, selection.left_out);
    if (!judged) return Status::success();
    const layout::EntryName name{listed.key, listed.version};
    const std::span<const std::byte> bytes(judged->file.bytes.get(), judged->file.size);
    selection.picked.push_back(
        {.name = name, .bytes = bytes.size(), .offset = 0, .sha256 = sha256_of(bytes)});
    return tar::append_file(to(staged), layout::entry_path(name), bytes);
}

Status too_many(const Path& target, std::size_t entries) {
    return Status::recoverable_error(E2BIG, target.full(),
                                     fmt::format("{} entries are too many for a bundle", entries));
}

// What the manifest and its header take.
std::uint64_t head_bytes(const BundleHead& head) {
    return tar::kBlockBytes + tar::padded(head.manifest.size());
}

// How long the manifest will be, if all that is listed is still there as it is listed.
BundleHead expected_head(std::span<const ListedEntry> listed) {
    std::vector<BundledEntry> expected;
    for (const ListedEntry& entry : listed) {
        const layout::EntryName name{entry.key, entry.version};
        const bool again = !expected.empty() && !comes_first_in_bundle(expected.back().name, name);
        if (!again) expected.push_back({.name = name, .bytes = entry.bytes, .offset = 0, .sha256 = {}});
    }
    return place_entries(expected);
}

Status copy_part(FileSystem& files, const Path& from, std::uint64_t offset, std::uint64_t bytes,
                 StagedFile& target) {
    constexpr std::size_t kMostAtOnce = std::size_t{1} << 20;
    const Result<std::unique_ptr<File>> file = files.open_for_reading(from);
    if (!file) return file.status();
    std::vector<std::byte> buffer(static_cast<std::size_t>(std::min<std::uint64_t>(bytes, kMostAtOnce)));
    while (bytes > 0) {
        const auto wanted = static_cast<std::size_t>(std::min<std::uint64_t>(bytes, buffer.size()));
        const std::span<std::byte> part = std::span(buffer).first(wanted);
        const Result<std::size_t> size = read_fully_at(**file, offset, part);
        if (!size) return size.status();
        if (*size != part.size()) return Status::from_errno(EIO, "read back", from.full());
        if (Status status = target.append(part); !status.ok()) return status;
        offset += part.size();
        bytes -= part.size();
    }
    return Status::success();
}

Status check_replaceable(FileSystem& files, const Path& path, const std::string& file) {
    const Result<FileInfo> there = files.stat(path);
    if (!there || there->kind == FileKind::regular) return Status::success();
    return Status::recoverable_error(EEXIST, file, "there is something else than a file, left alone");
}

Path signature_of(const Path& bundle) { return {bundle.root, signature_path(bundle.relative)}; }

Status sign(const BundleHead& head, const SecretKey& key, std::string& signature, ExportReport& report) {
    const Result<const Ed25519*> opened = ed25519();
    if (!opened) return opened.status();
    Result<std::string> text =
        signature_text(**opened, key, sha256_of(std::as_bytes(std::span(head.manifest))));
    if (!text) return text.status();
    const Result<PublicKey> known = (*opened)->public_key_of(key);
    if (!known) return known.status();
    signature = std::move(text).value();
    report.signed_by = known->id();
    return Status::success();
}

Status write_signature(FileSystem& files, const Path& target, const std::string& text) {
    Result<StagedFile> staged = create_partial(files, target, std::nullopt);
    if (!staged) return staged.status();
    if (Status status = staged->append(std::as_bytes(std::span(text))); !status.ok()) return status;
    if (Status status = staged->finish(); !status.ok()) return status;
    return staged->move_to(target);
}

}  // namespace

Result<ExportReport> Store::export_bundle(const std::string& file, const Wanted& wanted,
                                          const std::stop_token& stop, const SecretKey* sign_with) const {
    const Result<Path> target = named_file(file);
    if (!target) return target.status();
    if (Status free = check_replaceable(files_, *target, file); !free.ok()) return free;
    if (sign_with != nullptr) {
        if (Status free = check_replaceable(files_, signature_of(*target), signature_path(file)); !free.ok())
            return free;
        if (const Result<const Ed25519*> opened = ed25519(); !opened) return opened.status();
    }
    Listing listing = list_for_export(wanted);
    Result<ExportReport> report = export_listed(*target, listing.entries, stop, sign_with);
    if (report) {
        report->file = file;
        if (!report->signed_by.empty()) report->signature_file = signature_path(file);
        report->unreadable = std::move(listing.unreadable);
    }
    return report;
}

Listing Store::list_for_export(const Wanted& wanted) const {
    Listing listing = list();
    std::erase_if(listing.entries, [&](const ListedEntry& entry) { return !wanted(entry); });
    sort_for_export(listing.entries);
    return listing;
}

Result<Entry> Store::read_for_export(const ListedEntry& listed) const {
    JudgedEntry judged =
        judge_entry(*layers_[listed.layer], {listed.key, listed.version}, options_, Depth::content);
    if (judged.verdict != Verdict::sound) return std::move(judged.status);
    return std::move(judged.entry);
}

Result<ExportReport> Store::export_listed(const Path& target, std::span<const ListedEntry> listed,
                                          const std::stop_token& stop, const SecretKey* sign_with) const {
    if (stop.stop_requested()) return export_stopped(target);
    if (listed.empty()) return ExportReport{};
    const BundleHead expected = expected_head(listed);
    if (expected.manifest.size() > Bundle::kMaxManifestBytes) return too_many(target, listed.size());

    Result<StagedFile> staged = create_partial(files_, target, std::nullopt);
    if (!staged) return staged.status();
    if (const Result<FileInfo> made = files_.stat(staged->path()))
        remove_abandoned_images(files_, target.root, made->modified);
    if (Status status = tar::append_zeros(to(*staged), head_bytes(expected)); !status.ok()) return status;
    Selection selection;
    for (const ListedEntry& entry : listed) {  // of equal ones the lowest layer's comes first
        if (stop.stop_requested()) return export_stopped(target);
        if (has_last(selection, entry)) continue;
        Status status = pick_into(*layers_[entry.layer], entry, options_, *staged, selection);
        if (!status.ok()) return status;
    }
    const BundleHead head = place_entries(selection.picked);
    if (head.manifest.size() > Bundle::kMaxManifestBytes) return too_many(target, selection.picked.size());

    ExportReport report{.file = {},
                        .keys = {},
                        .entries = selection.picked.size(),
                        .bytes = head.file_bytes,
                        .skipped = selection.left_out.skipped,
                        .bad = std::move(selection.left_out.bad),
                        .unreadable = {},
                        .signature_file = {},
                        .signed_by = {}};
    for (const BundledEntry& entry : selection.picked) report.keys.push_back(entry.name.key);
    if (selection.picked.empty()) return report;
    std::string signature;
    if (sign_with != nullptr) {
        if (Status status = sign(head, *sign_with, signature, report); !status.ok()) return status;
    }
    Status status = finish_bundle(std::move(staged).value(), head_bytes(expected), head, target, signature);
    if (!status.ok()) return status;
    return report;
}

// `staged` has the entries behind room for a head.
Status Store::finish_bundle(StagedFile staged, std::uint64_t room, const BundleHead& head, const Path& target,
                            const std::string& signature) const {
    const auto manifest = std::as_bytes(std::span(head.manifest));
    if (head_bytes(head) == room) {
        const tar::Block header = tar::encode_header(kManifestName, manifest.size());
        if (Status status = staged.overwrite(header, 0); !status.ok()) return status;
        if (Status status = staged.overwrite(manifest, header.size()); !status.ok()) return status;
        return end_bundle(staged, target, signature);
    }
    // Some entries went while they were exported, and the manifest is shorter.
    Result<StagedFile> again = create_partial(files_, target, std::nullopt);
    if (!again) return again.status();
    if (Status status = tar::append_file(to(*again), kManifestName, manifest); !status.ok()) return status;
    const std::uint64_t entries_bytes = head.file_bytes - head_bytes(head) - tar::kEndBytes;
    Status copied = copy_part(files_, staged.path(), room, entries_bytes, *again);
    return copied.ok() ? end_bundle(*again, target, signature) : copied;
}

Status Store::end_bundle(StagedFile& staged, const Path& target, const std::string& signature) const {
    if (Status status = tar::append_zeros(to(staged), tar::kEndBytes); !status.ok()) return status;
    if (Status status = staged.finish(); !status.ok()) return status;
    // Before the bundle: who waits for that finds it signed.
    if (!signature.empty()) {
        if (Status status = write_signature(files_, signature_of(target), signature); !status.ok())
            return status;
    }
    if (Status moved = staged.move_to(target); !moved.ok()) return moved;
    return files_.sync_directory({target.root, {}});
}

}  // namespace attnsmith::cache
