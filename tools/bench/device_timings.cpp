#include "bench/device_timings.hpp"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iterator>
#include <memory>

#include "bench/standard_attentions.hpp"
#include "bench/statistics.hpp"
#include "driver/api.hpp"
#include "driver/device.hpp"
#include "engine/runtime_impl.hpp"

namespace attnsmith::bench {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::duration<double, std::milli>;
using Microseconds = std::chrono::duration<double, std::micro>;

// Whether anything of NVRTC's is mapped into this process.
bool nvrtc_is_loaded() {
    std::ifstream maps("/proc/self/maps");
    const std::string text{std::istreambuf_iterator<char>(maps), {}};
    return text.find("libnvrtc") != std::string::npos;
}

RuntimeOptions runtime_options(const DeviceTimingOptions& options) {
    RuntimeOptions runtime;
    runtime.cache_dirs = {options.cache_dir};
    return runtime;
}

std::size_t kernels_of(Runtime& runtime, const AttentionRequest& request) {
    const auto problem = problem::validate(request.spec, request.sizes);
    return planner::make_plan(problem, engine::impl_of(runtime).traits(0), engine::impl_of(runtime).tuning)
        .steps.size();
}

double time_handle(const DeviceTimingOptions& options, const AttentionRequest& request,
                   HandleTiming& timing) {
    Runtime runtime(runtime_options(options));
    timing.kernels = kernels_of(runtime, request);  // opens the driver, too
    const auto start = Clock::now();
    const Kernel kernel = runtime.prepare(request.spec, request.sizes);
    return Milliseconds(Clock::now() - start).count();
}

std::vector<HandleTiming> time_handles(const DeviceTimingOptions& options) {
    std::vector<HandleTiming> timings;
    for (const ModelAttention& attention : options.attentions) {
        timings.push_back({.name = attention.name, .ms = {}});
    }
    // Kernels take turns, so that each comes to caches that others have used meanwhile.
    for (int round = 0; round < options.repeat && !options.stop.stop_requested(); ++round) {
        for (std::size_t i = 0; i < timings.size(); ++i) {
            const double ms = time_handle(options, options.attentions[i].request, timings[i]);
            timings[i].ms.push_back(ms);
        }
    }
    return timings;
}

double time_lookup(Runtime& runtime, const std::vector<ModelAttention>& attentions) {
    constexpr int kRounds = 50, kLookups = 2000;
    std::vector<double> rounds;
    for (int round = 0; round < kRounds; ++round) {
        const auto start = Clock::now();
        for (int i = 0; i < kLookups; ++i) {
            const AttentionRequest& request =
                attentions[static_cast<std::size_t>(i) % attentions.size()].request;
            const Kernel kernel = runtime.prepare(request.spec, request.sizes);
        }
        rounds.push_back(Microseconds(Clock::now() - start).count() / kLookups);
    }
    return median(rounds);
}

}  // namespace

ModelAttention launch_attention() {
    std::vector<ModelAttention> attentions = standard_attentions();
    const auto found = std::ranges::find(attentions, "head_dim 128/decode", &ModelAttention::name);
    found->request.sizes = {.batch = 1, .q_len = 1, .kv_len = 64};
    return *found;
}

DeviceTimings measure_device(const DeviceTimingOptions& options) {
    DeviceTimings timings;
    // Stays: an engine that uses attnsmith has its context, too.
    const std::shared_ptr<const driver::Api> api = driver::Api::open();
    const driver::Device device = driver::query_device(*api, 0);
    const driver::ContextScope context(*api, api->primary_context(0));
    timings.device = device.name;
    timings.driver = api->version_text();
    timings.handles = time_handles(options);
    if (options.stop.stop_requested()) return timings;

    Runtime runtime(runtime_options(options));
    for (const ModelAttention& attention : options.attentions) {
        (void)runtime.prepare(attention.request.spec, attention.request.sizes);
    }
    timings.sm = engine::impl_of(runtime).traits(0).sm;
    timings.lookup_us = time_lookup(runtime, options.attentions);
    timings.launch = measure_launch(runtime, launch_attention());
    timings.nvrtc_loaded = nvrtc_is_loaded();
    return timings;
}

}  // namespace attnsmith::bench
