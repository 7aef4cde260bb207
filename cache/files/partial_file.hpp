// Files that are written next to the name that they will have, so that a kill leaves nothing under it, and
// what killed writers left of them. They lie in no cache. Internal to cache/.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cache/files/file_system.hpp"
#include "cache/files/staged_file.hpp"
#include "cache/files/status.hpp"

namespace attnsmith::cache {

// `<name>.<token>.partial`, with a token of its own.
std::string new_partial_name(std::string_view name);

// A new file under a partial name of the target. What killed writers left over an hour ago goes
// (remove_stale_partials). The mode is create_exclusively()'s.
Result<StagedFile> create_partial(FileSystem& files, const Path& target, std::optional<std::uint32_t> mode);

// What is an hour old or more was left by a writer that is dead; what is of the future, by a wrong clock.
bool is_stale_staging(FileTime modified, FileTime now);

// What has a partial name of anything in a directory and is stale at the time `now`. Empty where the
// directory cannot be read.
std::vector<NamedFile> stale_partials(FileSystem& files, const std::string& directory, FileTime now);

// Removes files that have partial names of the target and are stale at the time `now`. What cannot be removed
// stays for the next writer.
void remove_stale_partials(FileSystem& files, const Path& target, FileTime now);

}  // namespace attnsmith::cache
