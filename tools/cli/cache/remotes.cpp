// attnsmith cache push and pull: kernels to and from the remote layers of a cache.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "cli/asked/asked.hpp"
#include "cli/asked/field_flags.hpp"
#include "cli/asked/gpu.hpp"
#include "cli/asked/model_flags.hpp"
#include "cli/asked/runtime_flags.hpp"
#include "cli/cache/commands.hpp"
#include "cli/outcome/conclude.hpp"
#include "cli/prewarm/run.hpp"
#include "cli/program/interrupt.hpp"
#include "cli/program/output.hpp"
#include "cli/program/progress.hpp"
#include "cubins/remotes.hpp"
#include "reports/unreadable.hpp"

namespace attnsmith::cli {
namespace {

// Whether kernels are asked for, by more than their SMs.
bool asks_for_kernels(const Command& command) {
    if (command.has("model") || command.has("request") || command.has("recorded")) return true;
    const auto fields = given_fields(command);
    return !std::ranges::all_of(fields, [](const auto* field) { return is_of_device(*field); });
}

// What is to be pushed.
CachePushOptions read_push(const Command& command) {
    CachePushOptions options;
    if (!asks_for_kernels(command)) {
        for (const char* flag : {"tensor-parallel", "strict", "allow-unsupported"}) {
            if (command.has(flag)) throw BadUsage(fmt::format("--{} is for --model", flag));
        }
        refuse_engine_without_model(command);
        if (command.has("sm")) options.sms = sms_or_present(command, read_sms(command));
        return options;
    }
    const Asked asked = read_asked(command);
    if (!asked.sms.empty() || command.has("sm")) options.sms = sms_or_present(command, asked.sms);
    options.coverage = asked;
    return options;
}

std::string pushed_step_text(const CachePushedEntry& entry) {
    return fmt::format("{} sm {}, toolchain {}: {}", entry.name.empty() ? entry.key : entry.name, entry.sm,
                       entry.toolchain, to_string(entry.state));  // why one failed is said at the end
}

std::string pushed_text(const CachePushReport& report) {
    std::string text;
    for (const auto& [name, sm, key] : report.missing)
        text += fmt::format("missing  {} sm {} ({}): it is not in the cache\n", printable(name), sm, key);
    text += fmt::format("{}: {} pushed, {}, {} there already",
                        printable(fmt::format("{}", fmt::join(report.remotes, ", "))),
                        entries_text(report.pushed), human_bytes(report.bytes), report.present);
    if (report.failed > 0) text += fmt::format(", {} failed", report.failed);
    if (report.cancelled > 0) text += fmt::format(", {} cancelled", report.cancelled);
    if (!report.missing.empty()) text += fmt::format(", {} missing", report.missing.size());
    if (!report.signed_by.empty()) text += fmt::format("; signed by key {}", report.signed_by);
    return text + fmt::format("; {:.1f} s\n", report.seconds);
}

int conclude_push(const Command& command, const CachePushReport& report, const Doubts& doubts,
                  const InterruptWatch& watch) {
    std::vector<std::string> troubles;
    const std::size_t total = report.entries.size();
    if (watch.interrupted() && report.cancelled > 0)
        troubles.push_back(
            fmt::format("interrupted: {} of {} entries were cancelled", report.cancelled, total));
    if (report.failed > 0) {
        troubles.push_back(
            fmt::format("{} of {} entries failed: {}", report.failed, total, failures_text(report.entries)));
    }
    if (!report.missing.empty()) {
        troubles.push_back(
            fmt::format("{} of the kernels that are asked for are not in the cache (attnsmith "
                        "prewarm makes them)",
                        report.missing.size()));
    }
    if (!report.bad.empty()) {
        const CacheBadEntry& first = report.bad.front();
        troubles.push_back(fmt::format("{} bad entries were left out, the first: {} ({})", report.bad.size(),
                                       first.path, first.reason));
    }
    if (!report.unreadable.empty()) troubles.push_back(engine::unreadable_text(report.unreadable));
    for (std::string& doubt : failing_doubts(command, doubts)) troubles.push_back(std::move(doubt));
    const int code = conclude(troubles);
    return code != kSuccess && watch.interrupted() ? watch.exit_code() : code;
}

int run_push(const Command& command) {
    CachePushOptions push = read_push(command);
    RuntimeOptions options = runtime_options(command);
    read_sign_key_flag(command, options);
    const engine::Settings settings = settings_with_remote(command);
    require_what_cache_names(command);
    tell_of_missing_layers(std::span(settings.cache_dirs).subspan(1));
    const bool as_json = command.has("json");
    Progress progress(as_json ? Progress::Elsewhere::nothing : Progress::Elsewhere::lines);
    options.log = [&](LogLevel level, std::string_view line) {
        progress.clear();
        settings.log(level, line);
    };
    const InterruptWatch watch("attnsmith: stopping; once more ends it at once\n");
    push.stop = watch.token();
    push.progress = [&](const CachePushedEntry& entry, int done, int total) {
        progress.step(done, total, pushed_step_text(entry));
    };
    const CachePushReport report = Runtime(options).cache().push(push);
    progress.clear();
    const Doubts doubts(report);
    if (as_json) {
        print_json(to_json(report));
    } else {
        print(pushed_text(report) + text_of(doubts));
    }
    return conclude_push(command, report, doubts, watch);
}

int run_pull(const Command& command) {
    if (!asks_for_kernels(command)) {
        throw BadUsage(
            "nothing is asked for: a remote says of a kernel whether it has it, and cannot list what it has; "
            "give --model FILE, --request FILE, --recorded FILE or a request by flags (--q-heads, ...)");
    }
    const Asked asked = read_asked(command);
    PrewarmRun run{.runtime = runtime_options(command),
                   .options = {},
                   .doing = "pulling",
                   .when_interrupted = "attnsmith: stopping; once more ends it at once\n"};
    run.options.compile = false;
    (void)settings_with_remote(command);
    return run_prewarm(command, asked, sms_or_present(command, asked.sms), std::move(run));
}

}  // namespace

void add_push(Command& cache) {
    Command& command = add_cache_command(
        cache, "push", "Put kernels of the cache to its remotes",
        "Remotes are the http://, https:// and s3:// addresses behind the cache directory. Puts there all\n"
        "entries of the directory and its layers that a remote lacks, or with a model, a request or what\n"
        "programs recorded (--recorded) those that it needs. Compiles nothing and needs no NVRTC: a\n"
        "kernel that is not in the cache is named, and `attnsmith prewarm --push` compiles and pushes in\n"
        "one. What is there and signed by the same key stays, so that a second push puts nothing, and one\n"
        "that was interrupted goes on. Ctrl-C cancels what is not there yet (exit code 130). Exits 1 when\n"
        "an entry could not be pushed, is broken, or is missing; the others are there.\n\n"
        "Examples:\n"
        "  attnsmith cache push --cache kernels --cache https://cache.example/kernels --sign-key release.key "
        "--trust-key release.key.pub\n"
        "  attnsmith cache push --cache kernels --cache https://cache.example/kernels --sign-key release.key "
        "--trust-key release.key.pub --model config.json --sm 80,90 --json",
        run_push);
    add_sign_key_flag(command);
    add_doubt_flags(command);
    add_tuning_flag(command);
    add_request_flags(command);
    add_engine_flag(command);
    add_recorded_flag(command);
}

void add_pull(Command& cache) {
    Command& command = add_cache_command(
        cache, "pull", "Fetch a model's kernels from the cache's remotes",
        "Remotes are the http://, https:// and s3:// addresses behind the cache directory, which takes\n"
        "what is fetched. Takes a model, a request or what programs recorded (--recorded), as prewarm\n"
        "does, but compiles nothing and needs no NVRTC: a kernel that neither the cache nor a remote has\n"
        "is named. Ctrl-C cancels what is not there yet (exit code 130); entries are whole or not there.\n"
        "Exits 1 when a kernel is missing or could not be fetched, or a part of a model is not supported;\n"
        "the others are in the cache.\n\n"
        "Example:\n"
        "  attnsmith cache pull --cache kernels --cache https://cache.example/kernels --trust-key "
        "release.key.pub --model config.json --sm 90",
        run_pull);
    add_toolchain_flag(command);
    add_doubt_flags(command);
    add_tuning_flag(command);
    add_request_flags(command);
    add_engine_flag(command);
    add_recorded_flag(command);
}

}  // namespace attnsmith::cli
