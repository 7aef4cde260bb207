#include "cli/prewarm/dry_run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/asked/runtime_flags.hpp"
#include "cli/outcome/conclude.hpp"
#include "cli/program/output.hpp"
#include "engine/named_specs.hpp"
#include "engine/prewarm.hpp"
#include "engine/runtime_impl.hpp"
#include "reports/explain.hpp"

namespace attnsmith::cli {
namespace {

using Json = nlohmann::ordered_json;
using engine::Explanation;

std::size_t hits_of(const std::vector<Explanation>& kernels) {
    return static_cast<std::size_t>(std::ranges::count(kernels, true, &Explanation::hit));
}

// Schema attnsmith.prewarm-dry-run/1.
Json report_json(const std::vector<Explanation>& kernels, const Doubts& doubts) {
    const std::size_t hits = hits_of(kernels);
    Json json = {{"schema", "attnsmith.prewarm-dry-run/1"}};
    json["summary"] = {{"total", kernels.size()},
                       {"hits", hits},
                       {"misses", kernels.size() - hits},
                       {"unsupported", doubts.refused.size()}};
    json["kernels"] = Json::array();
    for (const Explanation& kernel : kernels) {
        json["kernels"].push_back({{"name", kernel.name},
                                   {"sm", kernel.sm},
                                   {"key", kernel.key.hex()},
                                   {"state", kernel.hit ? "hit" : "miss"}});
    }
    add_doubts(json, doubts);
    return json;
}

std::string report_text(const std::vector<Explanation>& kernels) {
    Table table("<><<");
    table.add({"key", "sm", "kernel", "cache"});
    for (const Explanation& kernel : kernels)
        table.add({kernel.key.hex(), std::to_string(kernel.sm), printable(kernel.name),
                   kernel.hit ? "hit" : "miss"});
    const std::size_t hits = hits_of(kernels);
    return (table.empty() ? std::string() : table.text()) +
           fmt::format("{}: {}, {} to compile; nothing was changed\n", counted(kernels.size(), "kernel"),
                       counted(hits, "hit"), kernels.size() - hits);
}

}  // namespace

int dry_run(const Command& command, const Asked& asked, const std::vector<int>& sms) {
    const Runtime runtime = open_cache_runtime(command);
    const engine::NamedSpecs named = engine::named_specs(asked);
    std::vector<PrewarmRefusal> not_served;
    const engine::Explained explained =
        engine::explain(engine::impl_of(runtime), named.specs, sms, not_served);
    Doubts doubts(asked);
    doubts.refused = engine::unsupported_of(asked, named, std::move(not_served));
    if (command.has("json")) {
        print_json(report_json(explained.kernels, doubts));
    } else {
        print(report_text(explained.kernels) + text_of(doubts));
    }
    tell_of_unreadable(explained.unreadable);
    std::vector<std::string> troubles = failing_doubts(command, doubts);
    if (hits_of(explained.kernels) < explained.kernels.size()) {
        const cache::Store& store = engine::impl_of(runtime).cubins.store();
        const std::string trouble = engine::why_nothing_can_be_stored(store.stat());
        if (!trouble.empty()) troubles.insert(troubles.begin(), trouble);
    }
    return conclude(troubles);
}

}  // namespace attnsmith::cli
