// A FileSystem that fails where a test wants, and counts what it is asked for.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cache/files/file_system.hpp"

namespace attnsmith::cache::testing {

enum class Operation {
    open_for_reading,
    create,
    open_lock_file,
    rename,
    rename_if_free,
    exchange,
    remove,
    remove_directory,
    make_directory,
    sync_directory,
    sync_file_system,
    list_names,
    list_files,
    stat,
    check_writable,
    file_stat,
    file_read,
    file_write,
    file_write_at,
    file_touch,
    file_sync,
    file_close,
    file_lock,
};
inline constexpr std::size_t kOperations = static_cast<std::size_t>(Operation::file_lock) + 1;

// Thread-safe as long as `fault` is, which is not to be replaced while others use it.
class FaultyFileSystem final : public FileSystem {
  public:
    // Asked before each operation: an errno makes it fail, 0 lets it through.
    std::function<int(Operation)> fault = [](Operation) { return 0; };
    // Asked of each file in a listing: an errno is why it cannot be looked at.
    std::function<int(const std::string& path)> hides = [](const std::string&) { return 0; };
    // How far the clock of this file system, a file server's, is ahead of ours.
    std::chrono::minutes clock_ahead{0};
    std::size_t most_bytes_per_write = std::numeric_limits<std::size_t>::max();
    std::size_t most_bytes_per_read = std::numeric_limits<std::size_t>::max();

    void fail_always(Operation failing, int error_number) {
        fault = [=](Operation operation) { return operation == failing ? error_number : 0; };
    }
    // The n-th operation from now, whatever it is, counted from 0.
    void fail_once_at(std::size_t n, int error_number) {
        auto left = std::make_shared<std::atomic<std::size_t>>(n);
        fault = [=](Operation) { return left->fetch_sub(1) == 0 ? error_number : 0; };
    }
    void heal() {
        fault = [](Operation) { return 0; };
    }

    std::size_t count(Operation operation) const { return counts_[static_cast<std::size_t>(operation)]; }
    std::size_t count_all() const {
        std::size_t all = 0;
        for (const auto& one : counts_) all += one;
        return all;
    }
    void reset_counts() {
        for (auto& one : counts_) one = 0;
    }

    Result<std::unique_ptr<File>> open_for_reading(const Path& path) override {
        if (Status status = meet(Operation::open_for_reading, path.full()); !status.ok()) return status;
        return wrap(real_.open_for_reading(path), path);
    }
    Result<std::unique_ptr<File>> create_exclusively(const Path& path,
                                                     std::optional<std::uint32_t> mode) override {
        if (Status status = meet(Operation::create, path.full()); !status.ok()) return status;
        return wrap(real_.create_exclusively(path, mode), path);
    }
    Result<std::unique_ptr<File>> open_lock_file(const Path& path, std::uint32_t mode) override {
        if (Status status = meet(Operation::open_lock_file, path.full()); !status.ok()) return status;
        return wrap(real_.open_lock_file(path, mode), path);
    }
    Status rename(const Path& from, const Path& to) override {
        if (Status status = meet(Operation::rename, to.full()); !status.ok()) return status;
        return real_.rename(from, to);
    }
    Status rename_if_free(const Path& from, const Path& to) override {
        if (Status status = meet(Operation::rename_if_free, to.full()); !status.ok()) return status;
        return real_.rename_if_free(from, to);
    }
    Status exchange(const Path& one, const Path& other) override {
        if (Status status = meet(Operation::exchange, other.full()); !status.ok()) return status;
        return real_.exchange(one, other);
    }
    Status remove_directory(const Path& path) override {
        if (Status status = meet(Operation::remove_directory, path.full()); !status.ok()) return status;
        return real_.remove_directory(path);
    }
    Status remove_file(const Path& path) override {
        if (Status status = meet(Operation::remove, path.full()); !status.ok()) return status;
        return real_.remove_file(path);
    }
    Status make_directory(const Path& path, std::uint32_t mode) override {
        if (Status status = meet(Operation::make_directory, path.full()); !status.ok()) return status;
        return real_.make_directory(path, mode);
    }
    Status sync_directory(const Path& path) override {
        if (Status status = meet(Operation::sync_directory, path.full()); !status.ok()) return status;
        return real_.sync_directory(path);
    }
    Status sync_file_system(const Path& path) override {
        if (Status status = meet(Operation::sync_file_system, path.full()); !status.ok()) return status;
        return real_.sync_file_system(path);
    }
    Result<std::vector<std::string>> list_names(const Path& path) override {
        if (Status status = meet(Operation::list_names, path.full()); !status.ok()) return status;
        return real_.list_names(path);
    }
    Result<ListedFiles> list_files(const Path& path) override {
        if (Status status = meet(Operation::list_files, path.full()); !status.ok()) return status;
        Result<ListedFiles> listed = real_.list_files(path);
        if (!listed) return listed;
        std::erase_if(listed->files, [&](const NamedFile& file) {
            const std::string full = path.full() + "/" + file.name;
            const int error_number = hides(full);
            if (error_number == 0) return false;
            listed->unreadable = Status::from_errno(error_number, "stat", full);
            return true;
        });
        for (NamedFile& file : listed->files) file.info.modified += clock_ahead;
        return listed;
    }
    Result<FileInfo> stat(const Path& path) override {
        if (Status status = meet(Operation::stat, path.full()); !status.ok()) return status;
        return by_own_clock(real_.stat(path));
    }
    Status check_writable(const Path& directory) override {
        if (Status status = meet(Operation::check_writable, directory.full()); !status.ok()) return status;
        return real_.check_writable(directory);
    }

