#include "engine/tuning_files.hpp"

#include <fmt/format.h>

#include "attnsmith/error.hpp"
#include "engine/text_file.hpp"
#include "planner/repository_tuning.hpp"
#include "planner/tuning_json.hpp"

namespace attnsmith::engine {
namespace {

std::string text_of(const std::string& path) {
    std::string text;
    if (const std::error_code error = read_text(path, text)) {
        throw InvalidRequest(
            path.empty() ? "\"\"" : path, fmt::format("a file that cannot be read ({})", error.message()),
            "a tuning table; --tuning, ATTNSMITH_TUNING and RuntimeOptions::tuning_files name them");
    }
    return text;
}

}  // namespace

families::TuningTable load_tuning(const std::vector<std::string>& files) {
    std::vector<families::TuningEntry> entries;
    for (const std::string& file : files) {
        const auto more = planner::parse_tuning(text_of(file), file, families::TileSource::user);
        entries.insert(entries.end(), more.begin(), more.end());  // without what people read
    }
    return families::TuningTable(std::move(entries), planner::repository_entries());
}

}  // namespace attnsmith::engine
