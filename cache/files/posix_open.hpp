// Opens what lies below a root directory, and follows no link on the way down. Internal to cache/.
#pragma once

#include <fcntl.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "cache/files/file_system.hpp"
#include "cache/files/posix_file.hpp"

namespace attnsmith::cache {

// A directory on the way to another, and one whose names are read.
inline constexpr int kDirectoryStep = O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
inline constexpr int kDirectoryToRead = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;

// Not "", "." or "..".
bool is_plain_name(std::string_view name);

// Links are followed here alone: the user chose this place.
Result<Descriptor> open_root(const Path& path, int flags);
// The directory `relative` below the path's root, with these flags at the last step.
Result<Descriptor> open_directory(const Path& path, std::string_view relative, int last_step);

// A name, and the directory that it is in.
struct Place {
    Descriptor directory;
    std::string name;
};

// REQUIRES: path.relative is not empty.
Result<Place> open_parent(const Path& path);
Result<Descriptor> open_file(const Path& path, int flags, std::uint32_t mode);
Result<Descriptor> open_directory_to_read(const Path& path);

}  // namespace attnsmith::cache
