#include "bench/launch_overhead.hpp"

#include <dlfcn.h>

#include <array>
#include <chrono>
#include <functional>
#include <numeric>
#include <vector>

#include "bench/statistics.hpp"
#include "engine/runtime_impl.hpp"
#include "engine/tensor_maps.hpp"
#include "ops/operands.hpp"
#include "planner/launch.hpp"

namespace attnsmith::bench {
namespace {

using Clock = std::chrono::steady_clock;
using Microseconds = std::chrono::duration<double, std::micro>;

// CUlaunchConfig and cuLaunchKernelEx, as cuda.h has had them since CUDA 11.8: what a program without
// attnsmith would call, with nothing of ours on the way.
struct BareConfig {
    unsigned grid_x, grid_y, grid_z;
    unsigned block_x, block_y, block_z;
    unsigned shared_bytes;
    driver::StreamHandle stream;
    void* attributes;
    unsigned attribute_count;
};
using BareLaunch = int (*)(const BareConfig*, driver::FunctionHandle, void** parameters, void** extra);

BareLaunch find_launch(const driver::Api& api) {
    void* const library = ::dlopen(api.path().c_str(), RTLD_NOW);
    void* const symbol = library == nullptr ? nullptr : ::dlsym(library, "cuLaunchKernelEx");
    if (symbol == nullptr) throw Error("cuLaunchKernelEx was not found in " + api.path());
    return reinterpret_cast<BareLaunch>(symbol);
}

constexpr std::int64_t kPages = 4;

// Memory of one small paged decode.
struct Operands {
    Buffer q, k, v, o, page_table, kv_lens;
    AttentionTensors tensors;
    Batch batch;
};

Buffer zeros(const Runtime& runtime, std::int64_t bytes) {
    Buffer buffer = runtime.allocate(static_cast<std::size_t>(bytes));
    const std::vector<char> text(static_cast<std::size_t>(bytes));
    buffer.upload(text.data(), text.size());
    return buffer;
}

Operands make_operands(const Runtime& runtime, const AttentionSpec& spec) {
    const std::int64_t element = size_of(spec.dtype), index = size_of(spec.index_dtype);
    const std::int64_t slots = kPages * spec.page_size * spec.kv_heads;
    Operands operands{.q = zeros(runtime, spec.q_heads * spec.head_dim_qk * element),
                      .k = zeros(runtime, slots * spec.head_dim_qk * element),
                      .v = zeros(runtime, slots * spec.head_dim_vo * element),
                      .o = zeros(runtime, spec.q_heads * spec.head_dim_vo * element),
                      .page_table = zeros(runtime, kPages * index),
                      .kv_lens = zeros(runtime, index),
                      .tensors = {},
                      .batch = {}};
    const auto tensor = [&](const Buffer& buffer, std::initializer_list<std::int64_t> shape) {
        return Tensor::contiguous(buffer.data(), spec.dtype, shape);
    };
    operands.tensors.q = tensor(operands.q, {1, 1, spec.q_heads, spec.head_dim_qk});
    operands.tensors.k = tensor(operands.k, {kPages, spec.page_size, spec.kv_heads, spec.head_dim_qk});
    operands.tensors.v = tensor(operands.v, {kPages, spec.page_size, spec.kv_heads, spec.head_dim_vo});
    operands.tensors.o = tensor(operands.o, {1, 1, spec.q_heads, spec.head_dim_vo});
    operands.batch.page_table = Tensor::contiguous(operands.page_table.data(), spec.index_dtype, {1, kPages});
    operands.batch.kv_lens = Tensor::contiguous(operands.kv_lens.data(), spec.index_dtype, {1});
    return operands;
}

// The same launch as the Call's, made by hand.
class BareCall {
  public:
    BareCall(Runtime& runtime, const AttentionRequest& request, const Operands& operands,
             driver::StreamHandle stream) {
        engine::RuntimeImpl& impl = engine::impl_of(runtime);
        const auto& api = impl.driver();
        const planner::Plan plan =
            planner::make_plan(problem::validate(request.spec, request.sizes), impl.traits(0), impl.tuning);
        const problem::Operands bound = problem::Operands::of(operands.tensors, operands.batch);
        const auto shape = ops::check_operands(plan.problem, bound);
        const planner::Launch launch = planner::launch_of(plan, shape);
        if (launch.split.chunks() != 1) throw Error("the launch that is measured takes more than one kernel");
        workspace_ = driver::DeviceMemory(api, static_cast<std::size_t>(launch.workspace.bytes()));
        workspace_.fill(0);
        const families::KernelConfig& kernel = plan.steps.front().kernel;
        bound_ = kernel.family->bind(kernel, planner::context_of(plan, shape, launch),
                                     families::Binding{bound, workspace_.data()});
        engine::encode_maps(*api, 0, bound_);
        parameters_[0] = bound_.arguments.bytes().data();
        loaded_ = impl.loaded.get(api, 0, kernel, cache::Urgency::caller);
        config_ = {.grid_x = static_cast<unsigned>(launch.extents.front().ctas),
                   .grid_y = 1,
                   .grid_z = 1,
                   .block_x = static_cast<unsigned>(kernel.threads),
                   .block_y = 1,
                   .block_z = 1,
                   .shared_bytes = static_cast<unsigned>(kernel.shared_bytes),
                   .stream = stream,
                   .attributes = nullptr,
                   .attribute_count = 0};
        launch_ = find_launch(*api);
        function_ = loaded_->function->materialise();
        kernel_ = loaded_->function->handle();
    }
    BareCall(const BareCall&) = delete;
    BareCall& operator=(const BareCall&) = delete;

