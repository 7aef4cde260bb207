#include <fmt/format.h>

#include <string>

#include "ops/merge/op.hpp"
#include "ops/merge/tensors.hpp"

namespace attnsmith::ops::merge {
namespace {

constexpr Role kSteps[] = {Role::merge_states};

InvalidRequest too_large(const TooLarge& launch) {
    return {"q_tokens", std::to_string(launch.rows / launch.heads),
            fmt::format("at most {} in one merge of {} heads", launch.most * launch.tile_rows / launch.heads,
                        launch.heads)};
}

}  // namespace

constinit const OpTraits kOp{.request = &kRequest,
                             .tensors = "MergeTensors",
                             .tensors_of = MergeTensors::kOp,
                             .check_tensors = check_tensors,
                             .steps = kSteps,
                             .main = Role::merge_states,
                             .too_large = too_large};

}  // namespace attnsmith::ops::merge
