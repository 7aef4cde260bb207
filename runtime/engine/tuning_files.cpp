#include "engine/tuning_files.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "attnsmith/error.hpp"
#include "planner/tuning_json.hpp"

namespace attnsmith::engine {
namespace {

std::string read_text(const std::string& path) {
    constexpr std::size_t kMostBytes = std::size_t{2}
                                       << 20;  // twice what the parser takes: it refuses the rest
    std::ifstream file(path, std::ios::binary);
    std::string text(kMostBytes, '\0');
    if (file) file.read(text.data(), static_cast<std::streamsize>(text.size()));
    if (!file.is_open() || file.bad())
        throw InvalidRequest(
            path.empty() ? "\"\"" : path,
            fmt::format("a file that cannot be read ({})", std::strerror(errno)),
            "a tuning table; --tuning, ATTNSMITH_TUNING and RuntimeOptions::tuning_files name them");
    text.resize(static_cast<std::size_t>(file.gcount()));
    return text;
}

}  // namespace

planner::TuningTable load_tuning(const std::vector<std::string>& files) {
    std::vector<planner::TuningEntry> entries;
    const auto add = [&](const std::vector<planner::TuningEntry>& more) {
        entries.insert(entries.end(), more.begin(), more.end());
    };
    for (const std::string& file : files)
        add(planner::parse_tuning(read_text(file), file, planner::TileSource::user));
    add(planner::repository_tuning().entries());
    return planner::TuningTable(std::move(entries));
}

}  // namespace attnsmith::engine
