// Open files of the POSIX FileSystem. Internal to cache/.
#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "cache/files/file_system.hpp"

namespace attnsmith::cache {

template <class Call>
auto retry_interrupted(Call call) {
    auto result = call();
    while (result < 0 && errno == EINTR) result = call();
    return result;
}

// Owns a file descriptor.
class Descriptor {
  public:
    explicit Descriptor(int descriptor) : descriptor_(descriptor) {}
    Descriptor(Descriptor&& other) noexcept : descriptor_(other.disown()) {}
    Descriptor& operator=(Descriptor&& other) noexcept {
        if (this != &other) {
            close();
            descriptor_ = other.disown();
        }
        return *this;
    }
    ~Descriptor() { close(); }

    int get() const { return descriptor_; }
    bool is_open() const { return descriptor_ >= 0; }
    int disown() { return std::exchange(descriptor_, -1); }

    // What close(2) said. It is never called twice: on Linux the descriptor is gone even when it fails.
    int close() { return is_open() ? ::close(disown()) : 0; }

  private:
    int descriptor_;
};

FileInfo file_info_of(const struct ::stat& found);

// Whether fsync failed because the file system has no such thing.
bool has_no_sync(int error_number);

std::unique_ptr<File> make_posix_file(Descriptor descriptor, std::string path);

// `open` is called again where the process forked meanwhile: no child keeps a descriptor of a lock file that
// it does not know of.
Result<std::unique_ptr<File>> open_posix_lock_file(std::string path,
                                                   const std::function<Result<Descriptor>()>& open);

}  // namespace attnsmith::cache
