#include "cli/prewarm/run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_set>
#include <utility>

#include "cli/asked/runtime_flags.hpp"
#include "cli/outcome/conclude.hpp"
#include "cli/program/interrupt.hpp"
#include "cli/program/output.hpp"
#include "cli/program/progress.hpp"
#include "cubins/needed_kernels.hpp"
#include "cubins/store_options.hpp"
#include "engine/runtime_impl.hpp"
#include "engine/tuning_files.hpp"
#include "problem/json_text.hpp"
#include "problem/request/request_fields.hpp"
#include "settings/environment.hpp"
#include "settings/signing_keys.hpp"

namespace attnsmith::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kPullSchema = "attnsmith.cache-pull/1";

int count_kernels(const DistinctSpecs& work, const std::vector<int>& sms, const engine::Settings& settings) {
    std::vector<PrewarmRefusal> refused;
    const families::TuningTable tuning = engine::load_tuning(settings.tuning_files);
    return static_cast<int>(engine::needed_kernels(work.specs, sms, tuning, refused).size());
}

std::string step_text(const PrewarmedKernel& kernel) {
    std::string text = fmt::format("{} sm {}: {}", kernel.name, kernel.sm, kernel.state);
    if (kernel.state == "compiled") text += fmt::format(" in {:.2f} s", kernel.milliseconds / 1000);
    return text;  // why one failed is said at the end, once for all that failed so
}

PrewarmReport run_with_progress(PrewarmRun run, const DistinctSpecs& work, const std::vector<int>& sms,
                                Progress& progress, std::stop_token stop) {
    Runtime runtime(run.runtime);
    if (!run.options.compile) engine::impl_of(runtime).cubins.remotes().require_used();
    run.options.stop = std::move(stop);
    run.options.progress = [&](const PrewarmedKernel& kernel, int done, int total) {
        progress.step(done, total, step_text(kernel), kernel.state != "hit");
    };
    run.options.waiting = [&](const PrewarmedKernel& kernel) {
        progress.note(
            fmt::format("{} sm {}: waiting for another process that has it", kernel.name, kernel.sm));
    };
    return runtime.prewarm(work.specs, sms, run.options);
}

// The directory or bundle that each kernel lies in now, which may be a read-only layer; empty where none has
// it, as when it failed.
std::vector<std::string> places_of(const PrewarmReport& report, const engine::Settings& settings) {
    const cache::Store store(engine::store_options(settings));
    std::vector<std::string> places;
    for (const PrewarmedKernel& kernel : report.kernels) {
        const bool is_stored =
            kernel.state != "failed" && kernel.state != "missing" && kernel.state != "cancelled";
        const auto key = is_stored ? cache::Digest::parse(kernel.key) : std::nullopt;
        const auto found = key ? store.candidates(*key) : std::vector<cache::Candidate>();
        places.push_back(found.empty() ? std::string() : settings.cache_dirs[found.front().layer]);
    }
    return places;
}

// The library's report, whose list of what is not supported knows specs by their place; here they have names,
// and a model's other parts and warnings stand beside them.
Json report_json(const PrewarmReport& report, bool compiles, const std::vector<std::string>& places,
                 const Doubts& doubts) {
    Json json = problem::parse_ordered_json(to_json(report)).value();
    if (!compiles) {
        json["schema"] = kPullSchema;
        for (const char* never : {"compiled", "pushed"}) json["summary"].erase(never);
    }
    for (std::size_t i = 0; i < places.size(); ++i) {
        if (!places[i].empty()) json["kernels"][i]["directory"] = places[i];
    }
    json["summary"]["unsupported"] = doubts.refused.size();
    json["summary"]["ok"] = report.ok() && doubts.refused.empty();
    add_doubts(json, doubts);
    return json;
}

// A line for each, as one reads and repairs them.
std::string missing_text(const PrewarmReport& report) {
    std::string text;
    for (const PrewarmedKernel& kernel : report.kernels) {
        if (kernel.state == "missing")
            text += fmt::format("missing  {} sm {} ({}): {}\n", printable(kernel.name), kernel.sm, kernel.key,
                                printable(kernel.error));
    }
    return text;
}

// "in /kernels"; of several how many are in each: "2 in /kernels, 4 in /layer".
std::string places_text(const std::vector<std::string>& places, const std::vector<std::string>& order) {
    std::vector<std::string> texts, only;
    for (const std::string& place : order) {
        const auto count = std::ranges::count(places, place);
        if (count == 0) continue;
        texts.push_back(fmt::format("{} in {}", count, printable(place)));
        only.push_back(fmt::format("in {}", printable(place)));
    }
    if (texts.empty()) return {};
    return fmt::format(", {}", fmt::join(texts.size() == 1 ? only : texts, ", "));
}

