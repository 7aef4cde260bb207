#include "cache/entries/entry_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <tuple>
#include <utility>

namespace attnsmith::cache {
namespace {

bool comes_first(const FoundEntry& a, const FoundEntry& b) {
    return std::tie(a.name.key, b.name.version) < std::tie(b.name.key, a.name.version);
}

void find_entries_of_shard(FileSystem& files, const Path& shard, FoundEntries& found) {
    for (const NamedFile& file : list_and_note(files, shard, found.unreadable)) {
        const auto name = layout::parse_entry_name(shard.relative, file.name);
        if (!name) continue;
        found.entries.push_back(
            {*name, {shard.root, layout::in_directory(shard.relative, file.name)}, file.info});
    }
}

}  // namespace

Status no_cache_directory() { return Status::recoverable_error(ENOENT, {}, "no cache directory is set"); }

Result<EntryFile> read_entry_file(FileSystem& files, const Path& path) {
    Result<std::unique_ptr<File>> file = files.open_for_reading(path);
    if (!file) return file.status();
    const Result<FileInfo> info = (*file)->stat();
    if (!info) return info.status();
    if (info->kind != FileKind::regular) {
        return Status::recoverable_error(EINVAL, path.full(), "not a regular file");
    }
    EntryFile read{.bytes = nullptr, .size = 0, .info = *info, .file = std::move(file).value()};
    if (info->bytes > kMaxEntryBytes) return read;

    read.bytes.reset(new (std::nothrow) std::byte[info->bytes]);
    if (read.bytes == nullptr) return Status::from_errno(ENOMEM, "read", path.full());
    const Result<std::size_t> size = read_fully(*read.file, std::span(read.bytes.get(), info->bytes));
    if (!size) return size.status();
    read.size = *size;
    return read;
}

DecodeResult check_entry_file(const EntryFile& file, const layout::EntryName& name) {
    if (file.info.bytes > kMaxEntryBytes) {
        return DecodeFailure{DecodeFailureKind::corrupt,
                             fmt::format("{} bytes are too many", file.info.bytes)};
    }
    DecodeResult result = decode_entry(std::span(file.bytes.get(), file.size), name.key);
    const auto* decoded = std::get_if<DecodedEntry>(&result);
    if (decoded != nullptr && decoded->version != name.version) {
        return DecodeFailure{DecodeFailureKind::wrong_key,
                             fmt::format("it is of version {}", decoded->version.to_string())};
    }
    return result;
}

FoundEntries find_entries(FileSystem& files, const std::string& root) {
    FoundEntries found;
    if (root.empty()) return found;
    const Result<std::vector<std::string>> names = files.list_names({root, {}});
    if (!names) {
        note_unreadable(names.status(), found.unreadable);
        return found;
    }
    for (const std::string& name : *names) {
        if (layout::is_shard_name(name)) find_entries_of_shard(files, {root, name}, found);
    }
    sort_entries(found.entries);
    return found;
}

void note_unreadable(Status status, std::vector<Status>& unreadable) {
    if (!is_absence(status)) unreadable.push_back(std::move(status));
}

void sort_entries(std::vector<FoundEntry>& entries) {
    std::sort(entries.begin(), entries.end(), comes_first);
}

std::vector<NamedFile> list_files_if_any(FileSystem& files, const Path& path) {
    if (path.root.empty()) return {};
    Result<ListedFiles> listed = files.list_files(path);
    return listed ? std::move(listed->files) : std::vector<NamedFile>();
}

std::vector<NamedFile> list_and_note(FileSystem& files, const Path& path, std::vector<Status>& unreadable) {
    if (path.root.empty()) return {};
    Result<ListedFiles> listed = files.list_files(path);
    if (!listed) {
        note_unreadable(listed.status(), unreadable);
        return {};
    }
    if (!listed->unreadable.ok()) unreadable.push_back(std::move(listed->unreadable));
    return std::move(listed->files);
}

}  // namespace attnsmith::cache
