#include "cache/entries/directory_layer.hpp"

#include <algorithm>
#include <array>
#include <future>
#include <iterator>
#include <span>

namespace attnsmith::cache {
namespace {

// Not by find_entries(): what is only counted needs neither paths nor an order.
LayerSize measure_shards(FileSystem& files, const std::string& root, std::span<const std::string> shards) {
    LayerSize size;
    for (const std::string& shard : shards) {
        for (const NamedFile& file : list_and_note(files, {root, shard}, size.unreadable)) {
            if (file.info.kind != FileKind::regular || !layout::parse_entry_name(shard, file.name)) continue;
            ++size.entries;
            size.bytes += file.info.bytes;
            size.allocated_bytes += file.info.allocated_bytes;
        }
    }
    return size;
}

}  // namespace

std::string DirectoryLayer::path_of(const layout::EntryName& name) const {
    return Path{root_, layout::entry_path(name)}.full();
}

Result<std::vector<Version>> DirectoryLayer::versions_of(const Digest& key) const {
    std::vector<Version> versions;
    if (root_.empty()) return versions;
    const std::string shard = layout::shard_name(key);
    const Result<std::vector<std::string>> names = files_.list_names({root_, shard});
    if (!names) return names.status();
    for (const std::string& file_name : *names) {
        const auto name = layout::parse_entry_name(shard, file_name);
        if (name && name->key == key) versions.push_back(name->version);
    }
    return versions;
}

Result<EntryFile> DirectoryLayer::read(const layout::EntryName& name) const {
    return read_entry_file(files_, {root_, layout::entry_path(name)});
}

FoundEntries DirectoryLayer::find_all() const { return find_entries(files_, root_); }

LayerSize DirectoryLayer::measure() const {
    LayerSize size;
    if (root_.empty()) return size;
    Result<std::vector<std::string>> names = files_.list_names({root_, {}});
    if (!names) {
        note_unreadable(names.status(), size.unreadable);
        return size;
    }
    std::erase_if(*names, [](const std::string& name) { return !layout::is_shard_name(name); });

    // Nearly all of the time goes into the system's look at each file: half of it on another thread, where
    // there is one to be had.
    const std::span<const std::string> shards(*names);
    const std::size_t half = shards.size() / 2;
    auto others = std::async(std::launch::async | std::launch::deferred,
                             [&] { return measure_shards(files_, root_, shards.first(half)); });
    for (const LayerSize& part : {measure_shards(files_, root_, shards.subspan(half)), others.get()}) {
        size.entries += part.entries;
        size.bytes += part.bytes;
        size.allocated_bytes += part.allocated_bytes;
        std::ranges::copy(part.unreadable, std::back_inserter(size.unreadable));
    }
    return size;
}

Result<std::string> DirectoryLayer::read_metadata(const layout::EntryName& name) const {
    const Result<std::unique_ptr<File>> file = files_.open_for_reading({root_, layout::entry_path(name)});
    if (!file) return file.status();
    std::array<std::byte, kEntryHeaderBytes> header_bytes;
    const Result<std::size_t> header_size = read_fully(**file, header_bytes);
    if (!header_size) return header_size.status();
    if (*header_size != header_bytes.size()) return std::string();
    const auto header = decode_entry_header(header_bytes);
    const Result<FileInfo> info = (*file)->stat();
    // The header is not checked yet: its length is believed as far as the file goes.
    if (!info) return info.status();
    if (!header || header->metadata_bytes > info->bytes) return std::string();

    std::string metadata(header->metadata_bytes, '\0');
    const Result<std::size_t> size = read_fully(**file, std::as_writable_bytes(std::span(metadata)));
    if (!size) return size.status();
    return *size == metadata.size() ? metadata : std::string();
}

}  // namespace attnsmith::cache
