// What the public objects hold.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "attnsmith/runtime.hpp"
#include "cache/files/per_process.hpp"
#include "cubins/cubins.hpp"
#include "cubins/loaded_kernels.hpp"
#include "driver/device.hpp"
#include "driver/launch.hpp"
#include "driver/memory.hpp"
#include "engine/background.hpp"
#include "engine/picked_sizes.hpp"
#include "engine/prepared_kernels.hpp"
#include "engine/recorder.hpp"
#include "engine/runtime_access.hpp"
#include "planner/launch.hpp"
#include "planner/plan.hpp"

namespace attnsmith {

// The library exports none of these structs' functions, though they are members of exported classes.
struct __attribute__((visibility("hidden"))) Runtime::Impl {
    explicit Impl(const RuntimeOptions& options);

    // Opens the driver where it is not open yet. Throws LibraryMissing, DriverError.
    const std::shared_ptr<const driver::Api>& driver();
    // The ordinal that `device`, an ordinal or kCurrentDevice, stands for. Throws InvalidRequest.
    int ordinal_of(int device);
    // The same for a problem to prepare, which is recorded even where there is no such device: a program may
    // be recorded on a machine without a GPU.
    int ordinal_for(const AttentionSpec& spec, const PlanSizes& sizes, int device);
    families::DeviceTraits traits(int ordinal);
    // The kernel for a problem: from the table of those prepared before, else planned and loaded.
    Kernel prepare_once(const engine::PreparedKey& key, cache::Urgency urgency);
    Kernel prepare(const AttentionSpec& spec, const PlanSizes& sizes, int device, cache::Urgency urgency);
    KernelSet prepare_set(const AttentionSpec& spec, int device);
    // The kernels of a plan, whoever made it: tests run those that planning would not choose here.
    Kernel load(planner::Plan plan, int device, cache::Urgency urgency = cache::Urgency::caller);
    // Throws CubinMissing where that one throws KernelMissing.
    Kernel load_all(planner::Plan plan, int device, cache::Urgency urgency);

    engine::Settings settings;
    std::shared_ptr<const engine::Log> log;
    const families::TuningTable tuning;
    engine::Cubins cubins;
    engine::LoadedKernels loaded;
    engine::Recorder recorder;
    std::string driver_path;
    const std::shared_ptr<const driver::Allocator> allocator;  // null: the driver

    // Neither the driver nor what it loaded is of use to a child made by fork.
    struct Driver {
        std::mutex mutex;
        std::shared_ptr<const driver::Api> api;
        std::atomic<bool> is_open = false;
    };
    cache::PerProcess<Driver> opened;

    engine::PreparedKernels prepared;
    cache::PerProcess<engine::Background> background;  // the last: what runs there uses all above
};

// Holds nothing of the Runtime that holds it in its table: both may go in either order.
struct __attribute__((visibility("hidden"))) Kernel::Impl {
    std::shared_ptr<const driver::Api> api;
    int device = 0;
    planner::Plan plan;
    std::vector<std::shared_ptr<const engine::LoadedKernel>> loaded;  // of the plan's steps
    std::shared_ptr<const Impl> instead;                 // of what the plan has instead; else null
    std::shared_ptr<const driver::Allocator> allocator;  // of workspaces; null: the driver

    // What is bound with these bounds: `kernel`, or what it has instead.
    static const std::shared_ptr<const Impl>& for_bounds(const std::shared_ptr<const Impl>& kernel,
                                                         const problem::BoundShape& shape) {
        const bool is_it = &planner::plan_for(kernel->plan, shape) == &kernel->plan;
        return is_it ? kernel : kernel->instead;
    }
};

struct __attribute__((visibility("hidden"))) KernelSet::Impl {
    problem::Problem problem;  // its sizes say nothing
    int device = 0;
    families::DeviceTraits traits;
    planner::KernelSet set;
    std::vector<Kernel> kernels;
    std::vector<std::size_t> kernel_of;  // of each of the set's candidates
    mutable engine::PickedSizes picked;
};

struct __attribute__((visibility("hidden"))) Buffer::Impl {
    driver::DeviceMemory memory;
    int device = 0;
};

namespace engine {

// Throws InvalidRequest naming a member of a workspace that is null, misaligned or of less than `needed`
// bytes.
void check_workspace(const Workspace& workspace, std::size_t needed);

}  // namespace engine
}  // namespace attnsmith
