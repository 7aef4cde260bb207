#include "ops/top_k/op.hpp"
#include "problem/request/size_checks.hpp"

namespace attnsmith::ops::top_k {
namespace {

using namespace problem;

constexpr std::string_view kFields[] = {"op", "index_dtype", "batch", "q_len", "kv_len", "sm"};

void validate(AttentionSpec& spec, const PlanSizes& sizes) { check_sizes(spec, sizes); }

}  // namespace

constinit const OpRequest kRequest{.help = "selects the largest scores of rows",
                                   .fields = kFields,
                                   .required = {},
                                   .without_default = {},
                                   .validate = validate};

}  // namespace attnsmith::ops::top_k
