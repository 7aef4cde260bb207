#include "planner/tuning.hpp"
#include "planner/tuning_embedded.hpp"

namespace attnsmith::planner {

// Made anew for each who asks, from constants: nothing is left half made in a process that forks meanwhile.
TuningTable repository_tuning() {
    std::vector<TuningEntry> entries;
    entries.reserve(embedded_entries().size());
    for (const auto& [match, tile, measured] : embedded_entries())
        entries.push_back({match, tile, std::string(measured), TileSource::table});
    return TuningTable(std::move(entries));
}

}  // namespace attnsmith::planner
