#include <fmt/format.h>

#include "engine/runtime_impl.hpp"

namespace attnsmith {
namespace {

void check_range(std::size_t size, std::size_t bytes, std::size_t offset) {
    if (offset > size || bytes > size - offset) {
        throw InvalidRequest("bytes", fmt::format("{} at {}", bytes, offset),
                             fmt::format("a range within {}", size));
    }
}

}  // namespace

Buffer::Buffer() noexcept = default;
Buffer::~Buffer() = default;
Buffer::Buffer(Buffer&&) noexcept = default;
Buffer& Buffer::operator=(Buffer&&) noexcept = default;

void* Buffer::data() const noexcept { return impl_ ? impl_->memory.data() : nullptr; }
std::size_t Buffer::bytes() const noexcept { return impl_ ? impl_->memory.bytes() : 0; }
int Buffer::device() const noexcept { return impl_ ? impl_->device : -1; }
Workspace Buffer::workspace() const noexcept { return {data(), bytes()}; }

void Buffer::upload(const void* host, std::size_t bytes, std::size_t offset) {
    check_range(this->bytes(), bytes, offset);
    if (bytes > 0) impl_->memory.upload(host, bytes, offset);
}

void Buffer::download(void* host, std::size_t bytes, std::size_t offset) const {
    check_range(this->bytes(), bytes, offset);
    if (bytes > 0) impl_->memory.download(host, bytes, offset);
}

}  // namespace attnsmith
