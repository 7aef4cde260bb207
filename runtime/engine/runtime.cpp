#include "attnsmith/runtime.hpp"

#include <fmt/format.h>

#include <functional>
#include <thread>

#include "compiler/inside.hpp"
#include "engine/cubins/missing_kernel.hpp"
#include "engine/runtime_impl.hpp"
#include "engine/tuning_files.hpp"
#include "problem/request/request_fields.hpp"

namespace attnsmith {
namespace {

constexpr std::size_t kMostPrepared = 4096;

class HashState {
  public:
    template <class T>
    HashState& add(const T& value) {
        // The golden ratio spreads consecutive values (boost::hash_combine's mixing, 64 bits wide).
        state_ ^= std::hash<T>{}(value) + 0x9e3779b97f4a7c15ULL + (state_ << 12) + (state_ >> 4);
        return *this;
    }
    std::size_t value() const { return state_; }

  private:
    std::size_t state_ = 0;
};

std::string summary_of(const planner::Plan& plan) {
    const planner::Step* attention = plan.find(planner::Role::attention);
    if (attention == nullptr) return plan.steps.front().kernel.name();
    return fmt::format("{}, {}", attention->kernel.name(),
                       plan.split.chunk > 0 ? fmt::format("KV split in chunks of {} keys", plan.split.chunk)
                                            : "KV not split");
}

std::shared_ptr<const driver::Allocator> allocator_of(const RuntimeOptions& options) {
    if (!options.allocate && !options.free) return nullptr;
    if (!options.allocate || !options.free) {
        throw InvalidRequest(options.allocate ? "free" : "allocate", "absent",
                             "both of allocate and free, or neither");
    }
    return std::make_shared<const driver::Allocator>(driver::Allocator{options.allocate, options.free});
}

}  // namespace

std::size_t PreparedKeyHash::operator()(const PreparedKey& key) const noexcept {
    return HashState()
        .add(problem::hash_of(key.spec))
        .add(key.device)
        .add(key.sizes.batch)
        .add(key.sizes.q_len)
        .add(key.sizes.kv_len)
        .value();
}

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

Kernel Runtime::Impl::prepare(const AttentionSpec& spec, const PlanSizes& sizes, int device) {
    const problem::Problem problem = problem::validate(spec, sizes);
    recorder.record(problem);
    planner::Plan plan = planner::make_plan(problem, traits(device), tuning);
    (*log)(LogLevel::info, "{}: {}", plan.device.name, summary_of(plan));
    for (const Refusal& refusal : plan.rejected) {
        (*log)(LogLevel::debug, "not {}: {}", refusal.candidate, refusal.reason);
    }
    return load(std::move(plan), device);
}

Kernel Runtime::Impl::load(planner::Plan plan, int device) {
    try {
        return load_all(plan, device);
    } catch (const engine::CubinMissing& missing) {
        throw engine::missing_kernel(settings, plan, missing);
    }
}

Kernel Runtime::Impl::load_all(planner::Plan plan, int device) {
    auto kernel = std::make_shared<Kernel::Impl>();
    kernel->api = driver();
    kernel->device = device;
    kernel->allocator = allocator;
    kernel->plan = std::move(plan);
    const std::vector<planner::Step>& steps = kernel->plan.steps;
    kernel->loaded.resize(steps.size());
    const driver::ContextScope scope(*driver(), device);
    const auto obtain = [&](std::size_t step) {
        kernel->loaded[step] = loaded.get(driver(), device, steps[step].kernel);
    };
    // The others on threads of their own if there are any to be had; in the caller's context there, too.
    std::vector<std::future<void>> others;
    for (std::size_t i = 1; i < steps.size(); ++i) {
        others.push_back(std::async(std::launch::async | std::launch::deferred, [&, i] {
            const driver::ContextScope same(*driver(), scope.context());
            obtain(i);
        }));
    }
    obtain(0);
    for (std::future<void>& other : others) other.get();
    Kernel handle;
    handle.impl_ = kernel;
    return handle;
}

Kernel Runtime::Impl::prepare_once(const PreparedKey& key) {
    Prepared& table = prepared.get();
    {
        const std::shared_lock lock(table.mutex);
        const auto found = table.kernels.find(key);
        if (found != table.kernels.end()) return found->second;
    }
    Kernel kernel = prepare(key.spec, key.sizes, key.device);
    const std::unique_lock lock(table.mutex);
    // An engine may prepare for each length it meets. Loaded kernels are kept elsewhere, so that starting
    // over costs a plan, not a compile.
    if (table.kernels.size() >= kMostPrepared) table.kernels.clear();
    return table.kernels.try_emplace(key, kernel).first->second;
}

Runtime::Runtime(RuntimeOptions options) : impl_(std::make_shared<Impl>(options)) {}
Runtime::~Runtime() = default;
Runtime::Runtime(Runtime&&) noexcept = default;
Runtime& Runtime::operator=(Runtime&&) noexcept = default;

Runtime::Impl& Runtime::impl() const {
    if (!impl_) throw Error("this Runtime is empty: it was moved from");
    return *impl_;
}

Kernel Runtime::prepare(const AttentionSpec& spec, const PlanSizes& sizes, int device) {
    return impl().prepare_once({impl().ordinal_for(spec, sizes, device), spec, sizes});
}

std::shared_future<Kernel> Runtime::prepare_async(const AttentionSpec& spec, const PlanSizes& sizes,
                                                  int device) {
    const int ordinal = impl().ordinal_for(spec, sizes, device);
    const driver::ContextScope scope(*impl().driver(), ordinal);
    return impl().background.get().start(
        [&of = impl(), key = PreparedKey{ordinal, spec, sizes}, context = scope.context()] {
            const driver::ContextScope same(*of.driver(), context);
            return of.prepare_once(key);
        });
}

std::string Runtime::plan_json(const AttentionSpec& spec, const PlanSizes& sizes, int sm) const {
    const problem::Problem problem = problem::validate(spec, sizes);
    const families::DeviceTraits device =
        sm == 0 ? impl().traits(impl().ordinal_of(kCurrentDevice)) : families::traits_of(sm);
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
    } catch (const Error& error) {
        (*of.log)(LogLevel::debug, "no devices: {}", error.what());
    }
    return infos;
}

