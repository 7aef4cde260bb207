#include "cache/files/partial_file.hpp"

#include <fmt/format.h>

#include <chrono>
#include <memory>
#include <utility>
#include <vector>

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

bool is_partial_name(std::string_view partial, std::string_view name) {
    return !name.empty() && name_of_partial(partial) == name;
}

bool is_any_partial_name(std::string_view partial) { return !name_of_partial(partial).empty(); }

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

void remove_stale_partials(FileSystem& files, const Path& target, FileTime now) {
    const Result<std::vector<std::string>> names = files.list_names({target.root, {}});
    if (!names) return;
    for (const std::string& name : *names) {
        if (!is_partial_name(name, target.relative)) continue;
        const Path path{target.root, name};
        const Result<FileInfo> found = files.stat(path);
        if (found && found->kind != FileKind::directory && is_stale_staging(found->modified, now))
            static_cast<void>(files.remove_file(path));
    }
}

}  // namespace attnsmith::cache
