#include "cubins/missing_kernel.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <vector>

#include "problem/request/recorded.hpp"
#include "problem/vocabulary.hpp"

namespace attnsmith::engine {
namespace {

// As a shell takes it for one word.
std::string quoted(const std::string& text) {
    constexpr const char* kPlain = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_./-:=+,@%";
    if (!text.empty() && text.find_first_not_of(kPlain) == text.npos) return text;
    std::string word = "'";
    for (const char letter : text) word += letter == '\'' ? std::string("'\\''") : std::string(1, letter);
    return word + "'";
}

std::string_view word_of(cache::Trust trust) {
    static_assert(static_cast<int>(cache::Trust::group) == static_cast<int>(CacheTrust::group));
    static_assert(static_cast<int>(cache::Trust::all) == static_cast<int>(CacheTrust::all));
    return problem::kCacheTrustWords.name_of(static_cast<CacheTrust>(trust));
}

std::string command_of(const Settings& settings, const planner::Plan& plan, bool refused_by_driver) {
    std::string command =
        fmt::format("attnsmith prewarm {} --sm {}", problem::request_flags(plan.problem), plan.device.sm);
    // Elsewhere the command finds it as this process does. No variable says whom it trusts.
    if (settings.cache_dirs_from_options) command += " --cache " + quoted(settings.cache_dirs.front());
    if (settings.cache_trust != cache::Trust::owner)
        command += fmt::format(" --cache-trust {}", word_of(settings.cache_trust));
    for (const std::string& file : settings.tuning_files) command += " --tuning " + quoted(file);
    // A newer toolchain's entry, which stays for the drivers that take it, would be a hit otherwise.
    if (refused_by_driver) command += " --toolchain exact";
    return command;
}

std::string list_passed_over(const std::vector<std::string>& reasons) {
    constexpr std::size_t kMostTold = 3;
    const std::size_t told = std::min(reasons.size(), kMostTold);
    std::string list = fmt::format("{}", fmt::join(reasons.begin(), reasons.begin() + told, "; "));
    if (reasons.size() > told) list += fmt::format("; and {} more", reasons.size() - told);
    return list;
}

}  // namespace

KernelMissing missing_kernel(const Settings& settings, const planner::Plan& plan,
                             const CubinMissing& missing) {
    const bool has_directory = !settings.cache_dirs.empty();
    const bool refused = missing.refused_by_driver();
    const std::string command = has_directory ? command_of(settings, plan, refused) : std::string();
    std::string what = fmt::format("{} of {} for sm {} (key {}), and on_miss is error",
                                   has_directory ? "no cache has a kernel" : "there is no kernel",
                                   problem::request_flags(plan.problem), plan.device.sm, missing.key().hex());
    if (!missing.passed_over().empty())
        what += fmt::format("; what it has was passed over: {}", list_passed_over(missing.passed_over()));
    if (has_directory) {
        what += refused
                    ? "; update the driver, or build it by an NVRTC of a CUDA version that it knows, with: "
                    : "; build it with: ";
        what += command;
    } else {
        what += fmt::format(
            "; no cache directory is used ({}), so no command can build it: name one (cache_dirs), or let "
            "on_miss be compile",
            settings.no_cache_because);
    }
    return {what, problem::request_json(plan.problem), plan.device.sm, missing.key().hex(), command};
}

}  // namespace attnsmith::engine
