#include "bench/attention_speed.hpp"

#include <algorithm>

#include "bench/attention_inputs.hpp"
#include "bench/event_timer.hpp"
#include "bench/statistics.hpp"
#include "driver/memory.hpp"
#include "engine/runtime_impl.hpp"

namespace attnsmith::bench {

AttentionSpeed measure_attention(Runtime& runtime, const AttentionRequest& request, double seconds) {
    const problem::Problem problem = problem::validate(request.spec, request.sizes);
    const Kernel kernel = runtime.prepare(request.spec, request.sizes);
    AttentionSpeed speed;
    speed.bytes = attention_bytes(problem);
    speed.flops = attention_flops(problem);

    const AttentionInputs inputs(runtime, problem);
    const std::vector<Call> calls = inputs.bind(kernel);
    speed.kernels = calls.front().describe();

    const EventTimer timer(engine::impl_of(runtime).driver());
    std::vector<double> times;
    double total = 0;
    for (int i = -5; total < seconds * 1000 || i < 5; ++i) {
        const Call& call = calls[static_cast<std::size_t>(i + 5) % calls.size()];
        const double ms = timer.ms([&](Stream stream) { call.launch(stream); });
        if (i < 0) continue;  // warm-up
        times.push_back(ms);
        total += ms;
    }
    speed.launches = static_cast<int>(times.size());
    speed.median_ms = median(times);
    speed.least_ms = *std::min_element(times.begin(), times.end());
    return speed;
}

double measure_copy_bandwidth(Runtime& runtime) {
    constexpr std::size_t kBytes = std::size_t{1} << 30;
    const auto& api = engine::impl_of(runtime).driver();
    const Buffer from = runtime.allocate(kBytes), to = runtime.allocate(kBytes);
    const EventTimer timer(api);
    std::vector<double> times;
    for (int i = 0; i < 20; ++i) {
        const double ms = timer.ms(
            [&](Stream stream) { driver::copy_async(*api, to.data(), from.data(), kBytes, stream); });
        if (i >= 5) times.push_back(ms);
    }
    return 2.0 * kBytes / (median(times) * 1e-3);
}

}  // namespace attnsmith::bench
