#include "cache/entries/layout.hpp"

#include <fmt/format.h>

#include "cache/digest/sha256.hpp"
#include "cache/files/unique_token.hpp"

namespace attnsmith::cache::layout {
namespace {

constexpr std::size_t kShardDigits = 2;
constexpr std::string_view kEntrySuffix = ".entry";
constexpr std::string_view kStagingSuffix = ".staging";
constexpr std::string_view kQuarantineSuffix = ".broken";
constexpr std::string_view kLockSuffix = ".lock";
constexpr std::string_view kCountersSuffix = ".counters";
constexpr std::size_t kSlotDigits = 2;

bool remove_suffix(std::string_view& name, std::string_view suffix) {
    if (!name.ends_with(suffix)) return false;
    name.remove_suffix(suffix.size());
    return true;
}

// "<key>-<version>"
std::optional<EntryName> parse_key_and_version(std::string_view text) {
    if (text.size() < Digest::kHexDigits + 1 || text[Digest::kHexDigits] != '-') return std::nullopt;
    const auto key = Digest::parse(text.substr(0, Digest::kHexDigits));
    const auto version = Version::parse(text.substr(Digest::kHexDigits + 1));
    if (!key || !version) return std::nullopt;
    return EntryName{*key, *version};
}

}  // namespace

std::string shard_name(const Digest& key) { return key.hex().substr(0, kShardDigits); }

std::string entry_name(const EntryName& name) {
    return fmt::format("{}-{}{}", name.key.hex(), name.version.to_string(), kEntrySuffix);
}

std::string staging_name(const Digest& key, std::uint64_t token) {
    return fmt::format("{}-{}{}", key.hex(), token_text(token), kStagingSuffix);
}

std::string quarantine_name(const EntryName& name, std::uint64_t token) {
    return fmt::format("{}-{}-{}{}", name.key.hex(), name.version.to_string(), token_text(token),
                       kQuarantineSuffix);
}

std::string lock_name(const Digest& key) { return fmt::format("{}{}", key.hex(), kLockSuffix); }

std::string in_directory(std::string_view directory, std::string_view file_name) {
    return fmt::format("{}/{}", directory, file_name);
}

std::string entry_path(const EntryName& name) { return in_directory(shard_name(name.key), entry_name(name)); }

std::string lock_path(const Digest& key) { return in_directory(kLocksDirectory, lock_name(key)); }

std::string counters_path(unsigned slot) {
    return in_directory(kCountersDirectory, fmt::format("{:02x}{}", slot, kCountersSuffix));
}

bool is_shard_name(std::string_view name) { return is_lower_hex(name, kShardDigits); }

std::optional<EntryName> parse_entry_name(std::string_view shard, std::string_view file_name) {
    if (!file_name.starts_with(shard) || !remove_suffix(file_name, kEntrySuffix)) return std::nullopt;
    return parse_key_and_version(file_name);
}

bool is_staging_name(std::string_view file_name) {
    return remove_suffix(file_name, kStagingSuffix) && remove_token(file_name, "-") &&
           Digest::parse(file_name).has_value();
}

bool is_quarantine_name(std::string_view file_name) {
    return remove_suffix(file_name, kQuarantineSuffix) && remove_token(file_name, "-") &&
           parse_key_and_version(file_name).has_value();
}

bool is_lock_name(std::string_view file_name) {
    if (in_directory(kLocksDirectory, file_name) == kEvictorLock) return true;
    return remove_suffix(file_name, kLockSuffix) && Digest::parse(file_name).has_value();
}

bool is_counters_name(std::string_view file_name) {
    return remove_suffix(file_name, kCountersSuffix) && is_lower_hex(file_name, kSlotDigits);
}

}  // namespace attnsmith::cache::layout
