#include "engine/missing_kernel.hpp"

#include <fmt/format.h>

#include "problem/recorded.hpp"

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

std::string command_of(const Settings& settings, const planner::Plan& plan) {
    std::string command =
        fmt::format("attnsmith prewarm {} --sm {}", problem::request_flags(plan.problem), plan.device.sm);
    // Elsewhere the command finds it as this process does.
    if (settings.cache_dirs_from_options) command += " --cache " + quoted(settings.cache_dirs.front());
    for (const std::string& file : settings.tuning_files) command += " --tuning " + quoted(file);
    return command;
}

}  // namespace

KernelMissing missing_kernel(const Settings& settings, const planner::Plan& plan,
                             const CubinMissing& missing) {
    const std::string command = command_of(settings, plan);
    std::string there = "no cache has a kernel";
    if (settings.cache_dirs.empty())
        there = fmt::format("there is no cache ({}), so no kernel", settings.no_cache_because);
    std::string what = fmt::format("{} of {} for sm {} (key {}), and on_miss is error", there,
                                   problem::request_flags(plan.problem), plan.device.sm, missing.key().hex());
    if (!missing.passed_over().empty())
        what += fmt::format("; what it has was passed over: {}", missing.passed_over());
    return {fmt::format("{}; build it with: {}", what, command), problem::request_json(plan.problem),
            plan.device.sm, missing.key().hex(), command};
}

}  // namespace attnsmith::engine
