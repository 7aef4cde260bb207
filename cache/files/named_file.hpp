// Files that a user names, which lie in no cache. Internal to cache/.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "cache/files/file_system.hpp"
#include "cache/files/status.hpp"

namespace attnsmith::cache {

// What the user named, as a name in its directory. EISDIR, and `refusal`, for what cannot be a name.
Result<Path> named_file(const std::string& file, std::string_view refusal = "not the name of a file");

// All bytes of a regular file of at most `most` bytes, in place of what `text` had. Its memory is taken once,
// before the first of them, so that no copy of a secret is left behind. Links are followed, and what is no
// regular file is not waited for: EINVAL, as for one that is longer. `info` is of the open file.
Status read_named_file(FileSystem& files, const std::string& file, std::size_t most, std::string& text,
                       FileInfo* info = nullptr);

}  // namespace attnsmith::cache
