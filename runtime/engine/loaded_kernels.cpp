#include "engine/loaded_kernels.hpp"

namespace attnsmith::engine {

std::shared_ptr<const LoadedKernel> LoadedKernels::get(const std::shared_ptr<const driver::Api>& api,
                                                       int ordinal, const planner::KernelConfig& kernel) {
    std::promise<std::shared_ptr<const LoadedKernel>> promise;
    Loading others;
    {
        const std::lock_guard lock(mutex_);
        const auto [at, first] = kernels_.try_emplace({ordinal, kernel});
        if (first) {
            at->second = promise.get_future().share();
        } else {
            others = at->second;
        }
    }
    if (others.valid()) return others.get();
    try {
        auto loaded = load(api, ordinal, kernel);
        promise.set_value(loaded);
        return loaded;
    } catch (...) {
        promise.set_exception(std::current_exception());
        const std::lock_guard lock(mutex_);
        kernels_.erase({ordinal, kernel});  // what failed for a passing reason may be tried again
        throw;
    }
}

std::shared_ptr<const LoadedKernel> LoadedKernels::load(const std::shared_ptr<const driver::Api>& api,
                                                        int ordinal, const planner::KernelConfig& kernel) {
    auto loaded = std::make_shared<LoadedKernel>();
    loaded->config = kernel;
    const auto take = [&](const Cubin& cubin) -> std::optional<std::string> {
        try {
            const auto library = driver::Library::load(api, cubin.bytes);
            loaded->function = std::make_shared<driver::KernelFunction>(
                library, cubin.entry, ordinal, static_cast<std::size_t>(kernel.shared_bytes));
            return std::nullopt;
        } catch (const driver::LoadRefused& refused) {
            return refused.what();
        }
    };
    loaded->cubin = cubins_.obtain(cubins_.source_of(kernel), take).cubin;
    return loaded;
}

}  // namespace attnsmith::engine
