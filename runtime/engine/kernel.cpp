#include <fmt/format.h>

#include "attnsmith/runtime.hpp"
#include "engine/bind.hpp"
#include "engine/runtime_impl.hpp"

namespace attnsmith {

struct Call::Impl {
    struct Step {
        const engine::LoadedKernel* loaded;  // kept by `kernel`
        driver::FunctionHandle function;
        driver::LaunchConfig config;
        const void* arguments;  // one of those below
    };

    std::shared_ptr<const Kernel::Impl> kernel;
    driver::DeviceMemory owned_workspace;
    void* workspace = nullptr;                                   // null of op merge, which needs none
    std::array<abi::AttentionArguments, 2> attention_arguments;  // of the attention and its splits' merge
    std::unique_ptr<const abi::MergeArguments> merge_arguments;  // of op merge
    std::array<Step, 2> steps;
    int step_count = 0;

    // REQUIRES: this object keeps `arguments`.
    void add(const engine::LoadedKernel& loaded, std::int64_t grid, const void* arguments) {
        loaded.function->materialise();
        if (grid == 0) return;
        Step& step = steps[static_cast<std::size_t>(step_count++)];
        step.loaded = &loaded;
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
        driver::launch(api, step.function, step.config, step.arguments, stream);
    }
}

CallStatus Call::status() const {
    const driver::Api& api = *impl_->kernel->api;
    driver::synchronize_device(api, impl_->kernel->device);
    if (impl_->workspace == nullptr) return {};
    std::uint32_t word = 0;
    driver::download(api, &word, impl_->workspace, sizeof word, impl_->kernel->device);
    return {.q_len_clamped = (word & abi::kStatusQueryClamped) != 0,
            .kv_len_clamped = (word & abi::kStatusKeyClamped) != 0,
            .page_out_of_range = (word & abi::kStatusPageOutOfRange) != 0};
}

void Call::clear_status() const {
    if (impl_->workspace == nullptr) return;
    driver::fill(*impl_->kernel->api, impl_->workspace, 0, abi::kStatusBytes, impl_->kernel->device);
}

std::string Call::describe() const {
    std::string text;
    for (int i = 0; i < impl_->step_count; ++i) {
        const Impl::Step& step = impl_->steps[static_cast<std::size_t>(i)];
        text += fmt::format("{}{}: {} CTAs of {} threads, {} bytes of shared memory", i == 0 ? "" : "; ",
                            step.loaded->config.name(), step.config.grid.x, step.config.block.x,
                            step.config.shared_bytes);
        const abi::AttentionArguments& attention = impl_->attention_arguments[0];
        if (step.arguments == &attention && attention.splits > 1) {
            text += fmt::format(", {} splits of {} keys", attention.splits, attention.chunk);
        }
    }
    return text.empty() ? "nothing to launch" : text;
}

namespace {

void check_op(const AttentionSpec& spec, Op bound, const char* tensors) {
    if (spec.op == bound) return;
    throw InvalidRequest("op", std::string(to_string(spec.op)),
                         fmt::format("{}, which {} belong to; this kernel was prepared for another op",
                                     to_string(bound), tensors));
}

}  // namespace

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
    check_op(spec(), Op::attention, "AttentionTensors");
    const problem::BoundShape shape = problem::check_tensors(impl_->plan.problem, tensors, batch);
    const planner::Launch launch = planner::launch_of(impl_->plan, shape);
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

    auto& [attention, merge] = call.impl_->attention_arguments;
    attention = engine::make_arguments(impl_->plan.problem, tensors, batch, shape, launch, workspace.data);
    call.impl_->add(*impl_->attention, launch.grid, &attention);
    if (launch.splits > 1) {
        merge = attention;
        merge.tiles = static_cast<std::int32_t>(launch.merge_tiles);
        call.impl_->add(*impl_->merge, launch.merge_grid, &merge);
    }
    return call;
}

Call Kernel::bind(const MergeTensors& tensors) const {
    check_op(spec(), Op::merge, "MergeTensors");
    const problem::Problem& problem = impl_->plan.problem;
    const planner::Launch launch = planner::launch_of(impl_->plan, problem::check_tensors(problem, tensors));
    Call call;
    call.impl_ = std::make_unique<Call::Impl>();
    call.impl_->kernel = impl_;
    call.impl_->merge_arguments =
        std::make_unique<const abi::MergeArguments>(engine::make_arguments(problem, tensors, launch));
    call.impl_->add(*impl_->merge, launch.merge_grid, call.impl_->merge_arguments.get());
    return call;
}

const AttentionSpec& Kernel::spec() const noexcept { return impl_->plan.problem.spec; }

std::string Kernel::plan_json() const {
    const auto state = [](const engine::LoadedKernel* kernel) {
        return kernel ? engine::cache_state(kernel->cubin->key, kernel->cubin.get()) : planner::CacheState{};
    };
    return planner::to_json(impl_->plan, state(impl_->attention.get()), state(impl_->merge.get())).dump(2);
}

}  // namespace attnsmith
