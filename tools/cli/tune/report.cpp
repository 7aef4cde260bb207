#include "cli/tune/report.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/program/output.hpp"
#include "planner/tuning_json.hpp"

namespace attnsmith::cli {
namespace {

using Json = nlohmann::ordered_json;

Json speed_json(const bench::TileSpeed& speed) {
    Json json = {{"kernel", speed.kernel.name()},
                 {"tile_q", speed.kernel.tile_q()},
                 {"tile_kv", speed.kernel.tile_kv()},
                 {"stages", speed.kernel.stages()}};
    if (!speed.failure.empty()) {
        json["failure"] = speed.failure;
        return json;
    }
    json["tflops"] = speed.tflops;
    json["spill_bytes"] = speed.spill_bytes;
    json["toolchain"] = speed.toolchain;
    return json;
}

}  // namespace

std::string text_of(const families::TuningMatch& match) {
    std::string text =
        fmt::format("head dims {} and {}, {} KV, {} mask", match.head_dim_qk, match.head_dim_vo,
                    match.paged ? "paged" : "contiguous", match.mask ? to_string(*match.mask) : "any");
    if (match.softcap) text += ", softcap";
    if (match.alibi) text += ", alibi";
    if (match.gathered) text += ", pages of no multiple of 16 keys";
    if (match.max_rows) text += fmt::format(", up to {} packed query rows", *match.max_rows);
    return text;
}

std::string speeds_text(const TuningClass& of, const std::vector<bench::TileSpeed>& speeds) {
    const auto& [spec, sizes] = of.problem;
    std::string text =
        fmt::format("{}; batch {}, q_len {}, kv_len {}, {} query and {} key/value heads\n", text_of(of.match),
                    sizes.batch, sizes.q_len, sizes.kv_len, spec.q_heads, spec.kv_heads);
    Table table("<>>>>");
    table.add({"tile", "stages", "TFLOP/s", "of best", "spills"});
    std::string failures;
    for (const auto& [kernel, tflops, failure, toolchain, spill_bytes] : speeds) {
        if (failure.empty()) {
            table.add({fmt::format("{}x{}", kernel.tile_q(), kernel.tile_kv()),
                       std::to_string(kernel.stages()), fmt::format("{:.1f}", tflops),
                       fmt::format("{:.0f}%", 100 * tflops / speeds.front().tflops),
                       spill_bytes > 0 ? fmt::format("{} B", spill_bytes) : std::string()});
        } else {
            failures += fmt::format("  failed  {}: {}\n", kernel.name(), printable(failure));
        }
    }
    return text + table.text("  ") + failures + "\n";
}

Json tune_json(const families::DeviceTraits& device) {
    return {{"schema", "attnsmith.tune/1"},
            {"device", {{"name", device.name}, {"sm", device.sm}, {"sm_count", device.sm_count}}},
            {"file", nullptr},
            {"file_entries", 0},
            {"classes", Json::array()}};
}

Json speeds_json(const TuningClass& of, const std::vector<bench::TileSpeed>& speeds) {
    const auto& [spec, sizes] = of.problem;
    Json json = {{"match", planner::match_json(of.match)},
                 {"batch", sizes.batch},
                 {"q_len", sizes.q_len},
                 {"kv_len", sizes.kv_len},
                 {"q_heads", spec.q_heads},
                 {"kv_heads", spec.kv_heads},
                 {"tiles", Json::array()}};
    for (const bench::TileSpeed& speed : speeds) json["tiles"].push_back(speed_json(speed));
    return json;
}

}  // namespace attnsmith::cli
