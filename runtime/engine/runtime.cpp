#include "attnsmith/runtime.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <future>
#include <string>

#include "abi/attention_arguments.h"
#include "engine/runtime_impl.hpp"
#include "problem/compute_capability.hpp"
#include "problem/request/problem.hpp"

namespace attnsmith {
namespace {

constexpr int kLeastSm = 10;  // compute capability 1.0: what is less was meant to be a device

}  // namespace

Runtime::Runtime() : Runtime(RuntimeOptions{}) {}
Runtime::Runtime(const RuntimeOptions& options) : impl_(std::make_shared<Impl>(options)) {}
Runtime::~Runtime() = default;
Runtime::Runtime(Runtime&&) noexcept = default;
Runtime& Runtime::operator=(Runtime&&) noexcept = default;

Runtime::Impl& Runtime::impl() const {
    if (!impl_) throw Error("this Runtime is empty: it was moved from");
    return *impl_;
}

Kernel Runtime::prepare(const AttentionSpec& spec, const PlanSizes& sizes, int device) const {
    return impl().prepare_once({impl().ordinal_for(spec, sizes, device), spec, sizes},
                               cache::Urgency::caller);
}

std::shared_future<Kernel> Runtime::prepare_async(const AttentionSpec& spec, const PlanSizes& sizes,
                                                  int device) const {
    const int ordinal = impl().ordinal_for(spec, sizes, device);
    const driver::ContextScope scope(*impl().driver(), ordinal);
    return impl().background.get().start(
        [&of = impl(), key = engine::PreparedKey{ordinal, spec, sizes}, context = scope.context()] {
            const driver::ContextScope same(*of.driver(), context);
            return of.prepare_once(key, cache::Urgency::background);
        });
}

KernelSet Runtime::prepare_set(const AttentionSpec& spec, int device) const {
    return impl().prepare_set(spec, impl().ordinal_for(spec, PlanSizes{}, device));
}

std::string Runtime::plan_json(const AttentionSpec& spec, const PlanSizes& sizes, int sm) const {
    const problem::Problem problem = problem::validate(spec, sizes);
    if (sm != kCurrentSm && sm < kLeastSm) {
        throw InvalidRequest("sm", std::to_string(sm),
                             fmt::format("a compute capability, one of {}; the ordinal of a GPU is a device",
                                         problem::known_sms_text()));
    }
    const families::DeviceTraits device =
        sm == kCurrentSm ? impl().traits(impl().ordinal_of(kCurrentDevice)) : families::traits_of(sm);
    const planner::Plan plan = planner::make_plan(problem, device, impl().tuning);
    std::vector<planner::CacheState> states;
    for (const planner::Step& step : plan.steps) {
        const engine::KernelSource source = impl().cubins.source_of(step.kernel);
        states.push_back(engine::cache_state(source.key, impl().cubins.find(source).get()));
    }
    return planner::json_text(plan, states);
}

std::vector<DeviceInfo> Runtime::devices() const {
    Impl& of = impl();
    std::vector<DeviceInfo> infos;
    try {
        for (const driver::Device& device : driver::query_devices(*of.driver())) {
            infos.push_back({device.ordinal, device.name, device.sm, device.sm_count, device.memory_bytes});
        }
    } catch (const LibraryMissing& error) {
        (*of.log)(LogLevel::debug, "no devices: {}", error.what());
    } catch (const DriverError& error) {
        if (error.driver_code() != driver::kNoDevice) throw;
        (*of.log)(LogLevel::debug, "no devices: {}", error.what());
    }
    return infos;
}

Buffer Runtime::allocate(std::size_t bytes, int device) const {
    Buffer buffer;
    buffer.impl_ = std::make_unique<Buffer::Impl>();
    buffer.impl_->device = impl().ordinal_of(device);
    buffer.impl_->memory =
        driver::DeviceMemory(impl().driver(), bytes, buffer.impl_->device, impl().allocator);
    return buffer;
}

Buffer Runtime::allocate_workspace(std::size_t bytes, int device) const {
    Buffer buffer = allocate(bytes, device);
    if (bytes > 0) buffer.impl_->memory.clear_unused(std::min(bytes, kWorkspaceZeroedBytes));
    return buffer;
}

void Runtime::synchronize(Stream stream, int device) const {
    const int ordinal = device == kCurrentDevice ? driver::kCallersDevice : impl().ordinal_of(device);
    driver::synchronize(*impl().driver(), stream, ordinal);
}

std::size_t workspace_zeroed_bytes() noexcept { return abi::kZeroedBytes; }

void Runtime::clear_workspace(const Workspace& workspace, Stream stream, int device) const {
    Impl& of = impl();
    engine::check_workspace(workspace, abi::kZeroedBytes);
    const int ordinal = device == kCurrentDevice ? driver::kCallersDevice : of.ordinal_of(device);
    driver::fill_async(*of.driver(), workspace.data, 0, abi::kZeroedBytes, stream, ordinal);
}

}  // namespace attnsmith
