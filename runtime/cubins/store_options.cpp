#include "cubins/store_options.hpp"

#include "cubins/cubin_entry.hpp"

namespace attnsmith::engine {

cache::Options store_options(const Settings& settings) {
    cache::Options options;
    options.trust = settings.cache_trust;
    options.trusted_keys = settings.trusted_keys;
    options.max_bytes = settings.cache_max_bytes;
    options.file_system = settings.file_system;
    options.check_content = find_fault;
    if (settings.cache_dirs.empty()) return options;
    options.directory = settings.cache_dirs.front();
    options.read_only_layers.assign(settings.cache_dirs.begin() + 1, settings.cache_dirs.end());
    return options;
}

}  // namespace attnsmith::engine
