#include "reports/kernel_list.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "attnsmith/error.hpp"
#include "problem/json_text.hpp"
#include "problem/vocabulary.hpp"
#include "reports/unreadable.hpp"

namespace attnsmith::engine {
namespace {

int sm_in(const nlohmann::json& metadata) {
    const auto sm = metadata.find("sm");
    return sm != metadata.end() && sm->is_number_integer() ? sm->get<int>() : 0;
}

KernelEntry read_entry(cache::ListedEntry listed) {
    KernelEntry kernel{.entry = std::move(listed), .name = {}, .target = {}};
    const auto metadata = problem::parse_json(kernel.entry.metadata).value_or(nullptr);
    if (!metadata.is_object()) return kernel;
    const auto text = [&](const char* field) {
        const auto found = metadata.find(field);
        return found != metadata.end() && found->is_string() ? found->get<std::string>() : std::string();
    };
    kernel.name = text("name");
    kernel.target = text("target");
    kernel.sm = sm_in(metadata);
    return kernel;
}

}  // namespace

KernelList list_kernels(const cache::Store& store) {
    cache::Listing listing = store.list();
    return {.kernels = kernels_of(std::move(listing.entries)), .unreadable = std::move(listing.unreadable)};
}

std::vector<KernelEntry> kernels_of(std::vector<cache::ListedEntry> listed) {
    std::vector<KernelEntry> kernels;
    for (cache::ListedEntry& entry : listed) kernels.push_back(read_entry(std::move(entry)));
    return kernels;
}

cache::Digest find_key(std::string_view digits, const KernelList& stored) {
    constexpr std::size_t kFewestDigits = 4, kMostTold = 8;
    constexpr std::string_view kHexDigits = "0123456789abcdef";
    std::string wanted(digits);
    std::ranges::transform(wanted, wanted.begin(), [](char c) {
        return c >= 'A' && c <= 'F' ? static_cast<char>(c - 'A' + 'a') : c;
    });
    if (wanted.size() < kFewestDigits || wanted.size() > cache::Digest::kHexDigits ||
        wanted.find_first_not_of(kHexDigits) != wanted.npos) {
        throw InvalidRequest("key", problem::quote(digits),
                             "32 hexadecimal digits, as `attnsmith cache ls` prints, or the first 4 or more");
    }
    std::set<std::string> keys;
    for (const KernelEntry& kernel : stored.kernels) {
        std::string key = kernel.entry.key.hex();
        if (key.starts_with(wanted)) keys.insert(std::move(key));
    }
    if (keys.empty()) {
        const std::string unread =
            stored.unreadable.empty() ? std::string() : "; " + unreadable_text(stored.unreadable);
        throw CacheError(fmt::format(
            "no entry has the key {}; `attnsmith cache ls` lists those that there are{}", wanted, unread));
    }
    if (keys.size() == 1) return cache::Digest::parse(*keys.begin()).value();
    const std::vector<std::string> told(
        keys.begin(), std::next(keys.begin(), static_cast<std::ptrdiff_t>(std::min(keys.size(), kMostTold))));
    throw CacheError(fmt::format("{} keys begin with {}: {}{}; give more of its digits", keys.size(), wanted,
                                 fmt::join(told, ", "), keys.size() > told.size() ? ", ..." : ""));
}

int sm_of(const cache::ListedEntry& entry) {
    const auto metadata = problem::parse_json(entry.metadata).value_or(nullptr);
    return metadata.is_object() ? sm_in(metadata) : 0;
}

}  // namespace attnsmith::engine
