#include "families/tuned.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "families/attention.hpp"

namespace attnsmith::families {
namespace {

Refusal refusal_of(const TuningEntry& entry, const std::string& reason) {
    const auto& [backend, tile_q, tile_kv, stages] = entry.tile;
    return {tile_label(backend, tile_q, tile_kv, stages),
            fmt::format("of the {} entry for head dims {} and {}: {}",
                        entry.source == TileSource::user ? "user's" : "table's", entry.match.head_dim_qk,
                        entry.match.head_dim_vo, reason)};
}

}  // namespace

std::vector<Candidate> tuned_candidates(Backend backend, const AttentionSpec& spec, const SmTraits& sm,
                                        const TuningTable& tuning, const MakeKernel& make,
                                        std::vector<Refusal>& rejected) {
    std::vector<Candidate> chosen;
    std::vector<TuningTile> passed_over;  // larger head dims repeat the tiles of smaller ones
    for (const TuningEntry& entry : tuning.entries_for(match_of(spec, sm.sm))) {
        if (entry.tile.backend != backend) continue;
        const std::optional<std::int64_t> up_to = entry.match.max_rows;
        const std::int64_t above = chosen.empty() ? -1 : *chosen.back().up_to;
        if (up_to && *up_to <= above) continue;  // all its rows are those of a better entry
        if (std::ranges::find(passed_over, entry.tile) != passed_over.end()) continue;
        Candidate candidate{.source = entry.source, .above = above, .up_to = up_to};
        if (const auto reason = make(entry.tile, candidate.kernel)) {
            passed_over.push_back(entry.tile);
            rejected.push_back(refusal_of(entry, *reason));
            continue;
        }
        chosen.push_back(std::move(candidate));
        if (!up_to) break;
    }
    return chosen;
}

}  // namespace attnsmith::families
