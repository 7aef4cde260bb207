#include <fmt/format.h>

#include <string>

#include "ops/top_k/op.hpp"
#include "ops/top_k/tensors.hpp"

namespace attnsmith::ops::top_k {
namespace {

constexpr Role kSteps[] = {Role::top_k};

InvalidRequest too_large(const TooLarge& launch) {
    return {"scores.shape[0]", std::to_string(launch.items),
            fmt::format("at most {} rows; divide them", launch.most)};
}

}  // namespace

constinit const OpTraits kOp{.request = &kRequest,
                             .tensors = "TopKTensors",
                             .tensors_of = TopKTensors::kOp,
                             .check_tensors = check_tensors,
                             .check_workspace = check_workspace,
                             .steps = kSteps,
                             .main = Role::top_k,
                             .has_status = true,
                             .is_exact = true,
                             .too_large = too_large};

}  // namespace attnsmith::ops::top_k
