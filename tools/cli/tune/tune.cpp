// attnsmith tune: measures which tiles are the best on this machine's GPU, and writes them into a table.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "bench/attention_inputs.hpp"
#include "bench/standard_attentions.hpp"
#include "bench/tile_speeds.hpp"
#include "cli/asked/asked.hpp"
#include "cli/asked/gpu.hpp"
#include "cli/asked/runtime_flags.hpp"
#include "cli/commands.hpp"
#include "cli/outcome/conclude.hpp"
#include "cli/outcome/refused.hpp"
#include "cli/program/files.hpp"
#include "cli/program/interrupt.hpp"
#include "cli/program/output.hpp"
#include "cli/program/progress.hpp"
#include "cli/tune/report.hpp"
#include "engine/runtime_impl.hpp"
#include "families/registry/registry.hpp"
#include "planner/tuning_json.hpp"
#include "problem/json_text.hpp"
#include "settings/environment.hpp"

namespace attnsmith::cli {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;
using families::TuningMatch;
using planner::MeasuredEntry;

constexpr const char* kTuneDetails =
    "Times the kernels with every tile that they could have, for the attention of a request, those of a\n"
    "model, or a list of usual ones.\n"
    "Of the usual ones short sequences, up to 1024 packed query rows (q_len times the query heads to each\n"
    "KV head), have tiles of their own; --max-rows N finds such a tile for a request of up to N rows.\n"
    "So have decodes, of up to 16 rows: their entries hold for any mask, and --decode measures them alone.\n"
    "--output writes the best of each as a tuning table (schema attnsmith.tuning/1): entries for other\n"
    "attentions stay as they are in FILE. --tuning FILE, or ATTNSMITH_TUNING, lets planning go by it.\n"
    "Needs a GPU. Ctrl-C writes nothing, no JSON either (exit code 130). Exits 1 when something could not be "
    "measured; the\n"
    "rest is written all the same.\n\n"
    "Examples:\n"
    "  attnsmith tune --output tuning.json\n"
    "  attnsmith tune --head-dim 72 --q-heads 16 --mask causal --output tuning.json\n"
    "  attnsmith tune --head-dim 64 --q-heads 16 --batch 32 --q-len 512 --kv-len 512 --max-rows 1024\n"
    "  attnsmith tune --decode --model config.json --output tuning.json";

constexpr std::int64_t kDefaultSeconds = 540;

// What is to be measured, whatever the GPU.
struct Shape {
    std::string name;
    problem::Problem problem;
    std::optional<int> max_rows;

