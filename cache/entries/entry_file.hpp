// Entries as files: reading one, and finding them all. Internal to cache/.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cache/entries/entry.hpp"
#include "cache/entries/layout.hpp"
#include "cache/files/file_system.hpp"
#include "cache/files/status.hpp"

namespace attnsmith::cache {

// What stands in an entry's place, unchecked.
struct EntryFile {
    std::unique_ptr<std::byte[]> bytes;
    std::size_t size = 0;  // 0 for a file over kMaxEntryBytes, which is not read
    FileInfo info;
    std::unique_ptr<File> file;  // open: as long as it is, no other file can get this inode
};

// Fails with EINVAL for what is not a regular file, ELOOP for a symbolic link.
Result<EntryFile> read_entry_file(FileSystem& files, const Path& path);

// Whether the bytes are the entry that the file's name says.
DecodeResult check_entry_file(const EntryFile& file, const layout::EntryName& name);

struct FoundEntry {
    layout::EntryName name;
    Path path;
    FileInfo info;  // of any kind, though regular is the only good one
};

struct FoundEntries {
    std::vector<FoundEntry> entries;  // by key, then the newest version first
    std::vector<Status> unreadable;   // directories
};

// Keeps a failure to read, if it is one: what is missing has no entries.
void note_unreadable(Status status, std::vector<Status>& unreadable);

// In the order of FoundEntries.
void sort_entries(std::vector<FoundEntry>& entries);

// Everything named as an entry is. A missing directory has none.
FoundEntries find_entries(FileSystem& files, const std::string& root);

// What every write says where no directory was given.
Status no_cache_directory();

// What the directory has, with an account of what could not be looked at. A missing one has nothing.
std::vector<NamedFile> list_and_note(FileSystem& files, const Path& path, std::vector<Status>& unreadable);

// For estimates: nothing where the directory is missing or cannot be read.
std::vector<NamedFile> list_files_if_any(FileSystem& files, const Path& path);

}  // namespace attnsmith::cache
