// attnsmith bench: what things cost on this machine.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "bench/attention_speed.hpp"
#include "bench/cache_costs.hpp"
#include "bench/jit.hpp"
#include "bench/standard_attentions.hpp"
#include "bench/statistics.hpp"
#include "cli/asked/asked.hpp"
#include "cli/asked/field_flags.hpp"
#include "cli/asked/model_flags.hpp"
#include "cli/asked/runtime_flags.hpp"
#include "cli/commands.hpp"
#include "cli/outcome/conclude.hpp"
#include "cli/program/interrupt.hpp"
#include "cli/program/output.hpp"
#include "cli/program/progress.hpp"

namespace attnsmith::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kJitDetails =
    "Compiles every kernel of the model, or of a list of usual shapes, with all caches off. With a GPU\n"
    "also: from a kernel on disk to a handle that can be launched (NVRTC not loaded), looking up a\n"
    "known problem, and the host time of a launch beside a bare cuLaunchKernelEx of the same kernel.\n\n"
    "Example:\n"
    "  attnsmith bench jit --sm 90 --model config.json --repeat 1 --json";

std::vector<double> all_times(const auto& timings) {
    std::vector<double> all;
    for (const auto& timing : timings) all.insert(all.end(), timing.ms.begin(), timing.ms.end());
    return all;
}

Json times_json(const std::vector<double>& ms) {
    return {{"median_ms", bench::median(ms)}, {"worst_ms", bench::worst(ms)}, {"samples", ms.size()}};
}

Json compile_json(const bench::CompileTimings& compile) {
    Json json = {{"sm", compile.sm},
                 {"nvrtc", compile.nvrtc_path},
                 {"toolchain", compile.toolchain},
                 {"open_ms", compile.open_ms}};
    json.update(times_json(all_times(compile.kernels)));
    json["kernels"] = Json::array();
    for (const bench::CompileTiming& kernel : compile.kernels) {
        Json one = {{"name", kernel.name}, {"target", kernel.target}};
        one.update(times_json(kernel.ms));
        json["kernels"].push_back(std::move(one));
    }
    return json;
}

Json handles_json(const bench::DeviceTimings& device) {
    Json json = times_json(all_times(device.handles));
    json["nvrtc_loaded"] = device.nvrtc_loaded;
    json["problems"] = Json::array();
    for (const bench::HandleTiming& handle : device.handles) {
        Json one = {{"name", handle.name}, {"kernels", handle.kernels}};
        one.update(times_json(handle.ms));
        json["problems"].push_back(std::move(one));
    }
    return json;
}

Json report_json(const bench::JitReport& report, const Doubts& doubts) {
    Json json = {{"schema", "attnsmith.bench-jit/1"}, {"cores", std::thread::hardware_concurrency()}};
    json["compile"] = compile_json(report.compile);
    add_doubts(json, doubts);
    const bench::DeviceTimings& device = report.device;
    if (!device.skipped.empty()) {
        for (const char* part : {"disk_hit", "lookup", "launch"}) json[part] = {{"skipped", device.skipped}};
        return json;
    }
    json["device"] = {{"name", device.device}, {"sm", device.sm}, {"driver", device.driver}};
    json["disk_hit"] = handles_json(device);
    json["lookup"] = {{"median_us", device.lookup_us}};
    json["launch"] = {{"kernel", device.launch.name},
                      {"call_us", device.launch.call_us},
                      {"bare_us", device.launch.bare_us},
                      {"bare_cukernel_us", device.launch.bare_kernel_us},
                      {"difference_us", device.launch.difference_us},
                      {"addressed_us", device.launch.addressed_us},
                      {"addressed_difference_us", device.launch.addressed_difference_us}};
    return json;
}

std::string ms_text(double ms) { return fmt::format("{:.3f}", ms); }

std::string compile_text(const bench::CompileTimings& compile) {
    Table table("<<>>");
    table.add({"cold compile", "target", "median ms", "worst ms"});
    for (const bench::CompileTiming& kernel : compile.kernels) {
        table.add({kernel.name, kernel.target, fmt::format("{:.0f}", bench::median(kernel.ms)),
                   fmt::format("{:.0f}", bench::worst(kernel.ms))});
    }
    const std::vector<double> all = all_times(compile.kernels);
    table.add({fmt::format("all {}", compile.kernels.size()), "", fmt::format("{:.0f}", bench::median(all)),
               fmt::format("{:.0f}", bench::worst(all))});
    return table.text() + fmt::format("NVRTC {}, {}; opening it took {:.0f} ms\n", compile.toolchain,
                                      printable(compile.nvrtc_path), compile.open_ms);
}

