#include "ops/merge/op.hpp"
#include "ops/request_checks.hpp"
#include "problem/limits.hpp"
#include "problem/request/size_checks.hpp"

namespace attnsmith::ops::merge {
namespace {

using namespace problem;

constexpr std::string_view kFields[] = {"op",        "dtype", "head_dim", "head_dim_vo", "q_heads", "lse",
                                        "alignment", "batch", "q_len",    "kv_len",      "sm"};

void validate(AttentionSpec& spec, const PlanSizes& sizes) {
    check_head_dim("head_dim_vo", spec.head_dim_vo, "head_dim");
    check_range("q_heads", spec.q_heads, 1, kMaxHeads);
    check_sizes(spec, sizes);
}

}  // namespace

constinit const OpRequest kRequest{.help = "joins results over disjoint keys",
                                   .fields = kFields,
                                   .required = {},
                                   .without_default = {},
                                   .validate = validate};

}  // namespace attnsmith::ops::merge
