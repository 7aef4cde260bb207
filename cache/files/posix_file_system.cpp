// FileSystem by POSIX calls.
#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include "cache/files/file_system.hpp"
#include "cache/files/never_destroyed.hpp"
#include "cache/files/posix_file.hpp"
#include "cache/files/posix_open.hpp"

namespace attnsmith::cache {
namespace {

// Takes back what the umask took away. Only the owner may; for others it is as it is.
void set_exact_mode(const Descriptor& made, std::uint32_t mode) {
    struct ::stat found;
    if (::fstat(made.get(), &found) != 0 || found.st_uid != ::geteuid()) return;
    const mode_t wanted = static_cast<mode_t>(mode) | (found.st_mode & S_ISGID);
    if ((found.st_mode & 07777) != wanted) static_cast<void>(::fchmod(made.get(), wanted));
}

class DirectoryStream {
  public:
    explicit DirectoryStream(Descriptor descriptor) : stream_(::fdopendir(descriptor.get())) {
        if (stream_ != nullptr) descriptor.disown();
    }
    DirectoryStream(const DirectoryStream&) = delete;
    DirectoryStream& operator=(const DirectoryStream&) = delete;
    ~DirectoryStream() {
        if (stream_ != nullptr) ::closedir(stream_);
    }

    bool is_open() const { return stream_ != nullptr; }
    int descriptor() const { return ::dirfd(stream_); }

    // Null at the end, with errno 0, and on failure.
    const char* next_name() {
        for (;;) {
            errno = 0;
            const dirent* found = ::readdir(stream_);
            if (found == nullptr) return nullptr;
            if (is_plain_name(found->d_name)) return found->d_name;
        }
    }

