#include "bench/jit.hpp"

#include <chrono>
#include <set>

#include "bench/child.hpp"
#include "bench/temporary_directory.hpp"
#include "compiler/nvrtc.hpp"
#include "cubins/translation_unit.hpp"
#include "driver/api.hpp"
#include "driver/device.hpp"
#include "engine/tuning_files.hpp"
#include "planner/plan.hpp"
#include "settings/environment.hpp"

namespace attnsmith::bench {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::duration<double, std::milli>;

constexpr int kDefaultSm = 90;

struct Present {
    int sm = 0;           // what the first GPU is planned as
    std::string missing;  // why there is none; empty where there is one
};

// Asks a child, since a process that has opened the driver must not fork.
Present find_gpu() {
    try {
        return {
            std::stoi(in_child([] {
                const auto api = driver::Api::open();
                const driver::Device device = driver::query_device(*api, 0);
                return std::to_string(families::traits_of_device(device.sm, device.name, device.sm_count).sm);
            })),
            {}};
    } catch (const Error& error) {
        return {0, error.what()};
    }
}

std::vector<AttentionSpec> specs_of(const std::vector<ModelAttention>& attentions) {
    std::vector<AttentionSpec> specs;
    for (const ModelAttention& attention : attentions) specs.push_back(attention.request.spec);
    return specs;
}

// In a child, so that this process has not seen NVRTC when it measures.
void fill_cache(const std::string& directory, std::vector<AttentionSpec> specs, int sm) {
    in_child([&] {
        RuntimeOptions options;
        options.cache_dirs = {directory};
        const std::vector<int> sms = {sm};
        for (const PrewarmedKernel& kernel : Runtime(options).prewarm(specs, sms).kernels) {
            if (kernel.state == PrewarmState::failed) throw Error(kernel.name + ": " + kernel.error);
        }
        return std::string();
    });
}

DeviceTimings measure_present_device(const JitOptions& options) {
    const Present present = find_gpu();
    if (present.sm == 0)
        return {.skipped = present.missing, .device = {}, .driver = {}, .handles = {}, .launch = {}};
    const TemporaryDirectory directory;
    std::vector<AttentionSpec> specs = specs_of(options.attentions);
    specs.push_back(launch_attention().request.spec);
    fill_cache(directory.path(), std::move(specs), present.sm);
    constexpr int kLeast = 10;  // a disk hit takes little: more of them cost nothing
    return measure_device({.attentions = options.attentions,
                           .cache_dir = directory.path(),
                           .repeat = std::max(options.repeat, kLeast),
                           .stop = options.stop});
}

std::set<families::KernelConfig> kernels_of(const std::vector<ModelAttention>& attentions, int sm,
                                            const families::TuningTable& tuning) {
    std::set<families::KernelConfig> kernels;
    for (const AttentionSpec& spec : specs_of(attentions)) {
        for (const families::Candidate& one : planner::kernel_set(spec, sm, tuning).candidates)
            kernels.insert(one.kernel);
    }
    return kernels;
}

CompileTimings measure_compiles(const JitOptions& options, int sm) {
    CompileTimings timings{.sm = sm, .nvrtc_path = {}, .toolchain = {}, .kernels = {}};
    const engine::Settings settings = engine::settle({});
    const std::set<families::KernelConfig> kernels =
        kernels_of(options.attentions, sm, engine::load_tuning(settings.tuning_files));
    const auto opening = Clock::now();
    // Compiles with --no-cache where NVRTC has a cache of its own.
    const auto nvrtc = compiler::Nvrtc::open(settings.nvrtc);
    timings.toolchain = nvrtc->toolchain();
    timings.open_ms = Milliseconds(Clock::now() - opening).count();
    timings.nvrtc_path = nvrtc->path();
    for (const families::KernelConfig& kernel : kernels) {
        timings.kernels.push_back({.name = kernel.name(), .target = kernel.target, .ms = {}});
    }
    const int total = options.repeat * static_cast<int>(kernels.size());
    int done = 0;
    for (int round = 0; round < options.repeat; ++round) {
        std::size_t place = 0;
        for (const families::KernelConfig& kernel : kernels) {
            if (options.stop.stop_requested()) return timings;
            CompileTiming& timing = timings.kernels[place++];
            const auto start = Clock::now();
            (void)nvrtc->compile(engine::translation_unit(kernel).program);
            timing.ms.push_back(Milliseconds(Clock::now() - start).count());
            if (options.progress) options.progress(++done, total, timing.name);
        }
    }
    return timings;
}

}  // namespace

JitReport measure_jit(const JitOptions& options) {
    JitReport report;
    try {
        report.device = measure_present_device(options);
        const int present = report.device.skipped.empty() ? report.device.sm : kDefaultSm;
        if (!options.stop.stop_requested()) {
            report.compile = measure_compiles(options, options.sm != 0 ? options.sm : present);
        }
    } catch (const Error&) {
        // Ctrl-C ends a child as well.
        if (!options.stop.stop_requested()) throw;
    }
    report.stopped = options.stop.stop_requested();
    return report;
}

}  // namespace attnsmith::bench
