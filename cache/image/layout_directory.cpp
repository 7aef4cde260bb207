#include "cache/image/layout_directory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <set>
#include <span>
#include <vector>

#include "cache/bundle/tar.hpp"
#include "cache/files/partial_file.hpp"

namespace attnsmith::cache {
namespace {

constexpr std::uint32_t kDirectoryMode = 0755;
constexpr std::string_view kUnnamedBlob = "blob.partial";
constexpr std::size_t kMostDocumentBytes = std::size_t{1} << 20;

Path below(const Path& directory, std::string_view name) {
    return {directory.root, fmt::format("{}/{}", directory.relative, name)};
}

Status foreign(const Path& target, std::string_view what) {
    return Status::recoverable_error(
        EEXIST, target.full(),
        fmt::format("{}, so it is left alone (name a new or an empty directory)", what));
}

Status foreign_name(const Path& target, std::string_view name) {
    return foreign(target, fmt::format("the directory holds {}, which is of no image that was exported to it",
                                       tar::quoted(name)));
}

// Nothing of a document that is longer than ours are.
Result<std::string> read_document(FileSystem& files, const Path& path) {
    const Result<std::unique_ptr<File>> file = files.open_for_reading(path);
    if (!file) return file.status();
    const Result<FileInfo> info = (*file)->stat();
    if (!info) return info.status();
    if (info->kind != FileKind::regular || info->bytes > kMostDocumentBytes) return std::string();
    std::string text(info->bytes, '\0');
    const Result<std::size_t> size = read_fully(**file, std::as_writable_bytes(std::span(text)));
    if (!size) return size.status();
    text.resize(*size);
    return text;
}

// That the directory holds files and directories of these names, and nothing else.
Status check_names(FileSystem& files, const Path& target, std::string_view directory,
                   const std::set<std::string, std::less<>>& expected, FileKind kind_of_all) {
    const Path path = directory.empty() ? target : below(target, directory);
    const Result<ListedFiles> listed = files.list_files(path);
    if (!listed) return listed.status();
    if (!listed->unreadable.ok()) return listed->unreadable;
    const auto shown = [&](std::string_view name) {
        return directory.empty() ? std::string(name) : fmt::format("{}/{}", directory, name);
    };
    for (const NamedFile& file : listed->files) {
        const FileKind kind = file.name == oci::kBlobsDirectory ? FileKind::directory : kind_of_all;
        if (!expected.contains(file.name) || file.info.kind != kind) {
            return foreign_name(target, shown(file.name));
        }
    }
    for (const std::string& name : expected) {
        const bool is_there =
            std::ranges::any_of(listed->files, [&](const NamedFile& file) { return file.name == name; });
        if (!is_there)
            return foreign(target, fmt::format("the directory is not empty and has no {}", shown(name)));
    }
    return Status::success();
}

// That every name and document is as an export leaves it. The layer is not read: its name is its digest.
Status check_image(FileSystem& files, const Path& target) {
    const std::set<std::string, std::less<>> names = {
        std::string(oci::kLayoutName), std::string(oci::kIndexName), std::string(oci::kBlobsDirectory)};
    if (Status status = check_names(files, target, {}, names, FileKind::regular); !status.ok()) return status;
    const Result<std::string> version = read_document(files, below(target, oci::kLayoutName));
    if (!version) return version.status();
    if (*version != oci::layout_document()) return foreign_name(target, oci::kLayoutName);
    const Result<std::string> index = read_document(files, below(target, oci::kIndexName));
    if (!index) return index.status();
    const auto manifest_digest = oci::manifest_in(*index);
    if (!manifest_digest) return foreign_name(target, oci::kIndexName);

    Status blobs = check_names(files, target, oci::kBlobsDirectory, {"sha256"}, FileKind::directory);
    if (!blobs.ok()) return blobs;
    const std::string manifest_path = oci::blob_path(*manifest_digest);
    const Result<std::string> manifest = read_document(files, below(target, manifest_path));
    if (is_absence(manifest.status())) {
        return foreign(target, fmt::format("its {} names a manifest that is not there", oci::kIndexName));
    }
    if (!manifest) return manifest.status();
    const auto named = oci::blobs_in(*manifest);
    if (!named) return foreign_name(target, manifest_path);
    return check_names(files, target, oci::kSha256Directory,
                       {manifest_digest->hex(), named->config.hex(), named->layer.hex()}, FileKind::regular);
}

bool is_removed(const Status& status) { return status.ok() || is_absence(status); }

// A layout, whole or not. Whatever is named as no export names it stays, and so do the directories above it.
Status remove_layout(FileSystem& files, const Path& layout) {
    const Path blobs = below(layout, oci::kSha256Directory);
    const Result<std::vector<std::string>> names = files.list_names(blobs);
    if (!names && !is_absence(names.status())) return names.status();
    std::vector<Path> known;
    for (const std::string& name : names ? *names : std::vector<std::string>()) {
        if (oci::is_blob_name(name) || name == kUnnamedBlob) known.push_back(below(blobs, name));
    }
    known.push_back(below(layout, oci::kIndexName));
    known.push_back(below(layout, oci::kLayoutName));
    Status first;
    const auto note = [&](Status status) {
        if (first.ok() && !is_removed(status)) first = std::move(status);
    };
    for (const Path& path : known) note(files.remove_file(path));
    note(files.remove_directory(blobs));
    note(files.remove_directory(below(layout, oci::kBlobsDirectory)));
    note(files.remove_directory(layout));
    return first;
}

// That the directory has names of an image alone, whole or not.
bool holds_image_alone(FileSystem& files, const Path& layout) {
    const auto all_names = [&](const Path& directory, auto is_ours) {
        const Result<std::vector<std::string>> names = files.list_names(directory);
        return names ? std::ranges::all_of(*names, is_ours) : is_absence(names.status());
    };
    return all_names(layout,
                     [](const std::string& name) {
                         return name == oci::kBlobsDirectory || name == oci::kIndexName ||
                                name == oci::kLayoutName;
                     }) &&
           all_names(below(layout, oci::kBlobsDirectory),
                     [](const std::string& name) { return name == "sha256"; }) &&
           all_names(below(layout, oci::kSha256Directory),
                     [](const std::string& name) { return oci::is_blob_name(name) || name == kUnnamedBlob; });
}

// A layout that a killed export left under its partial name, unless its blob was written to lately or it has
// a name that no export gives.
void remove_abandoned_layout(FileSystem& files, const Path& layout, FileTime now) {
    // The directory's own time tells when a file was made in it, and the blob's when it was last written to.
    const Result<FileInfo> blob = files.stat(below(below(layout, oci::kSha256Directory), kUnnamedBlob));
    if (blob && !is_stale_staging(blob->modified, now)) return;
    if (holds_image_alone(files, layout)) static_cast<void>(remove_layout(files, layout));
}

}  // namespace

Result<Occupant> find_occupant(FileSystem& files, const Path& target) {
    const Result<FileInfo> info = files.stat(target);
    if (is_absence(info.status())) return Occupant::nothing;
    if (!info) return info.status();
    if (info->kind != FileKind::directory) return foreign(target, "there is something else than a directory");
    const Result<std::vector<std::string>> names = files.list_names(target);
    if (!names) return names.status();
    if (names->empty()) return Occupant::empty_directory;
    if (Status status = check_image(files, target); !status.ok()) return status;
    return Occupant::image;
}

void remove_abandoned_images(FileSystem& files, const std::string& directory, FileTime now) {
    for (const NamedFile& partial : stale_partials(files, directory, now)) {
        if (partial.info.kind == FileKind::directory)
            remove_abandoned_layout(files, {directory, partial.name}, now);
    }
}

Result<StagedLayout> StagedLayout::create(FileSystem& files, const Path& target) {
    StagedLayout staged(files, target, new_partial_name(target.relative));
    const Path aside{target.root, staged.aside_};
    for (const Path& directory :
         {aside, staged.in_aside(oci::kBlobsDirectory), staged.in_aside(oci::kSha256Directory)}) {
        Status made = files.make_directory(directory, kDirectoryMode);
        if (!made.ok()) return made;
    }
    if (const Result<FileInfo> made = files.stat(aside)) {
        remove_stale_partials(files, target, made->modified);
        remove_abandoned_images(files, target.root, made->modified);
    }
    return staged;
}

StagedLayout::~StagedLayout() {
    if (files_ == nullptr) return;
    // What cannot be removed, for want of memory even, goes with an export an hour later.
    try {
        static_cast<void>(remove_layout(*files_, {target_.root, aside_}));
    } catch (...) {
    }
}

Path StagedLayout::in_aside(std::string_view name) const { return below({target_.root, aside_}, name); }

Result<StagedFile> StagedLayout::create_blob() const {
    Path path = below(in_aside(oci::kSha256Directory), kUnnamedBlob);
    Result<std::unique_ptr<File>> created = files_->create_exclusively(path, std::nullopt);
    if (!created) return created.status();
    return StagedFile(*files_, std::move(path), std::move(created).value());
}

Status StagedLayout::name_blob(StagedFile staged, const Sha256Digest& sha256) const {
    if (Status status = staged.finish(); !status.ok()) return status;
    return staged.move_to(in_aside(oci::blob_path(sha256)));
}

Result<oci::Blob> StagedLayout::write_blob(std::string_view text) const {
    const oci::Blob blob = oci::blob_of(text);
    Status written = write(oci::blob_path(blob.sha256), text);
    if (!written.ok()) return written;
    return blob;
}

Status StagedLayout::write(std::string_view name, std::string_view text) const {
    Path path = in_aside(name);
    Result<std::unique_ptr<File>> created = files_->create_exclusively(path, std::nullopt);
    if (!created) return created.status();
    if (Status status = write_fully(**created, std::as_bytes(std::span(text))); !status.ok()) {
        status.path = path.full();
        return status;
    }
    if (Status status = (*created)->sync(); !status.ok()) return status;
    return (*created)->close();
}

Status StagedLayout::sync() const {
    for (const Path& directory :
         {in_aside(oci::kSha256Directory), in_aside(oci::kBlobsDirectory), Path{target_.root, aside_}}) {
        if (Status status = files_->sync_directory(directory); !status.ok()) return status;
    }
    return Status::success();
}

Status StagedLayout::move_to_target() {
    if (Status status = sync(); !status.ok()) return status;
    // Looked at again: the image was long in the making.
    const Result<Occupant> occupant = find_occupant(*files_, target_);
    if (!occupant) return occupant.status();
    if (*occupant == Occupant::image) return replace_image();
    Status moved = files_->rename({target_.root, aside_}, target_);
    if (moved.error_number == EBUSY) {
        moved.message = "it cannot be replaced, as mount points cannot be (name a new directory in it)";
    }
    if (!moved.ok()) return moved;
    return std::exchange(files_, nullptr)->sync_directory({target_.root, {}});
}

Status StagedLayout::replace_image() {
    const Path aside{target_.root, aside_};
    Path old = aside;
    Status moved = files_->exchange(aside, target_);
    if (moved.error_number == EINVAL || moved.error_number == ENOSYS) {
        old.relative = new_partial_name(target_.relative);
        moved = replace_by_two_renames(old);
    }
    if (!moved.ok()) return moved;
    FileSystem& files = *std::exchange(files_, nullptr);
    if (Status status = files.sync_directory({target_.root, {}}); !status.ok()) return status;
    Status removed = remove_layout(files, old);
    if (removed.ok()) return removed;
    return Status::recoverable_error(
        removed.error_number, old.full(),
        fmt::format("the new image is in its place, but the old one was not removed: {}", removed.message));
}

Status StagedLayout::replace_by_two_renames(const Path& old) {
    if (Status status = files_->rename(target_, old); !status.ok()) return status;
    Status moved = files_->rename({target_.root, aside_}, target_);
    if (!moved.ok()) static_cast<void>(files_->rename(old, target_));
    return moved;
}

}  // namespace attnsmith::cache
