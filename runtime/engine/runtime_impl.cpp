// What a Runtime holds, and how it reaches the driver and its devices.
#include "engine/runtime_impl.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "compiler/inside.hpp"
#include "engine/tuning_files.hpp"
#include "problem/compute_capability.hpp"
#include "problem/request/problem.hpp"

namespace attnsmith {
namespace {

std::shared_ptr<const driver::Allocator> allocator_of(const RuntimeOptions& options) {
    if (!options.device_allocate && !options.device_free) return nullptr;
    if (!options.device_allocate || !options.device_free) {
        throw InvalidRequest(options.device_allocate ? "device_free" : "device_allocate", "absent",
                             "both of device_allocate and device_free, or neither");
    }
    return std::make_shared<const driver::Allocator>(
        driver::Allocator{options.device_allocate, options.device_free});
}

bool is_capability(int number) {
    return std::ranges::find(problem::known_sms(), number) != problem::known_sms().end();
}

}  // namespace

Runtime::Impl::Impl(const RuntimeOptions& options)
    : settings(engine::settle(options)),
      log(std::make_shared<const engine::Log>(settings.log_level, settings.log)),
      tuning(engine::load_tuning(settings.tuning_files)),
      cubins(settings, log),
      loaded(cubins, settings.on_miss),
      recorder(settings.record_file, log),
      driver_path(options.driver_path),
      allocator(allocator_of(options)) {
    compiler::wait_at_exit();
    if (settings.cache_dirs.empty() && options.use_cache) {
        (*log)(LogLevel::warn, "kernels are kept in memory only, because {}", settings.no_cache_because);
    }
}

const std::shared_ptr<const driver::Api>& Runtime::Impl::driver() {
    Driver& driver = opened.get();
    if (!driver.is_open.load(std::memory_order_acquire)) {
        const std::lock_guard lock(driver.mutex);
        if (!driver.api) {
            driver.api = driver::Api::open(driver_path);
            (*log)(LogLevel::info, "CUDA driver {} is {}", driver.api->version_text(), driver.api->path());
            driver.is_open.store(true, std::memory_order_release);
        }
    }
    return driver.api;
}

int Runtime::Impl::ordinal_of(int device) {
    const driver::Api& api = *driver();
    if (device == kCurrentDevice) return driver::current_device(api);
    if (api.device_count() > 0 && device >= api.device_count() && is_capability(device)) {
        throw InvalidRequest("device", std::to_string(device),
                             fmt::format("a device from 0 to {}; {} is a compute capability, which sm takes",
                                         api.device_count() - 1, device));
    }
    api.device_handle(device);  // throws where there is no such device
    return device;
}

int Runtime::Impl::ordinal_for(const AttentionSpec& spec, const PlanSizes& sizes, int device) {
    try {
        return ordinal_of(device);
    } catch (const Error&) {
        recorder.record(problem::validate(spec, sizes));
        throw;
    }
}

families::DeviceTraits Runtime::Impl::traits(int ordinal) {
    const driver::Device device = driver::query_device(*driver(), ordinal);
    return families::traits_of_device(device.sm, device.name, device.sm_count);
}

}  // namespace attnsmith
