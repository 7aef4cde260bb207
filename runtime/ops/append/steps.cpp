#include <fmt/format.h>

#include "ops/append/op.hpp"
#include "ops/append/tensors.hpp"

namespace attnsmith::ops::append {
namespace {

constexpr Role kSteps[] = {Role::append};

InvalidRequest too_large(const TooLarge& launch) {
    return {"q", fmt::format("tokens that need {} warps", launch.items),
            fmt::format("tokens that need at most {}; divide the tokens", launch.most)};
}

}  // namespace

constinit const OpTraits kOp{.request = &kRequest,
                             .tensors = "AppendTensors",
                             .tensors_of = AppendTensors::kOp,
                             .check_tensors = check_tensors,
                             .check_workspace = check_workspace,
                             .steps = kSteps,
                             .main = Role::append,
                             .has_status = true,
                             .is_exact = true,
                             .too_large = too_large};

}  // namespace attnsmith::ops::append
