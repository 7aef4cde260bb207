// attnsmith prewarm: compiles into the cache whatever planning could choose.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "cli/asked.hpp"
#include "cli/commands.hpp"
#include "cli/conclude.hpp"
#include "cli/gpu.hpp"
#include "cli/interrupt.hpp"
#include "cli/output.hpp"
#include "cli/prewarm_dry_run.hpp"
#include "cli/progress.hpp"
#include "cli/runtime_flags.hpp"
#include "engine/cubins/needed_kernels.hpp"
#include "engine/environment.hpp"
#include "engine/signing_keys.hpp"
#include "engine/tuning_files.hpp"
#include "problem/json_text.hpp"
#include "problem/request/coverage.hpp"
#include "problem/request/request_fields.hpp"

namespace attnsmith::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kPrewarmDetails =
    "Compiles every kernel that could be chosen for the problem, whatever its lengths, into the cache; what\n"
    "is there already, in a read-only layer too, is left alone. Words that a program chooses take several "
    "values\n"
    "(--kv paged,dense --alignment 16,8): all combinations. --recorded takes what programs left in a file\n"
    "(ATTNSMITH_RECORD=FILE), for any SM. Ctrl-C finishes what is being compiled and cancels the rest (exit\n"
    "code 130); so does SIGTERM (143), for at most 5 seconds. Exits 1 when a kernel failed or a part of a\n"
    "model is not supported, or with --strict when a model has a warning; the others are in the cache all\n"
    "the same.\n\n"
    "Examples:\n"
    "  attnsmith prewarm --model config.json --sm 80,90 --cache kernels --jobs 2\n"
    "  attnsmith prewarm --model config.json --kv paged,dense --index-dtype int32,int64 --sm 90\n"
    "  attnsmith prewarm --head-dim 128 --q-heads 32 --kv-heads 8 --mask causal --sm 90 --json\n"
    "  attnsmith prewarm --model config.json --sm 80,90 --dry-run";

// Each spec once, with the name of the first attention that has it.
struct PrewarmWork {
    std::vector<AttentionSpec> specs;
    std::vector<std::string> names;
};

PrewarmWork distinct_specs(const Asked& asked) {
    PrewarmWork work;
    const auto hash = [](const AttentionSpec& spec) { return problem::hash_of(spec); };
    std::unordered_set<AttentionSpec, decltype(hash)> known(asked.attentions.size(), hash);
    for (const ModelAttention& attention : asked.attentions) {
        if (!known.insert(attention.request.spec).second) continue;
        work.specs.push_back(attention.request.spec);
        work.names.push_back(name_of(attention));
    }
    return work;
}

int count_kernels(const PrewarmWork& work, const std::vector<int>& sms, const engine::Settings& settings) {
    std::vector<PrewarmRefusal> refused;
    const families::TuningTable tuning = engine::load_tuning(settings.tuning_files);
    return static_cast<int>(engine::needed_kernels(work.specs, sms, tuning, refused).size());
}

std::string step_text(const PrewarmedKernel& kernel) {
    std::string text = fmt::format("{} sm {}: {}", kernel.name, kernel.sm, kernel.state);
    if (kernel.state == "compiled") text += fmt::format(" in {:.2f} s", kernel.milliseconds / 1000);
    return text;  // why one failed is said at the end, once for all that failed so
}

PrewarmReport compile_all(const RuntimeOptions& options, int jobs, const PrewarmWork& work,
                          const std::vector<int>& sms, Progress& progress, bool push, std::stop_token stop) {
    Runtime runtime(options);
    PrewarmOptions prewarm;
    prewarm.push = push;
    prewarm.jobs = jobs;
    prewarm.stop = std::move(stop);
    prewarm.progress = [&](const PrewarmedKernel& kernel, int done, int total) {
        progress.step(done, total, step_text(kernel), kernel.state != "hit");
    };
    prewarm.waiting = [&](const PrewarmedKernel& kernel) {
        progress.note(
            fmt::format("{} sm {}: waiting for another process that has it", kernel.name, kernel.sm));
    };
    return runtime.prewarm(work.specs, sms, prewarm);
}

Doubts doubts_of(const Asked& asked, const PrewarmWork& work, const PrewarmReport& report) {
    Doubts doubts(asked);
    doubts.add(report.unsupported, work.names);
    return doubts;
}

// The directory or bundle that each kernel lies in now, which may be a read-only layer; empty where none has
// it, as when it failed.
std::vector<std::string> places_of(const PrewarmReport& report, const engine::Settings& settings) {
    const cache::Store store(engine::store_options(settings));
    std::vector<std::string> places;
    for (const PrewarmedKernel& kernel : report.kernels) {
        const bool is_stored = kernel.state != "failed" && kernel.state != "cancelled";
        const auto key = is_stored ? cache::Digest::parse(kernel.key) : std::nullopt;
        const auto found = key ? store.candidates(*key) : std::vector<cache::Candidate>();
        places.push_back(found.empty() ? std::string() : settings.cache_dirs[found.front().layer]);
    }
    return places;
}

