#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <mutex>
#include <optional>
#include <utility>

#include "abi/attention_arguments.h"
#include "attnsmith/runtime.hpp"
#include "engine/held.hpp"
#include "engine/runtime_impl.hpp"
#include "engine/tensor_maps.hpp"
#include "ops/op.hpp"
#include "ops/operand_checks.hpp"
#include "ops/operands.hpp"
#include "planner/launch.hpp"
#include "problem/limits.hpp"
#include "problem/tensors/operands.hpp"

namespace attnsmith {

namespace engine {

void check_workspace(const Workspace& workspace, std::size_t needed) {
    if (workspace.data == nullptr)
        throw InvalidRequest("workspace.data", "null",
                             "device memory; leave the workspace out to have the Call allocate its own");
    if (workspace.bytes < needed)
        throw InvalidRequest("workspace.bytes", std::to_string(workspace.bytes),
                             fmt::format("at least {}", needed));
    if (reinterpret_cast<std::uintptr_t>(workspace.data) % 256 != 0)
        throw InvalidRequest("workspace.data", fmt::format("{}", workspace.data), "a multiple of 256");
    if (workspace.bytes > UINTPTR_MAX - reinterpret_cast<std::uintptr_t>(workspace.data))
        throw InvalidRequest("workspace.bytes", std::to_string(workspace.bytes),
                             fmt::format("bytes of memory from {} on", workspace.data));
}

}  // namespace engine

using engine::check_workspace, engine::held;

namespace {

void check_bound(std::string_view name, std::int64_t value, std::int64_t most) {
    if (value >= 0 && value <= most) return;
    throw InvalidRequest(std::string(name), std::to_string(value),
                         fmt::format("an integer from 0 to {}", most));
}

}  // namespace

struct __attribute__((visibility("hidden"))) Call::Impl {
    struct Step {
        const engine::LoadedKernel* loaded;  // kept by `kernel`
        driver::FunctionHandle function;
        driver::LaunchConfig config;
        families::Bound bound;
    };

    std::shared_ptr<const Kernel::Impl> kernel;
    driver::DeviceMemory owned_workspace;
    void* workspace = nullptr;  // null of op merge, which needs none
    families::Split split{};
    std::vector<Step> steps;
    std::optional<ops::OperandChecks> operands;  // of attentions alone
    mutable std::mutex status_mutex;
    mutable std::unique_ptr<driver::HostMemory> status_word;  // of status(), once it is asked for

    // A call of these operands with the caller's workspace, or one of its own.
    static std::shared_ptr<Impl> of(const std::shared_ptr<const Kernel::Impl>& kernel,
                                    const problem::Operands& operands, const Workspace* given);