  private:
    class FaultyFile final : public File {
      public:
        FaultyFile(FaultyFileSystem& owner, std::unique_ptr<File> real, std::string path)
            : owner_(owner), real_(std::move(real)), path_(std::move(path)) {}

        Result<FileInfo> stat() override {
            if (Status status = owner_.meet(Operation::file_stat, path_); !status.ok()) return status;
            return owner_.by_own_clock(real_->stat());
        }
        Result<std::size_t> read_some(std::span<std::byte> buffer) override {
            if (Status status = owner_.meet(Operation::file_read, path_); !status.ok()) return status;
            return real_->read_some(buffer.first(std::min(buffer.size(), owner_.most_bytes_per_read)));
        }
        Result<std::size_t> read_some_at(std::uint64_t offset, std::span<std::byte> buffer) override {
            if (Status status = owner_.meet(Operation::file_read, path_); !status.ok()) return status;
            return real_->read_some_at(offset,
                                       buffer.first(std::min(buffer.size(), owner_.most_bytes_per_read)));
        }
        Result<std::size_t> write_some(std::span<const std::byte> bytes) override {
            if (Status status = owner_.meet(Operation::file_write, path_); !status.ok()) return status;
            return real_->write_some(bytes.first(std::min(bytes.size(), owner_.most_bytes_per_write)));
        }
        Result<std::size_t> write_at(std::span<const std::byte> bytes, std::uint64_t offset) override {
            if (Status status = owner_.meet(Operation::file_write_at, path_); !status.ok()) return status;
            return real_->write_at(bytes.first(std::min(bytes.size(), owner_.most_bytes_per_write)), offset);
        }
        Status touch() override {
            if (Status status = owner_.meet(Operation::file_touch, path_); !status.ok()) return status;
            return real_->touch();
        }
        Status sync() override {
            if (Status status = owner_.meet(Operation::file_sync, path_); !status.ok()) return status;
            return real_->sync();
        }
        Status close() override {
            if (Status status = owner_.meet(Operation::file_close, path_); !status.ok()) return status;
            return real_->close();
        }
        Status try_lock() override {
            if (Status status = owner_.meet(Operation::file_lock, path_); !status.ok()) return status;
            return real_->try_lock();
        }

      private:
        FaultyFileSystem& owner_;
        std::unique_ptr<File> real_;
        std::string path_;
    };

    Result<FileInfo> by_own_clock(Result<FileInfo> info) const {
        if (info.ok()) info->modified += clock_ahead;
        return info;
    }

    Status meet(Operation operation, const std::string& path) {
        ++counts_[static_cast<std::size_t>(operation)];
        const int error_number = fault(operation);
        return error_number == 0 ? Status::success()
                                 : Status::from_errno(error_number, "pass the test", path);
    }

    Result<std::unique_ptr<File>> wrap(Result<std::unique_ptr<File>> real, const Path& path) {
        if (!real) return real.status();
        return Result<std::unique_ptr<File>>(
            std::make_unique<FaultyFile>(*this, std::move(real).value(), path.full()));
    }

    FileSystem& real_ = posix_file_system();
    std::array<std::atomic<std::size_t>, kOperations> counts_{};
};

}  // namespace attnsmith::cache::testing
