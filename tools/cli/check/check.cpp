// attnsmith check: numerics on this machine's GPU against the fp64 reference.
#include "check/model_checks.hpp"

#include <fmt/format.h>
#include <sys/random.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "bench/standard_attentions.hpp"
#include "cli/asked/gpu.hpp"
#include "cli/asked/model_flags.hpp"
#include "cli/asked/runtime_flags.hpp"
#include "cli/commands.hpp"
#include "cli/outcome/conclude.hpp"
#include "cli/program/output.hpp"
#include "cli/program/progress.hpp"

namespace attnsmith::cli {
namespace {

using Json = nlohmann::ordered_json;
using check::CaseResult;
using check::Outcome;

constexpr const char* kCheckDetails =
    "Launches each attention of the models on fresh random data and compares with an fp64 reference.\n"
    "Without --model, a list of usual shapes. Errors are ratios to what is allowed: 1 is the limit.\n"
    "With --slots also what writes the models' caches, every bit of it.\n"
    "Exits 1 without a GPU, when a case failed, when a part of a model is not supported, or with\n"
    "--strict when its plan has a warning.\n\n"
    "Examples:\n"
    "  attnsmith check --model config.json\n"
    "  attnsmith check --filter decode --json";

struct NamedModel {
    std::string name;
    Model model;
};

struct NamedResult {
    std::string model;
    CaseResult result;
};

struct CheckReport {
    std::uint64_t seed = 0;
    std::vector<NamedResult> results;
    Doubts doubts;  // whose names and fields begin with the model's: "gemma/vision_config"
    double seconds = 0;

