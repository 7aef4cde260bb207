#include "cubins/cubin.hpp"

namespace attnsmith::engine {

planner::CacheState cache_state(const cache::Digest& key, const Cubin* cubin) {
    planner::CacheState state{.key = key.hex()};
    if (cubin != nullptr) {
        state.hit = true;
        state.toolchain = cubin->toolchain.to_string();
        state.compiled = cubin->resources;
    }
    return state;
}

}  // namespace attnsmith::engine