std::string device_text(const bench::DeviceTimings& device) {
    if (!device.skipped.empty()) {
        return fmt::format("disk hit, look-up and launch: skipped, no GPU: {}\n", printable(device.skipped));
    }
    Table table("<>>>");
    table.add({"disk hit to handle", "kernels", "median ms", "worst ms"});
    for (const bench::HandleTiming& handle : device.handles) {
        table.add({printable(handle.name), std::to_string(handle.kernels), ms_text(bench::median(handle.ms)),
                   ms_text(bench::worst(handle.ms))});
    }
    const std::vector<double> all = all_times(device.handles);
    table.add({"all", "", ms_text(bench::median(all)), ms_text(bench::worst(all))});
    const bench::LaunchTiming& launch = device.launch;
    return fmt::format("{}, sm {}, driver {}\n", printable(device.device), device.sm, device.driver) +
           table.text() +
           fmt::format("NVRTC was {}loaded for any of this\n", device.nvrtc_loaded ? "" : "not ") +
           fmt::format("look-up   {:.3f} us\n", device.lookup_us) +
           fmt::format(
               "launch    {:.3f} us; bare cuLaunchKernelEx {:.3f} us ({:.3f} us by CUkernel); difference "
               "{:.3f} us; with other addresses {:.3f} us, difference {:.3f} us\n",
               launch.call_us, launch.bare_us, launch.bare_kernel_us, launch.difference_us,
               launch.addressed_us, launch.addressed_difference_us);
}

// REQUIRES: some attention is supported.
Model model_of(const Command& command) {
    if (!command.has("model")) return {"", bench::standard_attentions(), {}, {}};
    Model model = read_model(command, command.text("model").value());
    if (model.attentions.empty()) throw Error(summary_of(refused_parts(model.unsupported)));
    return model;
}

int run_jit(const Command& command) {
    const std::vector<int> sms = read_sms(command);
    if (sms.size() > 1) throw InvalidRequest("sm", "a list", "one compute capability");
    bench::JitOptions options;
    const Model model = model_of(command);
    const Doubts doubts(model);
    options.attentions = model.attentions;
    options.sm = sms.empty() ? 0 : sms.front();
    options.repeat = static_cast<int>(command.integer("repeat", 1, 1000, 3));
    Progress progress(Progress::Elsewhere::nothing);
    options.progress = [&](int done, int total, const std::string& what) {
        progress.step(done, total, what);
    };
    const InterruptWatch watch("attnsmith: stopping\n");
    options.stop = watch.token();
    const bench::JitReport report = bench::measure_jit(options);
    progress.clear();
    if (report.stopped) {
        print_error("interrupted: nothing is reported");
        return watch.exit_code();
    }
    if (command.has("json")) {
        print_json(report_json(report, doubts));
    } else {
        print(compile_text(report.compile) + "\n" + device_text(report.device) + text_of(doubts));
    }
    return conclude(failing_doubts(command, doubts));
}

constexpr const char* kAttentionDetails =
    "GPU time of the attention of a request, or of each of a model's, with inputs that no launch finds in\n"
    "L2. TFLOP/s counts the visible pairs of query and key; TB/s counts q, k, v and o once, and stands\n"
    "beside what a large copy reaches. Needs a GPU.\n\n"
    "Example:\n"
    "  attnsmith bench attention --head-dim 128 --q-heads 32 --kv-heads 8 --batch 16 --kv-len 8192";

struct NamedSpeed {
    std::string name;
    bench::AttentionSpeed speed;
};

Json report_json(const std::vector<NamedSpeed>& speeds, double copy, const Doubts& doubts) {
    Json json = {
        {"schema", "attnsmith.bench-attention/1"}, {"copy_tbps", copy / 1e12}, {"attentions", Json::array()}};
    for (const auto& [name, speed] : speeds) {
        const double seconds = speed.median_ms * 1e-3;
        json["attentions"].push_back({{"name", name},
                                      {"kernels", speed.kernels},
                                      {"median_ms", speed.median_ms},
                                      {"least_ms", speed.least_ms},
                                      {"launches", speed.launches},
                                      {"tflops", speed.flops / seconds / 1e12},
                                      {"tbps", speed.bytes / seconds / 1e12},
                                      {"share_of_copy", speed.bytes / seconds / copy}});
    }
    add_doubts(json, doubts);
    return json;
}