// The library's report, whose list of what is not supported knows specs by their place; here they have names,
// and a model's other parts and warnings stand beside them.
Json report_json(const PrewarmReport& report, const std::vector<std::string>& places, const Doubts& doubts) {
    Json json = problem::parse_ordered_json(to_json(report)).value();
    for (std::size_t i = 0; i < places.size(); ++i) {
        if (!places[i].empty()) json["kernels"][i]["directory"] = places[i];
    }
    json["summary"]["unsupported"] = doubts.refused.size();
    json["summary"]["ok"] = report.ok() && doubts.refused.empty();
    add_doubts(json, doubts);
    return json;
}

// One line for kernels that failed for one and the same reason, as they all do where there is no NVRTC.
std::string failures_text(const PrewarmReport& report) {
    std::map<std::string, std::vector<const PrewarmedKernel*>> by_reason;
    for (const PrewarmedKernel& kernel : report.kernels) {
        if (kernel.state == "failed") by_reason[kernel.error].push_back(&kernel);
    }
    std::vector<std::string> reasons;
    for (const auto& [reason, kernels] : by_reason) {
        reasons.push_back(
            fmt::format("{} for sm {}{}: {}", kernels.front()->name, kernels.front()->sm,
                        kernels.size() > 1 ? fmt::format(" and {} more", kernels.size() - 1) : "", reason));
    }
    return fmt::format("{}", fmt::join(reasons, "; "));
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

std::string summary_text(const PrewarmReport& report, const std::string& places) {
    std::string text =
        fmt::format("{}: {}, {} compiled", counted(static_cast<std::uint64_t>(report.total), "kernel"),
                    counted(static_cast<std::uint64_t>(report.hits), "hit"), report.compiled);
    if (report.remote > 0) text += fmt::format(", {} from a remote", report.remote);
    if (report.waited > 0) text += fmt::format(", {} compiled by others meanwhile", report.waited);
    if (report.pushed > 0) text += fmt::format(", {} pushed", report.pushed);
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
                                                      report.total, failures_text(report)));
    }
    if (watch.interrupted() && report.cancelled > 0) {
        troubles.insert(troubles.begin(), fmt::format("interrupted: {} of {} kernels were cancelled",
                                                      report.cancelled, report.total));
    }
    const int code = conclude(troubles);
    return code != kSuccess && watch.interrupted() ? watch.exit_code() : code;
}

int run_prewarm(const Command& command) {
    const Asked asked = read_asked(command);
    RuntimeOptions options = runtime_options(command);
    if (const auto key = command.text("sign-key")) {
        if (!command.has("push")) throw BadUsage("--sign-key is for --push, which is not given");
        (void)engine::read_sign_key("sign-key", *key);  // or it says why not, before anything is opened
        options.sign_key_file = *key;
    }
    options.on_miss = OnMiss::compile;  // whatever ATTNSMITH_ON_MISS says: this is what it is for
    const engine::Settings settings = cache_settings(command);
    const auto jobs = static_cast<int>(command.integer("jobs", 0, 1024, 0));
    const PrewarmWork work = distinct_specs(asked);
    const std::vector<int> sms = sms_or_present(command, asked.sms);
    if (command.has("dry-run")) return dry_run(command, asked, work.specs, work.names, sms);
    const bool as_json = command.has("json");
    Progress progress(as_json ? Progress::Elsewhere::nothing : Progress::Elsewhere::lines);
    options.log = [&](LogLevel level, std::string_view line) {
        progress.clear();
        settings.log(level, line);
    };
    const InterruptWatch watch("attnsmith: finishing what is being compiled; once more ends it at once\n");
    progress.begin(count_kernels(work, sms, settings), "compiling");
    const PrewarmReport report =
        compile_all(options, jobs, work, sms, progress, command.has("push"), watch.token());
    const Doubts doubts = doubts_of(asked, work, report);
    progress.clear();
    const std::vector<std::string> places = places_of(report, settings);
    if (as_json) {
        print_json(report_json(report, places, doubts));
    } else {
        print(summary_text(report, places_text(places, settings.cache_dirs)) + text_of(doubts));
    }
    return conclude_run(command, report, doubts, watch);
}

}  // namespace

void add_prewarm(Command& parent) {
    Command& command = parent.add_command("prewarm", "Compile a model's kernels into the cache; needs no GPU",
                                          kPrewarmDetails);
    command.add_switch("json", "print JSON");
    command.add_value("jobs", "N", "kernels to compile at a time; 0, the default, is the number of cores",
                      "Options", "j");
    command.add_switch("dry-run", "say what would be compiled, and what is in the cache; change nothing");
    add_doubt_flags(command);
    command.add_switch("push", "put to the remotes of --cache or ATTNSMITH_CACHE_DIR what they lack");
    command.add_value(
        "sign-key", "FILE",
        "the secret key that signs what is pushed (default: ATTNSMITH_CACHE_SIGN_KEY, else none)");
    command.add_switch("no-source", "leave the kernels' sources out of the entries");
    add_cache_flag(command);
    add_toolchain_flag(command);
    add_tuning_flag(command);
    add_request_flags(command);
    add_recorded_flag(command);
    command.on_run(run_prewarm);
}

}  // namespace attnsmith::cli
