#include "cache/staged_file.hpp"

namespace attnsmith::cache {

StagedFile::~StagedFile() {
    if (files_ == nullptr) return;
    file_.reset();
    // What cannot be removed goes with the next clear() or verify().
    static_cast<void>(files_->remove_file(path_));
}

Status StagedFile::write(std::span<const std::byte> bytes) {
    if (Status status = write_fully(*file_, bytes); !status.ok()) return status;
    if (Status status = file_->sync(); !status.ok()) return status;
    return file_->close();
}

Status StagedFile::move_to(const Path& target) {
    Status status = files_->rename(path_, target);
    if (status.ok()) files_ = nullptr;
    return status;
}

}  // namespace attnsmith::cache