Buffer Runtime::allocate(std::size_t bytes, int device) const {
    Buffer buffer;
    buffer.impl_ = std::make_unique<Buffer::Impl>();
    buffer.impl_->memory =
        driver::DeviceMemory(impl().driver(), bytes, impl().ordinal_of(device), impl().allocator);
    return buffer;
}

void Runtime::synchronize(Stream stream) const { driver::synchronize(*impl().driver(), stream); }

Buffer::Buffer() = default;
Buffer::~Buffer() = default;
Buffer::Buffer(Buffer&&) noexcept = default;
Buffer& Buffer::operator=(Buffer&&) noexcept = default;

void* Buffer::data() const noexcept { return impl_ ? impl_->memory.data() : nullptr; }
std::size_t Buffer::bytes() const noexcept { return impl_ ? impl_->memory.bytes() : 0; }

namespace {

void check_range(std::size_t size, std::size_t bytes, std::size_t offset) {
    if (offset > size || bytes > size - offset) {
        throw InvalidRequest("bytes", fmt::format("{} at {}", bytes, offset),
                             fmt::format("a range within {}", size));
    }
}

}  // namespace

void Buffer::upload(const void* host, std::size_t bytes, std::size_t offset) {
    check_range(this->bytes(), bytes, offset);
    if (bytes > 0) impl_->memory.upload(host, bytes, offset);
}

void Buffer::download(void* host, std::size_t bytes, std::size_t offset) const {
    check_range(this->bytes(), bytes, offset);
    if (bytes > 0) impl_->memory.download(host, bytes, offset);
}

namespace engine {

planner::CacheState cache_state(const cache::Digest& key, const Cubin* cubin) {
    planner::CacheState state{.key = key.hex()};
    if (cubin != nullptr) {
        state.hit = true;
        state.toolchain = cubin->toolchain.to_string();
        state.compiled = cubin->resources;
    }
    return state;
}

}  // namespace engine
}  // namespace attnsmith
