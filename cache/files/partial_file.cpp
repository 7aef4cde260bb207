#include "cache/files/partial_file.hpp"

#include <fmt/format.h>

#include <chrono>
#include <memory>
#include <utility>

#include "cache/files/unique_token.hpp"

namespace attnsmith::cache {
namespace {

constexpr std::string_view kPartialSuffix = ".partial";
// Far above any publish, and above what clocks differ by.
constexpr auto kStagingIsStaleAfter = std::chrono::hours(1);

// The name that a partial name is of; empty for any other.
std::string_view name_of_partial(std::string_view partial) {
    if (!partial.ends_with(kPartialSuffix)) return {};
    partial.remove_suffix(kPartialSuffix.size());
    return remove_token(partial, ".") ? partial : std::string_view();
}

}  // namespace

std::string new_partial_name(std::string_view name) {
    return fmt::format("{}.{}{}", name, token_text(unique_token()), kPartialSuffix);
}

Result<StagedFile> create_partial(FileSystem& files, const Path& target, std::optional<std::uint32_t> mode) {
    Path aside{target.root, new_partial_name(target.relative)};
    Result<std::unique_ptr<File>> created = files.create_exclusively(aside, mode);
    if (!created) return created.status();
    // The time is that of a file just made in the same directory.
    if (const Result<FileInfo> made = (*created)->stat())
        remove_stale_partials(files, target, made->modified);
    return StagedFile(files, std::move(aside), std::move(created).value());
}

bool is_stale_staging(FileTime modified, FileTime now) {
    return std::chrono::abs(now - modified) > kStagingIsStaleAfter;
}

std::vector<NamedFile> stale_partials(FileSystem& files, const std::string& directory, FileTime now) {
    std::vector<NamedFile> stale;
    const Result<std::vector<std::string>> names = files.list_names({directory, {}});
    for (const std::string& name : names ? *names : std::vector<std::string>()) {
        if (name_of_partial(name).empty()) continue;
        const Result<FileInfo> found = files.stat({directory, name});
        if (found && is_stale_staging(found->modified, now)) stale.push_back({name, *found});
    }
    return stale;
}

void remove_stale_partials(FileSystem& files, const Path& target, FileTime now) {
    for (const NamedFile& partial : stale_partials(files, target.root, now)) {
        if (partial.info.kind != FileKind::directory && name_of_partial(partial.name) == target.relative)
            static_cast<void>(files.remove_file({target.root, partial.name}));
    }
}

}  // namespace attnsmith::cache
