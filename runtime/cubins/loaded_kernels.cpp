#include "cubins/loaded_kernels.hpp"

#include "cubins/missing_kernel.hpp"

namespace attnsmith::engine {

std::optional<std::string> LoadedKernels::Slot::load(const std::shared_ptr<const driver::Api>& api,
                                                     int ordinal, const families::KernelConfig& kernel,
                                                     const Cubin& cubin) {
    const cache::Digest bytes = cache::digest_of(cubin.bytes);
    if (const auto known = refused.find(bytes); known != refused.end()) return known->second;
    try {
        const auto library = driver::Library::load(api, cubin.bytes);
        auto made = std::make_shared<LoadedKernel>();
        made->config = kernel;
        made->cubin = std::make_shared<const Cubin>(cubin);
        made->function = std::make_shared<driver::KernelFunction>(
            library, cubin.entry, ordinal, static_cast<std::size_t>(kernel.shared_bytes));
        loaded = std::move(made);
        return std::nullopt;
    } catch (const driver::LoadRefused& refusal) {
        return refused[bytes] = refusal.what();
    }
}

std::shared_ptr<LoadedKernels::Slot> LoadedKernels::slot_of(int ordinal,
                                                            const families::KernelConfig& kernel) {
    Table& table = table_.get();
    const std::lock_guard lock(table.mutex);
    auto& slot = table.slots[{ordinal, kernel}];
    if (!slot) slot = std::make_shared<Slot>();
    return slot;
}

std::shared_ptr<const LoadedKernel> LoadedKernels::get(const std::shared_ptr<const driver::Api>& api,
                                                       int ordinal, const families::KernelConfig& kernel,
                                                       cache::Urgency urgency) {
    const std::shared_ptr<Slot> slot = slot_of(ordinal, kernel);
    {
        const std::lock_guard lock(slot->mutex);
        if (slot->loaded) return slot->loaded;
    }
    // All who want the kernel meet in obtain(), where no wait is without an end; the first to come out of it
    // loads.
    std::shared_ptr<const LoadedKernel> mine;
    bool refused_by_driver = false;
    const auto take = [&](const Cubin& cubin) -> std::optional<std::string> {
        const std::lock_guard lock(slot->mutex);
        if (!slot->loaded) {
            if (auto refusal = slot->load(api, ordinal, kernel, cubin)) {
                refused_by_driver = true;
                return refusal;
            }
        }
        mine = slot->loaded;
        return std::nullopt;
    };
    const KernelSource source = cubins_.source_of(kernel);
    if (on_miss_ == OnMiss::compile) {
        cubins_.obtain(source, take, {.urgency = urgency});
        return mine;
    }
    Cubins::Taken taken = cubins_.take_stored(source, take);
    if (!taken.cubin) throw CubinMissing(source.key, std::move(taken.passed_over), refused_by_driver);
    return mine;
}

}  // namespace attnsmith::engine
