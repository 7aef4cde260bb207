#include "cache/bundle/tar_append.hpp"

#include <algorithm>

#include "cache/bundle/tar.hpp"

namespace attnsmith::cache::tar {

Status append_zeros(const Append& append, std::uint64_t bytes) {
    const Block zeros{};
    for (std::uint64_t written = 0; written < bytes; written += zeros.size()) {
        const std::uint64_t now = std::min<std::uint64_t>(bytes - written, zeros.size());
        if (Status status = append(std::span(zeros).first(now)); !status.ok()) return status;
    }
    return Status::success();
}

Status append_file(const Append& append, std::string_view name, std::span<const std::byte> content) {
    if (Status status = append(encode_header(name, content.size())); !status.ok()) return status;
    if (Status status = append(content); !status.ok()) return status;
    return append_zeros(append, padded(content.size()) - content.size());
}

}  // namespace attnsmith::cache::tar
