#include <fmt/format.h>

#include "attnsmith/runtime.hpp"
#include "engine/bind.hpp"
#include "engine/runtime_impl.hpp"

namespace attnsmith {

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
    const driver::Api& api = *impl_->kernel->api;
    for (int i = 0; i < impl_->step_count; ++i) {
        const Impl::Step& step = impl_->steps[static_cast<std::size_t>(i)];
        driver::launch(api, step.function, step.config, &step.arguments, stream);
    }
}

CallStatus Call::status() const {
    const driver::Api& api = *impl_->kernel->api;
    driver::synchronize_device(api, impl_->kernel->device);
    std::uint32_t word = 0;
    driver::download(api, &word, impl_->workspace, sizeof word, impl_->kernel->device);
    return {.q_len_clamped = (word & abi::kStatusQueryClamped) != 0,
            .kv_len_clamped = (word & abi::kStatusKeyClamped) != 0,
            .page_out_of_range = (word & abi::kStatusPageOutOfRange) != 0};
}

void Call::clear_status() const {
    driver::fill(*impl_->kernel->api, impl_->workspace, 0, abi::kStatusBytes, impl_->kernel->device);
}

std::string Call::describe() const {
    std::string text;
    for (int i = 0; i < impl_->step_count; ++i) {
        const Impl::Step& step = impl_->steps[static_cast<std::size_t>(i)];
        const auto& loaded = i == 0 ? impl_->kernel->attention : impl_->kernel->merge;
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
    const problem::BoundShape shape{
        .batch = batch, .q_tokens = q_tokens, .max_q_len = q_tokens, .max_kv_len = max_kv_len};
    return static_cast<std::size_t>(planner::launch_of(impl_->plan, shape).workspace_bytes);
}

Call Kernel::bind(const AttentionTensors& tensors, const Batch& batch) const {
    return bind(tensors, batch, Workspace{});
}

Call Kernel::bind(const AttentionTensors& tensors, const Batch& batch, Workspace workspace) const {
    const problem::BoundShape shape = problem::check_tensors(impl_->plan.problem, tensors, batch);
    const planner::Launch launch = planner::launch_of(impl_->plan, shape);
    planner::check_grid(launch);
    const auto needed = static_cast<std::size_t>(launch.workspace_bytes);

    Call call;
    call.impl_ = std::make_unique<Call::Impl>();
    call.impl_->kernel = impl_;
    if (workspace.data == nullptr) {
        call.impl_->owned_workspace = driver::DeviceMemory(impl_->api, needed, impl_->device);
        workspace = {call.impl_->owned_workspace.data(), needed};
        driver::fill(*impl_->api, workspace.data, 0, abi::kStatusBytes, impl_->device);
    } else if (workspace.bytes < needed) {
        throw InvalidRequest("workspace.bytes", std::to_string(workspace.bytes),
                             fmt::format("at least {}", needed));
    } else if (reinterpret_cast<std::uintptr_t>(workspace.data) % 256 != 0) {
        throw InvalidRequest("workspace.data", fmt::format("{}", workspace.data), "a multiple of 256");
    }
    call.impl_->workspace = workspace.data;

    abi::AttentionArguments arguments =
        engine::make_arguments(impl_->plan.problem, tensors, batch, shape, launch, workspace.data);
    call.impl_->add(*impl_->attention, launch.grid, arguments);
    impl_->attention->function->materialise();
    if (launch.splits > 1) {
        arguments.tiles = static_cast<std::int32_t>(launch.merge_tiles);
        call.impl_->add(*impl_->merge, launch.merge_grid, arguments);
        impl_->merge->function->materialise();
    }
    return call;
}

const AttentionSpec& Kernel::spec() const noexcept { return impl_->plan.problem.spec; }

int Kernel::device() const noexcept { return impl_->device; }

std::string Kernel::plan_json() const {
    const auto state = [](const engine::LoadedKernel* kernel) {
        return kernel ? engine::cache_state(kernel->cubin->key, kernel->cubin.get()) : planner::CacheState{};
    };
    return planner::to_json(impl_->plan, state(impl_->attention.get()), state(impl_->merge.get())).dump(2);
}

}  // namespace attnsmith
