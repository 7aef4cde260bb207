#include "cli/kernel_entries.hpp"

#include <nlohmann/json.hpp>

namespace attnsmith::cli {
namespace {

KernelEntry read_entry(cache::ListedEntry listed) {
    KernelEntry kernel{.entry = std::move(listed), .name = {}, .target = {}};
    const auto metadata = nlohmann::json::parse(kernel.entry.metadata, nullptr, false);
    if (!metadata.is_object()) return kernel;
    const auto text = [&](const char* field) {
        const auto found = metadata.find(field);
        return found != metadata.end() && found->is_string() ? found->get<std::string>() : std::string();
    };
    kernel.name = text("name");
    kernel.target = text("target");
    const auto sm = metadata.find("sm");
    if (sm != metadata.end() && sm->is_number_integer()) kernel.sm = sm->get<int>();
    return kernel;
}

}  // namespace

cache::Options store_options(const engine::Settings& settings) {
    cache::Options options;
    if (settings.cache_dirs.empty()) return options;
    options.directory = settings.cache_dirs.front();
    options.read_only_layers.assign(settings.cache_dirs.begin() + 1, settings.cache_dirs.end());
    return options;
}

std::vector<KernelEntry> list_kernels(const cache::Store& store) {
    std::vector<KernelEntry> kernels;
    for (cache::ListedEntry& listed : store.list()) kernels.push_back(read_entry(std::move(listed)));
    return kernels;
}

}  // namespace attnsmith::cli
