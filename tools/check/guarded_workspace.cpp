#include "check/guarded_workspace.hpp"

#include <algorithm>
#include <vector>

#include "check/storage.hpp"

namespace attnsmith::check {

GuardedWorkspace::GuardedWorkspace(const Runtime& runtime, std::size_t bytes)
    : bytes_(bytes), buffer_(runtime.allocate(bytes + 2 * kGuardBytes)) {
    std::vector<std::byte> fill(bytes + 2 * kGuardBytes, std::byte{0xff});
    std::fill_n(fill.begin() + kGuardBytes, std::min(kWorkspaceZeroedBytes, bytes), std::byte{0});
    buffer_.upload(fill.data(), fill.size());
}

Workspace GuardedWorkspace::workspace() const {
    return {static_cast<std::byte*>(buffer_.data()) + kGuardBytes, bytes_};
}

bool GuardedWorkspace::guards_intact() const { return intact(0) && intact(kGuardBytes + bytes_); }

bool GuardedWorkspace::intact(std::size_t offset) const {
    std::vector<std::byte> guard(kGuardBytes);
    buffer_.download(guard.data(), guard.size(), offset);
    return std::all_of(guard.begin(), guard.end(), [](std::byte b) { return b == std::byte{0xff}; });
}

}  // namespace attnsmith::check
