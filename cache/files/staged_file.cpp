#include "cache/files/staged_file.hpp"

#include <cerrno>

namespace attnsmith::cache {

StagedFile::~StagedFile() {
    if (files_ == nullptr) return;
    file_.reset();
    // What cannot be removed, for want of memory even, goes an hour later, with the next verify(), clear(),
    // gc() or eviction.
    try {
        static_cast<void>(files_->remove_file(path_));
    } catch (...) {
    }
}

Status StagedFile::append(std::span<const std::byte> bytes) { return write_fully(*file_, bytes); }

Status StagedFile::overwrite(std::span<const std::byte> bytes, std::uint64_t offset) {
    while (!bytes.empty()) {
        const Result<std::size_t> count = file_->write_at(bytes, offset);
        if (!count) return count.status();
        if (*count == 0) return Status::from_errno(EIO, "write any byte of", path_.full());
        bytes = bytes.subspan(*count);
        offset += *count;
    }
    return Status::success();
}

Status StagedFile::finish() {
    if (Status status = file_->sync(); !status.ok()) return status;
    return file_->close();
}

Status StagedFile::move_to(const Path& target) {
    Status status = files_->rename(path_, target);
    if (status.ok()) files_ = nullptr;
    return status;
}

Status StagedFile::move_to_if_free(const Path& target) {
    Status status = files_->rename_if_free(path_, target);
    if (status.ok()) files_ = nullptr;
    return status;
}

}  // namespace attnsmith::cache