std::string speeds_text(const std::vector<NamedSpeed>& speeds, double copy) {
    Table table("<>>>><");
    table.add({"attention", "median ms", "TFLOP/s", "TB/s", "of copy", "kernels"});
    for (const auto& [name, speed] : speeds) {
        const double seconds = speed.median_ms * 1e-3;
        table.add({printable(name), fmt::format("{:.4f}", speed.median_ms),
                   fmt::format("{:.1f}", speed.flops / seconds / 1e12),
                   fmt::format("{:.2f}", speed.bytes / seconds / 1e12),
                   fmt::format("{:.0f}%", 100 * speed.bytes / seconds / copy), speed.kernels});
    }
    return table.text() + fmt::format("copy {:.2f} TB/s\n", copy / 1e12);
}

int run_attention(const Command& command) {
    const Asked asked = read_asked(command);
    const Doubts doubts(asked);
    Runtime runtime(runtime_options(command));
    std::vector<NamedSpeed> speeds;
    for (const ModelAttention& attention : asked.attentions) {
        const Op op = attention.request.spec.op;
        if (op == Op::merge || op == Op::append)
            throw InvalidRequest("op", std::string(to_string(op)), "attention or mla");
        speeds.push_back({attention.name.empty() ? "request" : attention.name,
                          bench::measure_attention(runtime, attention.request, 0.1)});
    }
    const double copy = bench::measure_copy_bandwidth(runtime);
    if (command.has("json")) {
        print_json(report_json(speeds, copy, doubts));
    } else {
        print(speeds_text(speeds, copy) + text_of(doubts));
    }
    return conclude(failing_doubts(command, doubts));
}

constexpr const char* kCacheDetails =
    "Fills a temporary directory with synthetic entries of 60 KB (600 MB with the default 10,000), measures\n"
    "with the page cache warm, and removes it.\n\n"
    "Example:\n"
    "  attnsmith bench cache --entries 200 --json";

int run_cache(const Command& command) {
    bench::CacheCostOptions options;
    options.entries = static_cast<std::size_t>(command.integer("entries", 2, 1'000'000, 10'000));
    const bench::CacheCosts costs = bench::measure_cache(options);
    const std::pair<const char*, std::vector<double>> rows[] = {{"hit", costs.hit},
                                                                {"miss", costs.miss},
                                                                {"publish", costs.publish},
                                                                {"count", costs.count},
                                                                {"stat", costs.stat},
                                                                {"stat_command", costs.stat_command},
                                                                {"evict_half", {costs.evict_half}}};
    if (command.has("json")) {
        Json json = {{"schema", "attnsmith.bench-cache/1"},
                     {"cores", std::thread::hardware_concurrency()},
                     {"entries", costs.entries},
                     {"entry_bytes", costs.entry_bytes}};
        for (const auto& [name, ms] : rows) json[name] = times_json(ms);
        print_json(json);
        return kSuccess;
    }
    Table table("<>>>");
    table.add({fmt::format("{} entries", costs.entries), "median ms", "worst ms", "samples"});
    for (const auto& [name, ms] : rows) {
        table.add({name, fmt::format("{:.4f}", bench::median(ms)), fmt::format("{:.4f}", bench::worst(ms)),
                   std::to_string(ms.size())});
    }
    print(table.text());
    return kSuccess;
}

}  // namespace

void add_bench(Command& parent) {
    Command& bench =
        parent.add_command("bench", "Measure what things cost on this machine",
                           "Example:\n  attnsmith bench jit --sm 90 --model config.json --repeat 1 --json");
    Command& jit =
        bench.add_command("jit", "Time compiling, loading, looking up and launching kernels", kJitDetails);
    jit.add_switch("json", "print JSON");
    jit.add_value("repeat", "N", "compiles of each kernel (default 3)");
    add_sm_flag(jit);
    add_model_flags(jit, {});
    jit.on_run(run_jit);
    Command& attention =
        bench.add_command("attention", "Time attention on this machine's GPU", kAttentionDetails);
    attention.add_switch("json", "print JSON");
    add_request_flags(attention);
    add_cache_flag(attention);
    add_tuning_flag(attention);
    attention.on_run(run_attention);
    Command& cache = bench.add_command("cache", "Time the kernel cache with many entries", kCacheDetails);
    cache.add_switch("json", "print JSON");
    cache.add_value("entries", "N", "entries in the directory (default 10000)");
    cache.on_run(run_cache);
}

}  // namespace attnsmith::cli
