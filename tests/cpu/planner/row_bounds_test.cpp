// Which of a table's tiles a plan takes where they are for up to so many packed query rows.
#include <algorithm>
#include <string>

#include "planner/plan.hpp"
#include "support/catch.hpp"

using namespace attnsmith;
using families::TuningEntry;

namespace {

TuningEntry entry(std::optional<int> max_rows, int tile_kv) {
    return {.match = {.sm = 90, .head_dim_qk = 128, .head_dim_vo = 128, .max_rows = max_rows},
            .tile = {.tile_q = 128, .tile_kv = tile_kv, .stages = 2},
            .source = families::TileSource::user};
}

struct Tiles {
    int chosen = 0;                      // keys of the tile that is for as many rows
    std::vector<std::string> reasons{};  // why not the others
};

// Each KV head has four query heads: up to 4 tokens are decode, which is the kernel's that is made for it.
Tiles tiles_for(std::int64_t q_len) {
    const families::TuningTable table({entry(64, 64), entry(256, 96), entry({}, 128)});
    const AttentionSpec spec{.head_dim_qk = 128, .q_heads = 32, .kv_heads = 8};
    const planner::Plan plan =
        planner::make_plan(problem::validate(spec, {64, q_len, 4096}), families::traits_of(90), table);
    Tiles tiles;
    for (const int keys : {64, 96, 128}) {
        const std::string name =
            "attention wgmma bf16 128x128 contiguous 128x" + std::to_string(keys) + " stages 2";
        const auto found = std::ranges::find(plan.unused, name, &Refusal::candidate);
        if (found != plan.unused.end() && found->reason.starts_with("for ")) {
            tiles.reasons.push_back(found->reason);
        } else {
            CHECK(tiles.chosen == 0);
            tiles.chosen = keys;
        }
    }
    return tiles;
}

}  // namespace

TEST_CASE("a bound on the rows is one that it includes", "[planner][tuning]") {
    CHECK(tiles_for(5).chosen == 64);
    CHECK(tiles_for(16).chosen == 64);  // 64 rows
    CHECK(tiles_for(17).chosen == 96);
    CHECK(tiles_for(64).chosen == 96);  // 256 rows
    CHECK(tiles_for(65).chosen == 128);
    CHECK(tiles_for(4096).chosen == 128);
}

TEST_CASE("a tile for other rows says which", "[planner][tuning]") {
    CHECK(tiles_for(5).reasons == std::vector<std::string>{"for more than 64 packed query rows",
                                                           "for more than 256 packed query rows"});
    CHECK(tiles_for(64).reasons ==
          std::vector<std::string>{"for up to 64 packed query rows", "for more than 256 packed query rows"});
    CHECK(tiles_for(65).reasons ==
          std::vector<std::string>{"for up to 64 packed query rows", "for up to 256 packed query rows"});
}