  private:
    DIR* stream_;
};

// Calls visit(stream's descriptor, name) for each name.
template <class Visit>
Status for_each_name(const Path& path, Visit visit) {
    Result<Descriptor> descriptor = open_directory_to_read(path);
    if (!descriptor) return descriptor.status();
    DirectoryStream stream(std::move(*descriptor));
    if (!stream.is_open()) return Status::from_errno(errno, "list", path.full());
    while (const char* name = stream.next_name()) visit(stream.descriptor(), name);
    return errno == 0 ? Status::success() : Status::from_errno(errno, "list", path.full());
}

// Best effort: a parent that we may write to need not be one that we may read.
void sync_parent(const std::filesystem::path& path) {
    const std::string parent = path.has_parent_path() ? path.parent_path().string() : ".";
    const Descriptor descriptor(
        retry_interrupted([&] { return ::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
    if (descriptor.is_open()) retry_interrupted([&] { return ::fsync(descriptor.get()); });
}

int make_one_directory(const std::filesystem::path& path, mode_t mode) {
    if (retry_interrupted([&] { return ::mkdir(path.c_str(), mode); }) != 0) return errno;
    sync_parent(path);
    return 0;
}

int make_directory_with_parents(const std::filesystem::path& path, mode_t mode) {
    const int at_once = make_one_directory(path, mode);
    if (at_once != ENOENT || !path.has_parent_path() || path.parent_path() == path) return at_once;
    const int error_number = make_directory_with_parents(path.parent_path(), mode);
    if (error_number != 0 && error_number != EEXIST) return error_number;
    return make_one_directory(path, mode);
}

bool is_directory(const std::string& path) {
    struct ::stat found;
    return ::stat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode);
}

// 0 where something can be made in the directory, else why not: permissions alone do not tell, since root has
// all of them and /proc takes nothing from anybody.
int try_to_make(const std::string& directory) {
    if (::faccessat(AT_FDCWD, directory.c_str(), W_OK | X_OK, AT_EACCESS) != 0) return errno;
    // A file without a name, where the file system has such.
    const Descriptor unnamed(
        retry_interrupted([&] { return ::open(directory.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600); }));
    if (unnamed.is_open()) return 0;
    if (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL && errno != ENOENT) return errno;
    std::string name = directory + "/.attnsmith-XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) return errno;
    return ::rmdir(name.c_str()) == 0 ? 0 : errno;
}

bool is_working_directory_gone() {
    std::error_code error;
    (void)std::filesystem::current_path(error);
    return error == std::errc::no_such_file_or_directory;
}

// For kernels, C libraries and file systems without renameat2.
int link_and_unlink(int from_directory, const char* from, int to_directory, const char* to) {
    if (::linkat(from_directory, from, to_directory, to, 0) != 0) return -1;
    return ::unlinkat(from_directory, from, 0);
}

class PosixFileSystem final : public FileSystem {
  public:
    Result<std::unique_ptr<File>> open_for_reading(const Path& path) override {
        // O_NONBLOCK: a FIFO put in an entry's place must not block us; regular files do not mind.
        constexpr int kFlags = O_RDONLY | O_NONBLOCK;
        Result<Descriptor> descriptor =
            path.relative.empty() ? open_root(path, kFlags | O_CLOEXEC) : open_file(path, kFlags, 0);
        if (!descriptor) return descriptor.status();
        return make_posix_file(std::move(*descriptor), path.full());
    }

    Result<std::unique_ptr<File>> create_exclusively(const Path& path,
                                                     std::optional<std::uint32_t> mode) override {
        Result<Descriptor> descriptor =
            open_file(path, O_WRONLY | O_CREAT | O_EXCL, mode.value_or(kFileBits));
        if (!descriptor) return descriptor.status();
        if (mode) set_exact_mode(*descriptor, *mode);
        return make_posix_file(std::move(*descriptor), path.full());
    }

    Result<std::unique_ptr<File>> open_lock_file(const Path& path, std::uint32_t mode) override {
        // Open for writing, since NFS makes of flock a write lock of fcntl's.
        return open_posix_lock_file(path.full(), [&] {
            Result<Descriptor> descriptor = open_file(path, O_RDWR | O_CREAT | O_NONBLOCK, mode);
            if (descriptor.ok()) set_exact_mode(*descriptor, mode);
            return descriptor;
        });
    }

    Status rename(const Path& from, const Path& to) override {
        Result<Place> old_place = open_parent(from);
        if (!old_place) return old_place.status();
        Result<Place> new_place = open_parent(to);
        if (!new_place) return new_place.status();
        const int result = retry_interrupted([&] {
            return ::renameat(old_place->directory.get(), old_place->name.c_str(), new_place->directory.get(),
                              new_place->name.c_str());
        });
        return result == 0 ? Status::success() : Status::from_errno(errno, "rename to", to.full());
    }

    Status rename_if_free(const Path& from, const Path& to) override {
        Result<Place> old_place = open_parent(from);
        if (!old_place) return old_place.status();
        Result<Place> new_place = open_parent(to);
        if (!new_place) return new_place.status();
        const int old_directory = old_place->directory.get();
        const int new_directory = new_place->directory.get();
        const char* const old_name = old_place->name.c_str();
        const char* const new_name = new_place->name.c_str();
        int result = retry_interrupted(
            [&] { return ::renameat2(old_directory, old_name, new_directory, new_name, RENAME_NOREPLACE); });
        if (result != 0 && (errno == EINVAL || errno == ENOSYS)) {
            result = link_and_unlink(old_directory, old_name, new_directory, new_name);
        }
        return result == 0 ? Status::success() : Status::from_errno(errno, "rename to", to.full());
    }

    Status exchange(const Path& one, const Path& other) override {
        Result<Place> place = open_parent(one);
        if (!place) return place.status();
        Result<Place> other_place = open_parent(other);
        if (!other_place) return other_place.status();
        const int result = retry_interrupted([&] {
            return ::renameat2(place->directory.get(), place->name.c_str(), other_place->directory.get(),
                               other_place->name.c_str(), RENAME_EXCHANGE);
        });
        return result == 0 ? Status::success() : Status::from_errno(errno, "exchange with", other.full());
    }

    Status remove_file(const Path& path) override { return unlink(path, 0); }

    Status remove_directory(const Path& path) override { return unlink(path, AT_REMOVEDIR); }

    Status make_directory(const Path& path, std::uint32_t mode) override {
        const int error_number = path.relative.empty() ? make_root(path, mode) : make_below_root(path, mode);
        if (error_number != 0 && error_number != EEXIST) {
            return Status::from_errno(error_number, "create the directory", path.full());
        }
        if (error_number == EEXIST) {  // perhaps a file or a link
            return open_directory(path, path.relative, kDirectoryStep).status();
        }
        const Result<Descriptor> made = open_directory(path, path.relative, kDirectoryToRead);
        if (made.ok()) set_exact_mode(*made, mode);
        return made.status();
    }

    Status sync_directory(const Path& path) override {
        Result<Descriptor> descriptor = open_directory_to_read(path);
        if (!descriptor) return descriptor.status();
        const int result = retry_interrupted([&] { return ::fsync(descriptor->get()); });
        if (result == 0 || has_no_sync(errno)) return Status::success();
        return Status::from_errno(errno, "sync the directory", path.full());
    }

    Status sync_file_system(const Path& path) override {
        Result<Descriptor> descriptor = open_directory_to_read(path);
        if (!descriptor) return descriptor.status();
        const int result = retry_interrupted([&] { return ::syncfs(descriptor->get()); });
        if (result == 0 || has_no_sync(errno)) return Status::success();
        return Status::from_errno(errno, "sync the file system of", path.full());
    }

    Result<std::vector<std::string>> list_names(const Path& path) override {
        std::vector<std::string> names;
        Status status = for_each_name(path, [&](int, const char* name) { names.emplace_back(name); });
        if (!status.ok()) return status;
        return names;
    }

    Result<ListedFiles> list_files(const Path& path) override {
        ListedFiles listed;
        Status status = for_each_name(path, [&](int directory, const char* name) {
            struct ::stat found;
            const int result =
                retry_interrupted([&] { return ::fstatat(directory, name, &found, AT_SYMLINK_NOFOLLOW); });
            if (result == 0) {
                listed.files.push_back({name, file_info_of(found)});
                return;
            }
            Status failed = Status::from_errno(errno, "stat", path.full() + "/" + name);
            if (listed.unreadable.ok() && !is_absence(failed)) listed.unreadable = std::move(failed);
        });
        if (!status.ok()) return status;
        return listed;
    }

    Result<FileInfo> stat(const Path& path) override {
        struct ::stat found;
        if (path.relative.empty()) {
            const int result = retry_interrupted([&] { return ::stat(path.root.c_str(), &found); });
            if (result != 0) return Status::from_errno(errno, "stat", path.root);
            return file_info_of(found);
        }
        Result<Place> place = open_parent(path);
        if (!place) return place.status();
        const int result = retry_interrupted([&] {
            return ::fstatat(place->directory.get(), place->name.c_str(), &found, AT_SYMLINK_NOFOLLOW);
        });
        if (result != 0) return Status::from_errno(errno, "stat", path.full());
        return file_info_of(found);
    }

    Status check_writable(const Path& directory) override {
        if (std::filesystem::path(directory.full()).is_relative() && is_working_directory_gone()) {
            return Status::recoverable_error(ENOENT, directory.full(),
                                             "cannot write to: the working directory was removed");
        }
        for (std::filesystem::path nearest = directory.full();; nearest = nearest.parent_path()) {
            // "/." makes a file that stands where the directory should be an ENOTDIR.
            const std::string probe = nearest.empty() ? "." : (nearest / ".").string();
            const int error_number = try_to_make(probe);
            if (error_number == 0) return Status::success();
            if (error_number == ENOENT && is_directory(probe)) {
                // What /proc says to everybody.
                return Status::recoverable_error(EROFS, nearest.string(), "nothing can be made there");
            }
            struct ::stat link;
            if (error_number == ENOENT && ::lstat(nearest.c_str(), &link) == 0 && S_ISLNK(link.st_mode)) {
                // No directory can be made in its place, nor below it.
                return Status::recoverable_error(ENOENT, nearest.string(),
                                                 "nothing can be made there: it is a link to nothing");
            }
            const bool can_go_up =
                nearest.has_parent_path() ? nearest.parent_path() != nearest : !nearest.empty();
            if (error_number != ENOENT || !can_go_up) {
                Status status = Status::from_errno(error_number, "write", nearest.string());
                status.message = fmt::format("nothing can be made there ({})",
                                             std::generic_category().message(error_number));
                return status;
            }
        }
    }

  private:
    static Status unlink(const Path& path, int flags) {
        Result<Place> place = open_parent(path);
        if (!place) return place.status();
        const int result =
            retry_interrupted([&] { return ::unlinkat(place->directory.get(), place->name.c_str(), flags); });
        return result == 0 ? Status::success() : Status::from_errno(errno, "remove", path.full());
    }

    static int make_root(const Path& path, std::uint32_t mode) {
        return make_directory_with_parents(std::filesystem::path(path.root), static_cast<mode_t>(mode));
    }

    static int make_below_root(const Path& path, std::uint32_t mode) {
        Result<Place> place = open_parent(path);
        if (!place) return place.status().error_number;
        const int result = retry_interrupted([&] {
            return ::mkdirat(place->directory.get(), place->name.c_str(), static_cast<mode_t>(mode));
        });
        return result == 0 ? 0 : errno;
    }
};

constinit NeverDestroyed<PosixFileSystem> the_posix_file_system;

}  // namespace

FileSystem& posix_file_system() { return the_posix_file_system.get(); }

}  // namespace attnsmith::cache