    int launch_function() { return launch_(&config_, function_, parameters_, nullptr); }
    int launch_kernel() { return launch_(&config_, kernel_, parameters_, nullptr); }
    const std::string name() const { return loaded_->config.name(); }

  private:
    driver::DeviceMemory workspace_;
    families::Bound bound_;
    void* parameters_[1] = {};
    BareConfig config_{};
    std::shared_ptr<const engine::LoadedKernel> loaded_;
    BareLaunch launch_ = nullptr;
    driver::FunctionHandle function_ = nullptr, kernel_ = nullptr;
};

constexpr int kRounds = 300;
constexpr int kLaunches = 100;  // of a round: far fewer than the driver's queue holds

template <class Launch>
double time_round(const driver::Stream& stream, Launch&& launch) {
    const auto start = Clock::now();
    for (int i = 0; i < kLaunches; ++i) launch();
    const double microseconds = Microseconds(Clock::now() - start).count();
    stream.synchronize();
    return microseconds / kLaunches;
}

}  // namespace

LaunchTiming measure_launch(Runtime& runtime, const ModelAttention& attention) {
    const AttentionRequest& request = attention.request;
    const driver::Stream stream(engine::impl_of(runtime).driver());
    const Kernel kernel = runtime.prepare(request.spec, request.sizes);
    const Operands operands = make_operands(runtime, request.spec);
    const Call call = kernel.bind(operands.tensors, operands.batch);
    BareCall bare(runtime, request, operands, stream.handle());
    const driver::Api& api = *engine::impl_of(runtime).driver();

    // The addresses of another layer's tensors would be checked and written like these.
    const TensorAddresses layer{
        .q = operands.q.data(), .k = operands.k.data(), .v = operands.v.data(), .o = operands.o.data()};

    constexpr int kVariants = 4;
    std::array<std::vector<double>, kVariants> times;
    std::vector<double> differences, addressed_differences;
    for (int round = -10; round < kRounds; ++round) {  // those below 0 warm up
        std::array<double, kVariants> now{};
        for (int i = 0; i < kVariants; ++i) {
            const int variant = (i + round + 40) % kVariants;
            const auto slot = static_cast<std::size_t>(variant);
            if (variant == 0) now[slot] = time_round(stream, [&] { call.launch(stream.handle()); });
            if (variant == 1)
                now[slot] = time_round(stream, [&] { api.check(bare.launch_function(), "bare launch"); });
            if (variant == 2)
                now[slot] = time_round(stream, [&] { api.check(bare.launch_kernel(), "bare launch"); });
            if (variant == 3) now[slot] = time_round(stream, [&] { call.launch_at(layer, stream.handle()); });
        }
        if (round < 0) continue;
        for (std::size_t i = 0; i < kVariants; ++i) times[i].push_back(now[i]);
        differences.push_back(now[0] - now[1]);
        addressed_differences.push_back(now[3] - now[1]);
    }
    return {.name = bare.name(),
            .call_us = median(times[0]),
            .bare_us = median(times[1]),
            .bare_kernel_us = median(times[2]),
            .difference_us = median(differences),
            .addressed_us = median(times[3]),
            .addressed_difference_us = median(addressed_differences)};
}

}  // namespace attnsmith::bench
