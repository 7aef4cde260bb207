#include "cache/files/named_file.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <memory>
#include <span>
#include <utility>

namespace attnsmith::cache {

Result<Path> named_file(const std::string& file, std::string_view refusal) {
    const std::size_t slash = file.rfind('/');
    Path path = slash == file.npos ? Path{".", file} : Path{file.substr(0, slash), file.substr(slash + 1)};
    if (path.root.empty()) path.root = "/";
    if (path.relative.empty() || path.relative == "." || path.relative == "..") {
        return Status::recoverable_error(EISDIR, file, std::string(refusal));
    }
    return path;
}

Status read_named_file(FileSystem& files, const std::string& file, std::size_t most, std::string& text,
                       FileInfo* info) {
    const Result<std::unique_ptr<File>> opened = files.open_for_reading({file, {}});
    if (!opened) return opened.status();
    const Result<FileInfo> found = (*opened)->stat();
    if (!found) return found.status();
    if (info != nullptr) *info = *found;
    if (found->kind != FileKind::regular)
        return Status::recoverable_error(EINVAL, file, "not a regular file");
    const auto too_long = [&] {
        return Status::recoverable_error(EINVAL, file, fmt::format("over {} bytes long", most));
    };
    if (found->bytes > most) return too_long();
    // It may have grown since, and one byte more shows that.
    text.resize(most + 1);
    const Result<std::size_t> size = read_fully(**opened, std::as_writable_bytes(std::span(text)));
    if (!size) return size.status();
    if (*size > most) return too_long();
    text.resize(*size);
    return Status::success();
}

}  // namespace attnsmith::cache
