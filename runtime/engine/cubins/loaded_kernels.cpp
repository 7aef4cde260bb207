#include "engine/cubins/loaded_kernels.hpp"

#include "engine/cubins/missing_kernel.hpp"

namespace attnsmith::engine {

std::shared_ptr<const LoadedKernel> LoadedKernels::get(const std::shared_ptr<const driver::Api>& api,
                                                       int ordinal, const families::KernelConfig& kernel) {
    Table& table = table_.get();
    std::shared_ptr<Slot> slot;
    {
        const std::lock_guard lock(table.mutex);
        auto& at = table.slots[{ordinal, kernel}];
        if (!at) at = std::make_shared<Slot>();
        slot = at;
    }
    {
        const std::lock_guard lock(slot->mutex);
        if (slot->loaded) return slot->loaded;
    }
    // All who want the kernel meet in obtain(), where no wait is without an end; the first to come out of it
    // loads.
    std::shared_ptr<const LoadedKernel> mine;
    bool refused_by_driver = false;
    const auto take = [&](const Cubin& cubin) -> std::optional<std::string> {
        const cache::Digest bytes = cache::digest_of(cubin.bytes);
        const std::lock_guard lock(slot->mutex);
        if (!slot->loaded) {
            refused_by_driver = true;  // unless it is loaded below
            if (const auto known = slot->refused.find(bytes); known != slot->refused.end())
                return known->second;
            try {
                const auto library = driver::Library::load(api, cubin.bytes);
                auto loaded = std::make_shared<LoadedKernel>();
                loaded->config = kernel;
                loaded->cubin = std::make_shared<const Cubin>(cubin);
                loaded->function = std::make_shared<driver::KernelFunction>(
                    library, cubin.entry, ordinal, static_cast<std::size_t>(kernel.shared_bytes));
                slot->loaded = std::move(loaded);
            } catch (const driver::LoadRefused& refused) {
                return slot->refused[bytes] = refused.what();
            }
        }
        mine = slot->loaded;
        return std::nullopt;
    };
    const KernelSource source = cubins_.source_of(kernel);
    if (on_miss_ == OnMiss::compile) {
        cubins_.obtain(source, take);
        return mine;
    }
    Cubins::Taken taken = cubins_.take_stored(source, take);
    if (!taken.cubin) throw CubinMissing(source.key, std::move(taken.passed_over), refused_by_driver);
    return mine;
}

}  // namespace attnsmith::engine
