// attnsmith prewarm: compiles into the cache whatever planning could choose.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "cli/asked.hpp"
#include "cli/commands.hpp"
#include "cli/gpu.hpp"
#include "cli/interrupt.hpp"
#include "cli/output.hpp"
#include "cli/progress.hpp"
#include "cli/refused.hpp"
#include "cli/warnings.hpp"
#include "engine/environment.hpp"
#include "planner/plan.hpp"

namespace attnsmith::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kDetails =
    "Needs no GPU. Compiles every kernel that could be chosen for the problem, whatever its lengths, into\n"
    "the cache; what is there already is left alone. Ctrl-C finishes what is being compiled and cancels\n"
    "the rest (exit code 130). Exits 1 when a kernel failed or a part of a model is not supported, or with\n"
    "--strict when its plan has a warning; the others are in the cache all the same.\n\n"
    "Examples:\n"
    "  attnsmith prewarm --model config.json --sm 80,90 --cache kernels --jobs 2\n"
    "  attnsmith prewarm --head-dim 128 --q-heads 32 --kv-heads 8 --mask causal --sm 90 --json";

// Each spec once, with the name of the first attention that has it.
struct Work {
    std::vector<AttentionSpec> specs;
    std::vector<std::string> names;
};

Work distinct_specs(const Asked& asked) {
    Work work;
    for (const ModelAttention& attention : asked.attentions) {
        if (std::ranges::find(work.specs, attention.request.spec) != work.specs.end()) continue;
        work.specs.push_back(attention.request.spec);
        work.names.push_back(name_of(attention));
    }
    return work;
}

std::string step_text(const PrewarmedKernel& kernel) {
    std::string text = fmt::format("{} sm {}: {}", kernel.name, kernel.sm, kernel.state);
    if (kernel.state == "compiled") text += fmt::format(" in {:.2f} s", kernel.milliseconds / 1000);
    if (kernel.state == "failed") text += ": " + kernel.error;
    return text;
}

PrewarmReport compile_all(const Command& command, const RuntimeOptions& options, const Work& work,
                          const std::vector<int>& sms, Progress& progress, std::stop_token stop) {
    Runtime runtime(options);
    PrewarmOptions prewarm;
    prewarm.jobs = static_cast<int>(command.integer("jobs", 1, 1024, 0));
    prewarm.stop = std::move(stop);
    prewarm.progress = [&](const PrewarmedKernel& kernel, int done, int total) {
        progress.step(done, total, step_text(kernel));
    };
    prewarm.waiting = [&](const PrewarmedKernel& kernel) {
        progress.note(
            fmt::format("{} sm {}: waiting for another process that has it", kernel.name, kernel.sm));
    };
    return runtime.prewarm(work.specs, sms, prewarm);
}

std::vector<Refused> all_refused(const Asked& asked, const Work& work, const PrewarmReport& report) {
    std::vector<Refused> refused = refused_parts(asked.unsupported);
    for (const PrewarmRefusal& one : report.unsupported)
        refused.push_back({work.names[one.spec], one.reason, one.sm});
    return refused;
}

// The library's report, whose list of what is not supported knows specs by their place; here they have names,
// and a model's other parts and warnings stand beside them.
Json report_json(const PrewarmReport& report, const std::vector<Refused>& refused,
                 const std::vector<ModelWarning>& warnings) {
    Json json = Json::parse(to_json(report));
    json["summary"]["unsupported"] = refused.size();
    json["unsupported"] = to_json(refused);
    json["warnings"] = to_json(warnings);
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

std::string summary_text(const PrewarmReport& report, const std::string& directory) {
    std::string text =
        fmt::format("{} kernels: {} hits, {} compiled", report.total, report.hits, report.compiled);
    if (report.waited > 0) text += fmt::format(", {} compiled by others meanwhile", report.waited);
    if (report.failed > 0) text += fmt::format(", {} failed", report.failed);
    if (report.cancelled > 0) text += fmt::format(", {} cancelled", report.cancelled);
    return text + fmt::format("; {:.1f} s, in {}\n", report.seconds, printable(directory));
}

// Says what is left undone.
int conclude(const PrewarmReport& report, const std::vector<Refused>& refused, std::string strict,
             bool interrupted) {
    std::vector<std::string> troubles;
    if (report.failed > 0) {
        troubles.push_back(
            fmt::format("{} of {} kernels failed: {}", report.failed, report.total, failures_text(report)));
    }
    if (!refused.empty()) troubles.push_back(summary_of(refused));
    if (!strict.empty()) troubles.push_back(std::move(strict));
    if (interrupted) {
        troubles.insert(troubles.begin(), fmt::format("interrupted: {} of {} kernels were cancelled",
                                                      report.cancelled, report.total));
    }
    if (troubles.empty()) return kSuccess;
    print_error(fmt::format("{}", fmt::join(troubles, "; ")));
    return interrupted ? kInterrupted : kFailure;
}

int run_prewarm(const Command& command) {
    const Asked asked = read_asked(command);
    RuntimeOptions options = runtime_options(command);
    const engine::Settings settings = cache_settings(command);
    const Work work = distinct_specs(asked);
    const std::vector<int> sms = sms_or_present(asked.sms);
    const bool as_json = command.has("json");
    Progress progress(as_json ? Progress::Elsewhere::nothing : Progress::Elsewhere::lines);
    options.log = [&](LogLevel level, std::string_view line) {
        progress.clear();
        settings.log(level, line);
    };
    const InterruptWatch watch("attnsmith: finishing what is being compiled; once more ends it at once\n");
    const PrewarmReport report = compile_all(command, options, work, sms, progress, watch.token());
    const std::vector<Refused> refused = all_refused(asked, work, report);
    progress.clear();
    if (as_json) {
        print_json(report_json(report, refused, asked.warnings));
    } else {
        print(summary_text(report, settings.cache_dirs.front()) + list_text(refused) +
              list_text(asked.warnings));
    }
    return conclude(report, refused, strict_trouble(command, asked.warnings), watch.interrupted());
}

}  // namespace

void add_prewarm(Command& parent) {
    Command& command =
        parent.add_command("prewarm", "Compile a model's kernels into the cache; needs no GPU", kDetails);
    command.add_switch("json", "print JSON");
    add_strict_flag(command);
    command.add_value("jobs", "N", "kernels to compile at a time (default: the number of cores)");
    command.add_switch("no-source", "leave the kernels' sources out of the entries");
    add_cache_flag(command);
    add_toolchain_flag(command);
    add_tuning_flag(command);
    add_request_flags(command);
    command.on_run(run_prewarm);
}

}  // namespace attnsmith::cli
