#include "cache/files/trust.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

namespace attnsmith::cache {
namespace {

constexpr std::uint32_t kGroupWrites = 020;
constexpr std::uint32_t kWorldWrites = 002;
constexpr std::uint32_t kRoot = 0;

bool is_of_group(std::uint32_t group) {
    if (::getegid() == group) return true;
    const int count = ::getgroups(0, nullptr);
    if (count <= 0) return false;
    std::vector<gid_t> groups(static_cast<std::size_t>(count));
    const int filled = ::getgroups(count, groups.data());
    return filled > 0 && std::find(groups.begin(), groups.begin() + filled, group) != groups.begin() + filled;
}

}  // namespace

std::optional<std::string> reason_for_distrust(const FileInfo& info, Trust trust) {
    if (trust == Trust::all) return std::nullopt;
    // Effective, not real: these are the rights that loaded code gets.
    const std::uint32_t user = ::geteuid();
    const bool is_own = info.owner == user || info.owner == kRoot;
    const auto because = [&](std::string_view what) {
        return fmt::format("{} (owner {}, group {}, mode {:04o}; this process is user {})", what, info.owner,
                           info.group, info.mode, user);
    };
    if ((info.mode & kWorldWrites) != 0) return because("everyone may write to it");
    if (trust == Trust::group) {
        if (is_own) return std::nullopt;
        // Without the group's right to write it is not the group's, but its owner's.
        if ((info.mode & kGroupWrites) != 0 && is_of_group(info.group)) return std::nullopt;
        return because("another user owns it, and no group of this user's may write to it");
    }
    if (!is_own) return because("another user owns it");
    if ((info.mode & kGroupWrites) != 0) return because("its group may write to it");
    return std::nullopt;
}

std::string trust_remedy(const FileInfo& info, Trust trust) {
    FileInfo closed = info;
    closed.mode &= ~(kGroupWrites | kWorldWrites);
    const bool closing_helps = !reason_for_distrust(closed, trust);
    const bool group_helps = !reason_for_distrust(info, Trust::group);
    return fmt::format("{}use another directory, or trust it (cache_trust, --cache-trust {})",
                       closing_helps ? "take the others' right to write away (chmod go-w), " : "",
                       group_helps ? "group or all" : "all");
}

Status check_trusted(const FileInfo& info, Trust trust) {
    const std::optional<std::string> reason = reason_for_distrust(info, trust);
    if (!reason) return Status::success();
    return Status::recoverable_error(EPERM, {},
                                     fmt::format("not trusted: {}; {}", *reason, trust_remedy(info, trust)));
}

}  // namespace attnsmith::cache
