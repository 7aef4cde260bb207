#include "cli/prewarm/run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "cli/asked/runtime_flags.hpp"
#include "cli/outcome/conclude.hpp"
#include "cli/program/interrupt.hpp"
#include "cli/program/output.hpp"
#include "cli/program/progress.hpp"
#include "cubins/needed_kernels.hpp"
#include "engine/runtime_impl.hpp"
#include "engine/tuning_files.hpp"
#include "reports/report_json.hpp"
#include "settings/environment.hpp"
#include "settings/signing_keys.hpp"

namespace attnsmith::cli {
namespace {

int count_kernels(const Asked& asked, const std::vector<int>& sms, const engine::Settings& settings) {
    std::vector<PrewarmRefusal> refused;
    const families::TuningTable tuning = engine::load_tuning(settings.tuning_files);
    return static_cast<int>(engine::needed_kernels(asked.specs(), sms, tuning, refused).size());
}

std::string step_text(const PrewarmedKernel& kernel) {
    std::string text = fmt::format("{} sm {}: {}", kernel.name, kernel.sm, to_string(kernel.state));
    if (kernel.state == PrewarmState::compiled)
        text += fmt::format(" in {:.2f} s", kernel.milliseconds / 1000);
    return text;  // why one failed is said at the end, once for all that failed so
}

PrewarmReport run_with_progress(PrewarmRun run, const Asked& asked, const std::vector<int>& sms,
                                Progress& progress, std::stop_token stop) {
    Runtime runtime(run.runtime);
    if (!run.options.compile) engine::impl_of(runtime).cubins.remotes().require_used();
    run.options.stop = std::move(stop);
    run.options.progress = [&](const PrewarmedKernel& kernel, int done, int total) {
        progress.step(done, total, step_text(kernel), kernel.state != PrewarmState::hit);
    };
    run.options.waiting = [&](const PrewarmedKernel& kernel) {
        progress.note(
            fmt::format("{} sm {}: waiting for another process that has it", kernel.name, kernel.sm));
    };
    return runtime.prewarm(asked, sms, run.options);
}

// A line for each, as one reads and repairs them.
std::string missing_text(const PrewarmReport& report) {
    std::string text;
    for (const PrewarmedKernel& kernel : report.kernels) {
        if (kernel.state == PrewarmState::missing)
            text += fmt::format("missing  {} sm {} ({}): {}\n", printable(kernel.name), kernel.sm, kernel.key,
                                printable(kernel.error));
    }
    return text;
}

// "in /kernels"; of several how many are in each: "2 in /kernels, 4 in /layer".
std::string places_text(const std::vector<PrewarmedKernel>& kernels, const std::vector<std::string>& order) {
    std::vector<std::string> texts, only;
    for (const std::string& place : order) {
        const auto count = std::ranges::count(kernels, place, &PrewarmedKernel::directory);
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

int run_prewarm(const Command& command, const Asked& asked, const std::vector<int>& sms, PrewarmRun run) {
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
    progress.begin(count_kernels(asked, sms, settings), run.doing);
    const PrewarmReport report = run_with_progress(std::move(run), asked, sms, progress, watch.token());
    const Doubts doubts(report);
    progress.clear();
    if (as_json) {
        print_json(compiles ? to_json(report) : engine::pull_json(report));
    } else {
        const std::string places = places_text(report.kernels, settings.cache_dirs);
        print(missing_text(report) + summary_text(report, compiles, places) + text_of(doubts));
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
