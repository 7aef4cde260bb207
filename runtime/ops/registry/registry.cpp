#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string>

#include "attnsmith/error.hpp"
#include "ops/append/op.hpp"
#include "ops/attention/op.hpp"
#include "ops/merge/op.hpp"
#include "ops/mla/op.hpp"
#include "ops/op.hpp"
#include "problem/vocabulary.hpp"

namespace attnsmith {
namespace ops {
namespace {

// The one list of ops.
constexpr const OpTraits* kOps[] = {&attention::kOp, &mla::kOp, &merge::kOp, &append::kOp};

const OpTraits* find(Op op) {
    const auto found = std::ranges::find(kOps, op, [](const OpTraits* one) { return one->request->op; });
    return found == std::end(kOps) ? nullptr : *found;
}

}  // namespace

const OpTraits& op_traits(Op op) { return *find(op); }

problem::BoundShape check_operands(const problem::Problem& problem, const Operands& operands) {
    const Op op = problem.spec.op;
    if (const OpTraits& planned = op_traits(op); planned.takes(operands))
        return planned.check_tensors(problem, operands);
    const auto bound =
        std::ranges::find_if(kOps, [&](const OpTraits* other) { return other->takes(operands); });
    throw InvalidRequest("op", std::string(to_string(op)),
                         fmt::format("{}, which {} belong to; this kernel was prepared for another op",
                                     to_string((*bound)->request->op), (*bound)->tensors));
}

void check_workspace(const problem::Problem& problem, void* data, std::int64_t bytes,
                     const Operands& operands) {
    op_traits(problem.spec.op).check_workspace(problem, data, bytes, operands);
}

}  // namespace ops

namespace problem {

const OpRequest* find_op(Op op) {
    const ops::OpTraits* const traits = ops::find(op);
    return traits == nullptr ? nullptr : traits->request;
}

const OpRequest& op_request(Op op) {
    if (const OpRequest* const request = find_op(op)) return *request;
    throw Unsupported(fmt::format("op {} is not supported", to_string(op)), {});
}

}  // namespace problem
}  // namespace attnsmith