    bool decodes() const { return bench::phase_of(problem) == families::Phase::decode; }
};

// What is left open holds for more than was measured: dtypes run at one rate, and a tile for plain logits is
// the next best for others. Decode's keys are loaded alike with any mask.
TuningMatch class_of(const Shape& shape, int sm) {
    TuningMatch match = families::match_of(shape.problem.spec, sm);
    match.max_rows = shape.max_rows;
    match.dtype.reset();
    if (shape.decodes()) match.mask.reset();
    if (match.softcap == false) match.softcap.reset();
    if (match.alibi == false) match.alibi.reset();
    if (match.gathered == false) match.gathered.reset();
    return match;
}

void require_rows(const Shape& shape) {
    const std::int64_t rows = shape.problem.sizes.q_len * shape.problem.group_size();
    if (!shape.max_rows || rows <= *shape.max_rows) return;
    throw InvalidRequest(
        "max_rows", std::to_string(*shape.max_rows),
        fmt::format(
            "at least {}, the packed query rows of what is measured: q_len {}, {} query heads, {} KV heads",
            rows, shape.problem.sizes.q_len, shape.problem.spec.q_heads, shape.problem.spec.kv_heads));
}

// Decode has a bound of its own, whatever the one of prefills is.
Shape shape_of(const ModelAttention& attention, std::optional<int> max_rows) {
    const auto& [spec, sizes, sms] = attention.request;
    if (spec.op != Op::attention) throw InvalidRequest("op", std::string(to_string(spec.op)), "attention");
    Shape shape{name_of(attention), problem::validate(spec, sizes), max_rows};
    if (shape.decodes()) shape.max_rows = families::kDecodeRows;
    return shape;
}

struct TuneWork {
    std::vector<Shape> shapes;
    Doubts doubts;
    std::vector<int> sms;
};

// Every attention that is asked for.
TuneWork all_work(const Command& command) {
    TuneWork work;
    if (!has_request(command)) {
        if (command.has("max-rows"))
            throw BadUsage(
                "--max-rows is for a request or a model: the usual attentions have bounds of their own");
        for (const auto& [attention, max_rows] : bench::tuning_attentions())
            work.shapes.push_back(shape_of(attention, max_rows));
        return work;
    }
    std::optional<int> max_rows;
    if (command.has("max-rows"))
        max_rows = static_cast<int>(command.integer("max-rows", 1, std::numeric_limits<int>::max(), 1));
    Asked asked = read_asked(command, bench::tuning_sizes());
    // Tables have tiles of op attention; a model's other ops are planned without.
    if (command.has("model"))
        std::erase_if(asked.attentions, [&](const ModelAttention& attention) {
            if (attention.request.spec.op == Op::attention) return false;
            asked.unsupported.push_back(
                {name_of(attention), "tuning tables have tiles of op attention alone"});
            return true;
        });
    for (const ModelAttention& attention : asked.attentions) {
        work.shapes.push_back(shape_of(attention, max_rows));
        require_rows(work.shapes.back());
        if (max_rows && work.shapes.back().max_rows != max_rows && !command.has("model"))
            throw InvalidRequest(
                "max_rows", std::to_string(*max_rows),
                fmt::format("{}, which is every decode's, or a request of more rows", families::kDecodeRows));
    }
    work.doubts = Doubts(asked);
    work.sms = std::move(asked.sms);
    return work;
}

TuneWork work_of(const Command& command) {
    TuneWork work = all_work(command);
    if (!command.has("decode")) return work;
    std::erase_if(work.shapes, [](const Shape& shape) { return !shape.decodes(); });
    if (work.shapes.empty())
        throw BadUsage(
            fmt::format("--decode is for attentions of up to {} packed query rows (q_len times the query "
                        "heads to each KV head), of which none is asked for",
                        families::kDecodeRows));
    return work;
}

// Each class once, with the attention that has the most to compute.
std::vector<TuningClass> classes_of(const std::vector<Shape>& shapes, const families::DeviceTraits& device,
                                    std::vector<PrewarmRefusal>& refusals) {
    std::vector<TuningClass> classes;
    for (const Shape& shape : shapes) {
        if (const auto reason = bench::tuning_refusal(shape.problem, device)) {
            refusals.push_back(refused(shape.name, *reason));
            continue;
        }
        const TuningMatch match = class_of(shape, device.sm);
        const auto known = std::ranges::find(classes, match, &TuningClass::match);
        if (known == classes.end()) {
            classes.push_back({match, shape.problem});
        } else if (bench::attention_flops(shape.problem) > bench::attention_flops(known->problem)) {
            known->problem = shape.problem;
        }
    }
    return classes;
}

MeasuredEntry entry_of(const TuningClass& of, const bench::TileSpeed& best,
                       const families::DeviceTraits& device) {
    const auto& [spec, sizes] = of.problem;
    nlohmann::json measured = {{"device", device.name},     {"toolchain", best.toolchain},
                               {"batch", sizes.batch},      {"q_len", sizes.q_len},
                               {"kv_len", sizes.kv_len},    {"q_heads", spec.q_heads},
                               {"kv_heads", spec.kv_heads}, {"tflops", std::round(best.tflops * 10) / 10}};
    if (of.match.paged) measured["page_size"] = spec.page_size;
    return {{.match = of.match,
             .tile = {.backend = best.kernel.backend(),
                      .tile_q = best.kernel.tile_q(),
                      .tile_kv = best.kernel.tile_kv(),
                      .stages = best.kernel.stages()}},
            problem::one_line(measured)};
}

// The entries of the file that is to be written, if there is one.
std::vector<MeasuredEntry> old_entries(const Command& command) {
    const auto path = command.text("output");
    if (!path) return {};
    require_writable(*path);
    if (!std::filesystem::exists(*path)) return {};
    return planner::parse_tuning(read_text(*path), *path, families::TileSource::user);
}

void replace(std::vector<MeasuredEntry>& entries, const MeasuredEntry& entry) {
    const auto known = std::ranges::find(entries, entry.match, &MeasuredEntry::match);
    if (known == entries.end()) {
        entries.push_back(entry);
    } else {
        *known = entry;
    }
}

struct Tuned {
    std::vector<MeasuredEntry> entries;
    std::size_t left_out = 0;  // when the time was up
};

RuntimeOptions tuning_options(const Command& command, Progress& progress) {
    RuntimeOptions options = runtime_options(command);
    const engine::Settings settings = engine::settle(options);
    // Much of all that a kernel could be spills: the report says so, where it is not the log's business.
    if (settings.log_level == LogLevel::warn) options.log_level = LogLevel::error;
    options.log = [&progress, log = settings.log](LogLevel level, std::string_view line) {
        progress.clear();
        log(level, line);
    };
    return options;
}

// `options` have the deadline of all classes. `report` takes what is printed otherwise, if it is given.
Tuned tune(Runtime& runtime, const std::vector<TuningClass>& classes, const families::DeviceTraits& device,
           const bench::TileSpeedOptions& options, Progress& progress, std::vector<PrewarmRefusal>& refusals,
           Json* report) {
    Tuned tuned;
    for (std::size_t i = 0; i < classes.size(); ++i) {
        const auto now = Clock::now();
        if (now > options.deadline) {
            tuned.left_out = classes.size() - i;
            break;
        }
        progress.step(static_cast<int>(i), static_cast<int>(classes.size()), text_of(classes[i].match));
        bench::TileSpeedOptions of_class = options;
        of_class.deadline = now + (options.deadline - now) / static_cast<int>(classes.size() - i);
        const std::vector<bench::TileSpeed> speeds =
            bench::measure_tiles(runtime, classes[i].problem, of_class);
        if (options.stop.stop_requested()) break;
        progress.clear();
        if (report == nullptr) {
            print(speeds_text(classes[i], speeds));
        } else {
            (*report)["classes"].push_back(speeds_json(classes[i], speeds));
        }
        if (const bench::TileSpeed& best = speeds.front(); best.failure.empty()) {
            tuned.entries.push_back(entry_of(classes[i], best, device));
        } else {
            refusals.push_back(refused(text_of(classes[i].match), best.failure));
        }
    }
    return tuned;
}

int run_tune(const Command& command) {
    TuneWork asked = work_of(command);
    const std::chrono::seconds budget(command.integer("seconds", 1, 86400, kDefaultSeconds));
    std::vector<MeasuredEntry> entries = old_entries(command);
    const Gpus gpus = require_gpus(command);
    const InterruptWatch watch("attnsmith: stopping\n");
    Progress progress(Progress::Elsewhere::nothing);
    Runtime runtime(tuning_options(command, progress));
    const families::DeviceTraits device =
        engine::impl_of(runtime).traits(engine::impl_of(runtime).ordinal_of(kCurrentDevice));
    for (const int sm : asked.sms) {
        if (sm != device.sm)
            throw InvalidRequest("sm", std::to_string(sm), fmt::format("{}, this machine's GPU", device.sm));
    }
    const std::vector<TuningClass> classes = classes_of(asked.shapes, device, asked.doubts.refused);
    Json report = tune_json(device);
    const bool as_json = command.has("json");
    const Tuned tuned =
        tune(runtime, classes, device, {command.has("quick"), Clock::now() + budget, watch.token()}, progress,
             asked.doubts.refused, as_json ? &report : nullptr);
    if (watch.interrupted()) {
        print_error("interrupted: nothing is written");
        return watch.exit_code();
    }
    for (const MeasuredEntry& entry : tuned.entries) replace(entries, entry);
    if (const auto path = command.text("output"); path && !tuned.entries.empty()) {
        write_text(*path, planner::to_json(entries));
        report["file"] = *path;
        report["file_entries"] = entries.size();
        if (!as_json)
            print(fmt::format("{}: {}, {} measured now\n", printable(*path),
                              counted(entries.size(), "entry", "entries"), tuned.entries.size()));
    }
    if (as_json) {
        report["left_out"] = tuned.left_out;
        add_doubts(report, asked.doubts);
        print_json(report);
    } else {
        print(text_of(asked.doubts));
    }
    std::vector<std::string> troubles = failing_doubts(command, asked.doubts);
    if (tuned.left_out > 0)
        troubles.insert(troubles.begin(),
                        fmt::format("{} of {} were left out when the time was up; give more --seconds",
                                    tuned.left_out, classes.size()));
    return conclude(troubles);
}

}  // namespace

void add_tune(Command& parent) {
    Command& command =
        parent.add_command("tune", "Measure which tiles are the best on this machine's GPU", kTuneDetails);
    command.add_switch("json", "print JSON, when all is measured");
    command.add_output("FILE", "the tuning table to write, or to add to", "out");
    command.add_value(
        "max-rows", "N",
        fmt::format("write entries for up to N packed query rows of a sequence and KV head (default: any; "
                    "decode's are for up to {})",
                    families::kDecodeRows));
    command.add_switch("decode", fmt::format("measure nothing but attentions of up to {} packed query rows",
                                             families::kDecodeRows));
    command.add_switch("quick", "fewer tiles and rounds");
    command.add_value("seconds", "N", fmt::format("time for all of it (default {})", kDefaultSeconds));
    add_cache_flag(command);
    add_request_flags(command, bench::tuning_sizes());
    command.on_run(run_tune);
}

}  // namespace attnsmith::cli
