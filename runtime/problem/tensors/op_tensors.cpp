#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <variant>

#include "attnsmith/error.hpp"
#include "problem/request/ops.hpp"
#include "problem/tensors/tensors.hpp"

namespace attnsmith::problem {
namespace {

// What a caller binds for each op. problem/request/ops.hpp has the other columns.
struct OpTensors {
    Op op;
    const char* tensors;  // as messages call them
    bool (*takes)(const Operands& operands);
    // REQUIRES: takes(operands).
    BoundShape (*check_tensors)(const Problem& problem, const Operands& operands);
};

template <class Bound>
bool takes(const Operands& operands) {
    return std::holds_alternative<Bound>(operands);
}

BoundShape check_attention(const Problem& problem, const Operands& operands) {
    const auto& [tensors, batch] = std::get<AttentionOperands>(operands);
    return check_tensors(problem, tensors, batch);
}

BoundShape check_merge(const Problem& problem, const Operands& operands) {
    return check_tensors(problem, std::get<MergeOperands>(operands).tensors);
}

BoundShape check_append(const Problem& problem, const Operands& operands) {
    const auto& [tensors, batch] = std::get<AppendOperands>(operands);
    return check_tensors(problem, tensors, batch);
}

constexpr OpTensors kOpTensors[] = {
    {Op::attention, "AttentionTensors", takes<AttentionOperands>, check_attention},
    {Op::mla, "AttentionTensors", takes<AttentionOperands>, check_attention},
    {Op::merge, "MergeTensors", takes<MergeOperands>, check_merge},
    {Op::append, "AppendTensors", takes<AppendOperands>, check_append},
};

}  // namespace

BoundShape check_operands(const Problem& problem, const Operands& operands) {
    const Op op = op_traits(problem.spec.op).op;
    const auto planned = std::ranges::find(kOpTensors, op, &OpTensors::op);
    if (planned->takes(operands)) return planned->check_tensors(problem, operands);
    const auto bound =
        std::ranges::find_if(kOpTensors, [&](const OpTensors& other) { return other.takes(operands); });
    throw InvalidRequest("op", std::string(to_string(op)),
                         fmt::format("{}, which {} belong to; this kernel was prepared for another op",
                                     to_string(bound->op), bound->tensors));
}

}  // namespace attnsmith::problem
