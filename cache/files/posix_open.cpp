#include "cache/files/posix_open.hpp"

#include <algorithm>
#include <cerrno>
#include <utility>

namespace attnsmith::cache {
namespace {

Result<Descriptor> open_at(const Descriptor& directory, std::string_view name, int flags, mode_t mode,
                           const Path& path) {
    if (!is_plain_name(name)) return Status::from_errno(EINVAL, "use the name", path.full());
    const std::string name_text(name);
    const int descriptor =
        retry_interrupted([&] { return ::openat(directory.get(), name_text.c_str(), flags, mode); });
    if (descriptor < 0) return Status::from_errno(errno, flags & O_CREAT ? "create" : "open", path.full());
    return Descriptor(descriptor);
}

}  // namespace

bool is_plain_name(std::string_view name) { return !name.empty() && name != "." && name != ".."; }

Result<Descriptor> open_root(const Path& path, int flags) {
    const int descriptor = retry_interrupted([&] { return ::open(path.root.c_str(), flags & ~O_NOFOLLOW); });
    if (descriptor < 0) {
        return Status::from_errno(errno, flags & O_DIRECTORY ? "open the directory" : "open", path.root);
    }
    return Descriptor(descriptor);
}

// Goes down step by step, since O_NOFOLLOW speaks of a path's last name only.
Result<Descriptor> open_directory(const Path& path, std::string_view relative, int last_step) {
    Result<Descriptor> directory = open_root(path, relative.empty() ? last_step : kDirectoryStep);
    while (directory.ok() && !relative.empty()) {
        const std::size_t end = std::min(relative.find('/'), relative.size());
        const std::string_view name = relative.substr(0, end);
        relative.remove_prefix(std::min(end + 1, relative.size()));
        directory = open_at(*directory, name, relative.empty() ? last_step : kDirectoryStep, 0, path);
    }
    return directory;
}

Result<Place> open_parent(const Path& path) {
    const std::size_t slash = path.relative.rfind('/');
    const bool in_root = slash == std::string::npos;
    const std::string_view parent =
        in_root ? std::string_view() : std::string_view(path.relative).substr(0, slash);
    Result<Descriptor> directory = open_directory(path, parent, kDirectoryStep);
    if (!directory) return directory.status();
    std::string name = in_root ? path.relative : path.relative.substr(slash + 1);
    if (!is_plain_name(name)) return Status::from_errno(EINVAL, "use the name", path.full());
    return Place{std::move(*directory), std::move(name)};
}

Result<Descriptor> open_file(const Path& path, int flags, std::uint32_t mode) {
    Result<Place> place = open_parent(path);
    if (!place) return place.status();
    return open_at(place->directory, place->name, flags | O_NOFOLLOW | O_CLOEXEC, static_cast<mode_t>(mode),
                   path);
}

Result<Descriptor> open_directory_to_read(const Path& path) {
    return open_directory(path, path.relative, kDirectoryToRead);
}

}  // namespace attnsmith::cache
