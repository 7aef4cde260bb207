#include "families/registry/registry.hpp"

#include <algorithm>

#include "families/append/family.hpp"
#include "families/attention_cuda_core/family.hpp"
#include "families/attention_mma/family.hpp"
#include "families/attention_wgmma/family.hpp"
#include "families/merge_splits/family.hpp"
#include "families/merge_states/family.hpp"
#include "families/top_k/family.hpp"
#include "families/widen_keys/family.hpp"

namespace attnsmith::families {

std::vector<const Family*> all_families() {
    // A family a line.
    // clang-format off
    return {
        &attention_wgmma::family(),
        &attention_mma::family(),
        &attention_cuda_core::family(),
        &widen_keys::family(),
        &merge_splits::family(),
        &merge_states::family(),
        &append::family(),
        &top_k::family(),
    };
    // clang-format on
}

std::vector<Backend> all_backends() {
    std::vector<Backend> backends;
    for (const Family* family : all_families()) {
        if (std::ranges::find(backends, family->backend()) == backends.end())
            backends.push_back(family->backend());
    }
    return backends;
}

}  // namespace attnsmith::families
