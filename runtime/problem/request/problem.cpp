#include "problem/request/problem.hpp"

#include "problem/request/ops.hpp"
#include "problem/request/request_fields.hpp"
#include "problem/request/size_checks.hpp"
#include "problem/vocabulary.hpp"

namespace attnsmith::problem {

void check_sizes(const Problem& problem) { check_sizes(problem.spec, problem.sizes); }

Problem validate(const AttentionSpec& spec, const PlanSizes& sizes) {
    kOpWords.check_value("op", spec.op);
    const OpRequest& op = op_request(spec.op);
    AttentionRequest request{spec, sizes, {}};
    refuse_other_fields(request);
    check_each_field(request);
    op.validate(request.spec, request.sizes);
    return {request.spec, request.sizes};
}

}  // namespace attnsmith::problem