    std::size_t count(Outcome outcome) const {
        return static_cast<std::size_t>(std::ranges::count_if(
            results, [&](const NamedResult& one) { return one.result.outcome == outcome; }));
    }
};

std::vector<NamedModel> read_models(const Command& command) {
    std::vector<NamedModel> models;
    for (const std::string& path : command.texts("model")) {
        models.push_back({model_name(path), read_model(command, path)});
    }
    if (models.empty()) models.push_back({"standard", {"", bench::standard_attentions(), {}, {}}});
    return models;
}

// Leaves what "MODEL/ATTENTION" has the text in. Throws BadUsage when nothing is left.
void filter_models(std::vector<NamedModel>& models, const std::string& text) {
    bool any = false;
    for (NamedModel& named : models) {
        const auto differs = [&](const auto& part) {
            return (named.name + "/" + part.name).find(text) == std::string::npos;
        };
        std::erase_if(named.model.attentions, differs);
        std::erase_if(named.model.unsupported, differs);
        if (named.model.attentions.empty()) named.model.warnings.clear();
        any = any || !named.model.attentions.empty() || !named.model.unsupported.empty();
    }
    if (!any) throw BadUsage("--filter leaves nothing to check");
}

std::string_view word_of(Outcome outcome) {
    switch (outcome) {
        case Outcome::passed:
            return "passed";
        case Outcome::failed:
            return "failed";
        case Outcome::skipped:
            break;
    }
    return "skipped";
}

Json result_json(const NamedResult& one) {
    const CaseResult& result = one.result;
    return {{"model", one.model},
            {"name", result.name},
            {"phase", result.phase},
            {"outcome", word_of(result.outcome)},
            {"detail", result.detail},
            {"backend", result.backend},
            {"toolchain", result.toolchain},
            {"max_abs_error", result.max_abs_error},
            {"element_ratio", result.element_ratio},
            {"pooled_ratio", result.pooled_ratio},
            {"lse_ratio", result.lse_ratio},
            {"ms", result.milliseconds}};
}

Json report_json(const CheckReport& report, const driver::Device& device) {
    Json json = {{"schema", "attnsmith.check/1"}, {"seed", report.seed}};
    json["device"] = {{"name", device.name}, {"sm", device.sm}, {"sm_count", device.sm_count}};
    json["summary"] = {{"total", report.results.size()},
                       {"passed", report.count(Outcome::passed)},
                       {"failed", report.count(Outcome::failed)},
                       {"skipped", report.count(Outcome::skipped)},
                       {"unsupported", report.doubts.refused.size()},
                       {"seconds", report.seconds}};
    json["cases"] = Json::array();
    for (const NamedResult& one : report.results) json["cases"].push_back(result_json(one));
    add_doubts(json, report.doubts);
    return json;
}

void print_report(const CheckReport& report, const driver::Device& device) {
    print(fmt::format("{}, sm {}, seed {}\n", printable(device.name), device.sm, report.seed));
    Table table("<<<<>>>>");
    table.add({"model", "case", "outcome", "backend", "max error", "element", "pooled", "lse"});
    for (const auto& [model, result] : report.results) {
        table.add({printable(model), printable(result.name), std::string(word_of(result.outcome)),
                   result.backend, fmt::format("{:.2e}", result.max_abs_error),
                   fmt::format("{:.2f}", result.element_ratio), fmt::format("{:.2f}", result.pooled_ratio),
                   fmt::format("{:.2f}", result.lse_ratio)});
    }
    print(table.text());
    for (const auto& [model, result] : report.results) {
        if (!result.passed()) {
            print(fmt::format("{}  {}/{}: {}\n", word_of(result.outcome), printable(model),
                              printable(result.name), printable(result.detail)));
        }
    }
    print(text_of(report.doubts));
    print(fmt::format("{} passed, {} failed, {} skipped, {} unsupported; {:.1f} s\n",
                      report.count(Outcome::passed), report.count(Outcome::failed),
                      report.count(Outcome::skipped), report.doubts.refused.size(), report.seconds));
}

// Not std::random_device: GCC 12's would bind a command that brings its own libstdc++ to glibc 2.36. Without
// random bytes, which early in a machine's life may lack, the seed is 0: it is printed, and any serves.
std::uint32_t fresh_seed() {
    std::uint32_t seed = 0;
    return getrandom(&seed, sizeof seed, GRND_NONBLOCK) == static_cast<ssize_t>(sizeof seed) ? seed : 0;
}

CheckReport run_models(const Command& command, const std::vector<NamedModel>& models) {
    CheckReport report;
    report.seed = static_cast<std::uint64_t>(command.integer("seed", 0, INT64_MAX, fresh_seed()));
    const auto start = std::chrono::steady_clock::now();
    Runtime runtime(runtime_options(command));
    Progress progress(Progress::Elsewhere::nothing);
    for (const auto& [name, model] : models) {
        for (const UnsupportedPart& part : model.unsupported) {
            report.doubts.refused.push_back(refused(name + "/" + part.name, part.reason));
        }
        for (const ModelWarning& warning : model.warnings)
            report.doubts.warnings.push_back({warning.kind, name + "/" + warning.field, warning.text});
        progress.begin(static_cast<int>(model.attentions.size()), name);
        const auto on_case = [&, &name = name](const CaseResult& result, int done, int total) {
            progress.step(done, total, fmt::format("{}/{}", name, result.name));
        };
        for (CaseResult& result : check::run_model_checks(runtime, model, {.seed = report.seed}, on_case)) {
            report.results.push_back({name, std::move(result)});
        }
    }
    report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return report;
}

int run_check(const Command& command) {
    std::vector<NamedModel> models = read_models(command);
    if (const auto filter = command.text("filter")) filter_models(models, *filter);
    const Gpus gpus = require_gpus(command);
    const driver::Device& device = gpus.devices[static_cast<std::size_t>(driver::current_device(*gpus.api))];
    const CheckReport report = run_models(command, models);
    if (command.has("json")) {
        print_json(report_json(report, device));
    } else {
        print_report(report, device);
    }
    std::vector<std::string> troubles = failing_doubts(command, report.doubts);
    if (const auto failed = report.count(Outcome::failed); failed > 0) {
        troubles.insert(troubles.begin(),
                        fmt::format("{} of {} cases failed", failed, report.results.size()));
    }
    return conclude(troubles);
}

}  // namespace

void add_check(Command& parent) {
    Command& command = parent.add_command(
        "check", "Compare the kernels with an fp64 reference on this machine's GPU", kCheckDetails);
    command.add_switch("json", "print JSON");
    add_doubt_flags(command);
    command.add_value("seed", "N", "of the random data (default: a new one)");
    command.add_value("filter", "TEXT", "only attentions that have TEXT in MODEL/ATTENTION");
    add_cache_flag(command);
    add_toolchain_flag(command);
    add_tuning_flag(command);
    add_model_flags(command, {.several_models = true});
    command.on_run(run_check);
}

}  // namespace attnsmith::cli