    // The caller's, where there is one, else memory of its own; where the launch will find its status.
    void take_workspace(const Workspace* given, std::size_t needed);
    // The steps that have anything to do.
    void add_steps(const families::LaunchContext& context, const families::Binding& binding,
                   const planner::Launch& launch);
    void add(const engine::LoadedKernel& loaded, std::int64_t ctas, families::Bound bound);
};

std::shared_ptr<Call::Impl> Call::Impl::of(const std::shared_ptr<const Kernel::Impl>& prepared,
                                           const problem::Operands& operands, const Workspace* given) {
    const problem::BoundShape shape = ops::check_operands(held(prepared, "Kernel").plan.problem, operands);
    const auto call = std::make_shared<Impl>();
    call->kernel = Kernel::Impl::for_bounds(prepared, shape);
    const planner::Plan& plan = call->kernel->plan;
    const planner::Launch launch = planner::launch_of(plan, shape);
    planner::check_grid(plan, launch);
    if (const std::int64_t bytes = launch.workspace.bytes(); bytes > 0) {
        call->take_workspace(given, static_cast<std::size_t>(bytes));
        if (given != nullptr) ops::check_workspace(plan.problem, call->workspace, bytes, operands);
    }
    if (operands.holds<AttentionTensors>())
        call->operands.emplace(plan.problem, operands.as<AttentionTensors>(), operands.batch, call->workspace,
                               launch.workspace.bytes());
    call->add_steps(planner::context_of(plan, shape, launch), {operands, call->workspace}, launch);
    return call;
}

void Call::Impl::take_workspace(const Workspace* given, std::size_t needed) {
    if (given != nullptr) {
        check_workspace(*given, needed);
        workspace = given->data;
        return;
    }
    owned_workspace = driver::DeviceMemory(kernel->api, needed, kernel->device, kernel->allocator);
    owned_workspace.clear_unused(abi::kZeroedBytes);
    workspace = owned_workspace.data();
}

void Call::Impl::add_steps(const families::LaunchContext& context, const families::Binding& binding,
                           const planner::Launch& launch) {
    split = launch.split;
    steps.reserve(launch.extents.size());
    for (std::size_t i = 0; i < launch.extents.size(); ++i) {
        const engine::LoadedKernel& loaded = *kernel->loaded[i];
        if (loaded.config.family->role() == families::Role::merge_splits && split.chunks() == 1) continue;
        loaded.function->materialise();
        families::Bound bound = loaded.config.family->bind(loaded.config, context, binding);
        if (launch.extents[i].ctas > 0) add(loaded, launch.extents[i].ctas, std::move(bound));
    }
}

void Call::Impl::add(const engine::LoadedKernel& loaded, std::int64_t ctas, families::Bound bound) {
    engine::encode_maps(*kernel->api, kernel->device, bound);
    Step& step = steps.emplace_back();
    step.loaded = &loaded;
    step.function = loaded.function->handle();
    step.config.grid.x = static_cast<std::uint32_t>(ctas);
    step.config.block.x = static_cast<std::uint32_t>(loaded.config.threads);
    step.config.shared_bytes = static_cast<std::uint32_t>(loaded.config.shared_bytes);
    step.config.device = kernel->device;
    step.bound = std::move(bound);
}

Call::Call() noexcept = default;
Call::~Call() = default;
Call::Call(Call&&) noexcept = default;
Call& Call::operator=(Call&&) noexcept = default;

void Call::launch(Stream stream) const {
    const Impl& call = held(impl_, "Call");
    const driver::Api& api = *call.kernel->api;
    for (const Impl::Step& step : call.steps)
        driver::launch(api, step.function, step.config, step.bound.arguments.data(), stream);
}

void Call::launch_at(const TensorAddresses& addresses, Stream stream) const {
    const Impl& call = held(impl_, "Call");
    if (!call.operands) {
        const std::string_view op = to_string(call.kernel->plan.problem.spec.op);
        throw InvalidRequest("addresses", fmt::format("addresses for a call of op {}", op),
                             fmt::format("launch() without addresses; bind the tensors of each {}", op));
    }
    const problem::OperandAddresses at = call.operands->check(problem::addresses_of(addresses));
    const driver::Api& api = *call.kernel->api;
    for (const Impl::Step& step : call.steps) {
        alignas(families::ArgumentBlock::kAlignment) std::byte block[families::ArgumentBlock::kMostBytes];
        step.bound.copy_with(at, block);
        engine::move_maps(api, call.kernel->device, step.bound, at, block);
        driver::launch(api, step.function, step.config, block, stream);
    }
}

// The kernels' bits are the public ones.
static_assert(abi::kStatusQueryClamped == kStatusQLenClamped);
static_assert(abi::kStatusKeyClamped == kStatusKvLenClamped);
static_assert(abi::kStatusPageOutOfRange == attnsmith::kStatusPageOutOfRange);
static_assert(abi::kStatusWorkspaceNotZeroed == attnsmith::kStatusWorkspaceNotZeroed);
static_assert(abi::kStatusScaleNotPositive == attnsmith::kStatusScaleNotPositive);
static_assert(abi::kStatusSlotOutOfRange == attnsmith::kStatusSlotOutOfRange);
static_assert(abi::kStatusPositionOutOfRange == attnsmith::kStatusPositionOutOfRange);
static_assert(abi::kStatusSlotWrittenTwice == attnsmith::kStatusSlotWrittenTwice);
static_assert(abi::kZeroedBytes == kWorkspaceZeroedBytes);

std::string to_string(CallStatus status) {
    constexpr std::pair<std::uint32_t, const char*> kNames[] = {
        {kStatusQLenClamped, "q_len_clamped"},
        {kStatusKvLenClamped, "kv_len_clamped"},
        {kStatusPageOutOfRange, "page_out_of_range"},
        {kStatusWorkspaceNotZeroed, "workspace_not_zeroed"},
        {kStatusScaleNotPositive, "scale_not_positive"},
        {kStatusSlotOutOfRange, "slot_out_of_range"},
        {kStatusPositionOutOfRange, "position_out_of_range"},
        {kStatusSlotWrittenTwice, "slot_written_twice"}};
    std::vector<std::string> names;
    for (int bit = 0; bit < 32; ++bit) {
        const std::uint32_t mask = std::uint32_t{1} << bit;
        if (!status.has(mask)) continue;
        const auto known = std::ranges::find(kNames, mask, &std::pair<std::uint32_t, const char*>::first);
        names.push_back(known == std::end(kNames) ? fmt::format("bit {}", bit) : known->second);
    }
    return fmt::format("{}", fmt::join(names, ", "));
}

void Call::copy_status(std::uint32_t* word, Stream stream) const {
    const Impl& call = held(impl_, "Call");
    if (word == nullptr) throw InvalidRequest("word", "null", "page-locked host memory, or device memory");
    const driver::Api& api = *call.kernel->api;
    if (call.workspace == nullptr)
        driver::fill_async(api, word, 0, sizeof *word, stream, call.kernel->device);
    else
        driver::copy_async(api, word, call.workspace, sizeof *word, stream, call.kernel->device);
}

CallStatus Call::status(Stream stream) const {
    const Impl& call = held(impl_, "Call");
    const driver::Api& api = *call.kernel->api;
    if (driver::is_capturing(api, stream, call.kernel->device)) {
        throw InvalidRequest("stream", "a stream that cannot be waited for because of a capture under way",
                             "a stream that is not being captured (nor the default stream, while one that "
                             "waits for it is); copy_status() can be captured");
    }
    if (call.workspace == nullptr) {
        driver::synchronize(api, stream, call.kernel->device);
        return {};
    }
    const std::lock_guard lock(call.status_mutex);
    if (!call.status_word) {
        call.status_word = std::make_unique<driver::HostMemory>(call.kernel->api, sizeof(std::uint32_t),
                                                                call.kernel->device);
    }
    auto* const word = static_cast<std::uint32_t*>(call.status_word->data());
    copy_status(word, stream);
    driver::synchronize(api, stream, call.kernel->device);
    return CallStatus::from_word(*word);
}

void Call::clear_status(Stream stream) const {
    const Impl& call = held(impl_, "Call");
    if (call.workspace == nullptr) return;
    // Not what follows the word, which a launch under way may be counting in.
    driver::fill_async(*call.kernel->api, call.workspace, 0, sizeof(std::uint32_t), stream,
                       call.kernel->device);
}

std::shared_ptr<const void> Call::keep_alive() const {
    held(impl_, "Call");
    return impl_;
}

void Call::synchronize(Stream stream) const {
    const Impl& call = held(impl_, "Call");
    driver::synchronize(*call.kernel->api, stream, call.kernel->device);
}

std::string Call::describe() const {
    const Impl& call = held(impl_, "Call");
    std::string text;
    for (const Impl::Step& step : call.steps) {
        text +=
            fmt::format("{}{}: {} CTA{} of {} threads, {} bytes of shared memory", text.empty() ? "" : "; ",
                        step.loaded->config.name(), step.config.grid.x, step.config.grid.x == 1 ? "" : "s",
                        step.config.block.x, step.config.shared_bytes);
        if (step.loaded->config.family->role() == families::Role::attention && call.split.parts > 1)
            text += ", " + families::describe(call.split);
    }
    return text.empty() ? "nothing to launch" : text;
}

Kernel::Kernel() noexcept = default;

std::size_t Kernel::workspace_bytes(const WorkspaceBounds& bounds) const {
    const planner::Plan& plan = held(impl_, "Kernel").plan;
    check_bound("batch", bounds.batch, problem::kMaxBatch);
    check_bound("max_kv_len", bounds.max_kv_len, problem::kMaxLength);
    const std::int64_t most_tokens =
        problem::kMaxQueryRows / std::max<std::int64_t>(1, plan.problem.spec.q_heads);
    if (!ops::op_traits(plan.problem.spec.op).divides_keys) {  // at most a status to keep
        check_bound("q_tokens", bounds.q_tokens, most_tokens);
        return static_cast<std::size_t>(planner::workspace_bytes(plan, {}));
    }
    const std::int64_t longest = problem::kMaxPackedQueries / plan.problem.group_size();
    if (const std::int64_t most = std::min(most_tokens, bounds.batch * longest);
        bounds.q_tokens < 0 || bounds.q_tokens > most)
        throw InvalidRequest("q_tokens", std::to_string(bounds.q_tokens),
                             fmt::format("an integer from 0 to {} with a batch of {}", most, bounds.batch));
    const problem::BoundShape shape{.batch = bounds.batch,
                                    .q_tokens = bounds.q_tokens,
                                    .max_q_len = std::min(bounds.q_tokens, longest),
                                    .max_kv_len = bounds.max_kv_len};
    return static_cast<std::size_t>(planner::workspace_bytes(plan, shape));
}

Call Kernel::bind(const AttentionTensors& tensors, const Batch& batch) const {
    return bind_tensors(AttentionTensors::kOp, &tensors, batch, nullptr);
}

Call Kernel::bind(const AttentionTensors& tensors, const Batch& batch, Workspace workspace) const {
    return bind_tensors(AttentionTensors::kOp, &tensors, batch, &workspace);
}

Call Kernel::bind_tensors(Op op, const void* tensors, const Batch& batch, const Workspace* workspace) const {
    Call call;
    call.impl_ = Call::Impl::of(impl_, {op, tensors, batch}, workspace);
    return call;
}

const AttentionSpec& Kernel::spec() const& { return held(impl_, "Kernel").plan.problem.spec; }

int Kernel::device() const { return held(impl_, "Kernel").device; }

std::string Kernel::plan_json() const {
    const Impl& prepared = held(impl_, "Kernel");
    std::vector<planner::CacheState> states;
    for (const auto& loaded : prepared.loaded)
        states.push_back(engine::cache_state(loaded->cubin->key, loaded->cubin.get()));
    return planner::json_text(prepared.plan, states);
}

}  // namespace attnsmith
