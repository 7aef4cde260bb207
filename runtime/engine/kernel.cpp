#include <fmt/format.h>

#include <algorithm>

#include "attnsmith/runtime.hpp"
#include "engine/bind.hpp"
#include "engine/runtime_impl.hpp"
#include "problem/limits.hpp"

namespace attnsmith {
namespace {

// What a handle holds. Throws Error for one that holds nothing.
template <typename Pointer>
auto& held(const Pointer& impl, const char* name) {
    if (impl == nullptr) {
        throw Error(fmt::format("this {} is empty: it was default-constructed or moved from", name));
    }
    return *impl;
}

// A launch's rows of packed queries are counted in 32 bits: no sequence has more queries.
std::int64_t most_queries(const problem::Problem& problem) {
    return problem::kMaxPackedQueries / problem.group_size();
}

void check_bound(const char* name, std::int64_t value, std::int64_t most) {
    if (value >= 0 && value <= most) return;
    throw InvalidRequest(name, std::to_string(value), fmt::format("an integer from 0 to {}", most));
}

}  // namespace

struct Call::Impl {
    struct Step {
        driver::FunctionHandle function;
        driver::LaunchConfig config;
        abi::AttentionArguments arguments;
    };

    std::shared_ptr<const Kernel::Impl> kernel;
    driver::DeviceMemory owned_workspace;
    void* workspace = nullptr;
    std::array<Step, 2> steps;
    int step_count = 0;

    void add(const engine::LoadedKernel& loaded, std::int64_t grid,
             const abi::AttentionArguments& arguments) {
        if (grid == 0) return;
        Step& step = steps[static_cast<std::size_t>(step_count++)];
        step.function = loaded.function->handle();
        step.config.grid.x = static_cast<std::uint32_t>(grid);
        step.config.block.x = static_cast<std::uint32_t>(loaded.config.threads());
        step.config.shared_bytes = static_cast<std::uint32_t>(loaded.config.shared_bytes);
        step.config.device = kernel->device;
        step.arguments = arguments;
    }
};

Call::Call() = default;
Call::~Call() = default;
Call::Call(Call&&) noexcept = default;
Call& Call::operator=(Call&&) noexcept = default;

void Call::launch(Stream stream) const {
    const Impl& call = held(impl_, "Call");
    const driver::Api& api = *call.kernel->api;
    for (int i = 0; i < call.step_count; ++i) {
        const Impl::Step& step = call.steps[static_cast<std::size_t>(i)];
        driver::launch(api, step.function, step.config, &step.arguments, stream);
    }
}

CallStatus Call::status() const {
    const Impl& call = held(impl_, "Call");
    const driver::Api& api = *call.kernel->api;
    driver::synchronize_device(api, call.kernel->device);
    std::uint32_t word = 0;
    driver::download(api, &word, call.workspace, sizeof word, call.kernel->device);
    return {.q_len_clamped = (word & abi::kStatusQueryClamped) != 0,
            .kv_len_clamped = (word & abi::kStatusKeyClamped) != 0,
            .page_out_of_range = (word & abi::kStatusPageOutOfRange) != 0};
}

void Call::clear_status() const {
    const Impl& call = held(impl_, "Call");
    driver::fill(*call.kernel->api, call.workspace, 0, abi::kStatusBytes, call.kernel->device);
}

std::string Call::describe() const {
    const Impl& call = held(impl_, "Call");
    std::string text;
    for (int i = 0; i < call.step_count; ++i) {
        const Impl::Step& step = call.steps[static_cast<std::size_t>(i)];
        const auto& loaded = i == 0 ? call.kernel->attention : call.kernel->merge;
        text += fmt::format("{}{}: {} CTAs of {} threads, {} bytes of shared memory", i == 0 ? "" : "; ",
                            loaded->config.name(), step.config.grid.x, step.config.block.x,
                            step.config.shared_bytes);
        if (step.arguments.splits > 1 && i == 0) {
            text += fmt::format(", {} splits of {} keys", step.arguments.splits, step.arguments.chunk);
        }
    }
    return text.empty() ? "nothing to launch" : text;
}

Kernel::Kernel() = default;

std::size_t Kernel::workspace_bytes(std::int64_t batch, std::int64_t q_tokens,
                                    std::int64_t max_kv_len) const {
    const planner::Plan& plan = held(impl_, "Kernel").plan;
    const std::int64_t longest = most_queries(plan.problem);
    check_bound("batch", batch, problem::kMaxBatch);
    check_bound("q_tokens", q_tokens, std::min(problem::kMaxLength, batch * longest));
    check_bound("max_kv_len", max_kv_len, problem::kMaxLength);
    const problem::BoundShape shape{.batch = batch,
                                    .q_tokens = q_tokens,
                                    .max_q_len = std::min(q_tokens, longest),
                                    .max_kv_len = max_kv_len};
    try {
        return static_cast<std::size_t>(planner::launch_of(plan, shape).workspace_bytes);
    } catch (const InvalidRequest& error) {  // it calls the bound what binding calls it
        throw InvalidRequest("q_tokens", std::to_string(q_tokens), error.accepted());
    }
}

Call Kernel::bind(const AttentionTensors& tensors, const Batch& batch) const {
    return bind(tensors, batch, Workspace{});
}

Call Kernel::bind(const AttentionTensors& tensors, const Batch& batch, Workspace workspace) const {
    const Impl& kernel = held(impl_, "Kernel");
    const problem::BoundShape shape = problem::check_tensors(kernel.plan.problem, tensors, batch);
    const planner::Launch launch = planner::launch_of(kernel.plan, shape);
    planner::check_grid(launch);
    const auto needed = static_cast<std::size_t>(launch.workspace_bytes);

    Call call;
    call.impl_ = std::make_unique<Call::Impl>();
    call.impl_->kernel = impl_;
    if (workspace.data == nullptr) {
        call.impl_->owned_workspace = driver::DeviceMemory(kernel.api, needed, kernel.device);
        workspace = {call.impl_->owned_workspace.data(), needed};
        driver::fill(*kernel.api, workspace.data, 0, abi::kStatusBytes, kernel.device);
    } else if (workspace.bytes < needed) {
        throw InvalidRequest("workspace.bytes", std::to_string(workspace.bytes),
                             fmt::format("at least {}", needed));
    } else if (reinterpret_cast<std::uintptr_t>(workspace.data) % 256 != 0) {
        throw InvalidRequest("workspace.data", fmt::format("{}", workspace.data), "a multiple of 256");
    }
    call.impl_->workspace = workspace.data;

    abi::AttentionArguments arguments =
        engine::make_arguments(kernel.plan.problem, tensors, batch, shape, launch, workspace.data);
    call.impl_->add(*kernel.attention, launch.grid, arguments);
    kernel.attention->function->materialise();
    if (launch.splits > 1) {
        arguments.tiles = static_cast<std::int32_t>(launch.merge_tiles);
        call.impl_->add(*kernel.merge, launch.merge_grid, arguments);
        kernel.merge->function->materialise();
    }
    return call;
}

const AttentionSpec& Kernel::spec() const { return held(impl_, "Kernel").plan.problem.spec; }

int Kernel::device() const { return held(impl_, "Kernel").device; }

std::string Kernel::plan_json() const {
    const Impl& prepared = held(impl_, "Kernel");
    const auto state = [](const engine::LoadedKernel* kernel) {
        return kernel ? engine::cache_state(kernel->cubin->key, kernel->cubin.get()) : planner::CacheState{};
    };
    return planner::to_json(prepared.plan, state(prepared.attention.get()), state(prepared.merge.get()))
        .dump(2);
}

}  // namespace attnsmith