std::string summary_text(const PrewarmReport& report, bool compiles, const std::string& places) {
    std::string text = fmt::format("{}: {}", counted(static_cast<std::uint64_t>(report.total), "kernel"),
                                   counted(static_cast<std::uint64_t>(report.hits), "hit"));
    if (compiles) text += fmt::format(", {} compiled", report.compiled);
    if (report.remote > 0 || !compiles) text += fmt::format(", {} from a remote", report.remote);
    if (report.waited > 0)
        text += fmt::format(", {} {} by others meanwhile", report.waited, compiles ? "compiled" : "fetched");
    if (report.pushed > 0) text += fmt::format(", {} pushed", report.pushed);
    if (report.missing > 0) text += fmt::format(", {} missing", report.missing);
    if (report.failed > 0) text += fmt::format(", {} failed", report.failed);
    if (report.cancelled > 0) text += fmt::format(", {} cancelled", report.cancelled);
    return text + fmt::format("; {:.1f} s{}\n", report.seconds, places);
}

// Says what is left undone.
int conclude_run(const Command& command, const PrewarmReport& report, const Doubts& doubts,
                 const InterruptWatch& watch) {
    std::vector<std::string> troubles = failing_doubts(command, doubts);
    if (report.failed > 0) {
        troubles.insert(troubles.begin(), fmt::format("{} of {} kernels failed: {}", report.failed,
                                                      report.total, failures_text(report.kernels)));
    }
    if (report.missing > 0) {
        troubles.insert(troubles.begin(), fmt::format("{} of {} kernels are missing: no remote has them",
                                                      report.missing, report.total));
    }
    if (watch.interrupted() && report.cancelled > 0) {
        troubles.insert(troubles.begin(), fmt::format("interrupted: {} of {} kernels were cancelled",
                                                      report.cancelled, report.total));
    }
    const int code = conclude(troubles);
    return code != kSuccess && watch.interrupted() ? watch.exit_code() : code;
}

}  // namespace

DistinctSpecs distinct_specs(const Asked& asked) {
    DistinctSpecs work;
    const auto hash = [](const AttentionSpec& spec) { return problem::hash_of(spec); };
    std::unordered_set<AttentionSpec, decltype(hash)> known(asked.attentions.size(), hash);
    for (const ModelAttention& attention : asked.attentions) {
        if (!known.insert(attention.request.spec).second) continue;
        work.specs.push_back(attention.request.spec);
        work.names.push_back(name_of(attention));
    }
    return work;
}

int run_prewarm(const Command& command, const Asked& asked, const DistinctSpecs& work,
                const std::vector<int>& sms, PrewarmRun run) {
    const engine::Settings settings = cache_settings(command);
    const bool as_json = command.has("json"), compiles = run.options.compile;
    Progress progress(as_json ? Progress::Elsewhere::nothing : Progress::Elsewhere::lines);
    run.runtime.log = [&](LogLevel level, std::string_view line) {
        progress.clear();
        settings.log(level, line);
    };
    run.runtime.on_miss =
        OnMiss::compile;  // whatever ATTNSMITH_ON_MISS says: PrewarmOptions has the word here
    const InterruptWatch watch(run.when_interrupted);
    progress.begin(count_kernels(work, sms, settings), run.doing);
    const PrewarmReport report = run_with_progress(std::move(run), work, sms, progress, watch.token());
    Doubts doubts(asked);
    doubts.add(report.unsupported, work.names);
    progress.clear();
    const std::vector<std::string> places = places_of(report, settings);
    if (as_json) {
        print_json(report_json(report, compiles, places, doubts));
    } else {
        print(missing_text(report) +
              summary_text(report, compiles, places_text(places, settings.cache_dirs)) + text_of(doubts));
    }
    return conclude_run(command, report, doubts, watch);
}

void add_sign_key_flag(Command& command) {
    command.add_value(
        "sign-key", "FILE",
        "the secret key that signs what is pushed (default: ATTNSMITH_CACHE_SIGN_KEY, else none)");
}

void read_sign_key_flag(const Command& command, RuntimeOptions& options) {
    const auto key = command.text("sign-key");
    if (!key) return;
    (void)engine::read_sign_key("sign-key", *key);  // or it says why not, before anything is opened
    options.sign_key_file = *key;
}

}  // namespace attnsmith::cli
