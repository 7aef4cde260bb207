#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <span>
#include <string>

#include "attnsmith/error.hpp"
#include "ops/append/op.hpp"
#include "ops/attention/op.hpp"
#include "ops/merge/op.hpp"
#include "ops/mla/op.hpp"
#include "ops/op.hpp"
#include "ops/top_k/op.hpp"
#include "problem/vocabulary.hpp"

namespace attnsmith {
namespace ops {
namespace {

// The one list of ops.
constexpr struct {
    problem::Word<Op> word;
    const OpTraits* traits;
} kOps[] = {{attention::kWord, &attention::kOp},
            {mla::kWord, &mla::kOp},
            {merge::kWord, &merge::kOp},
            {append::kWord, &append::kOp},
            {top_k::kWord, &top_k::kOp}};

constexpr auto kWords = [] {
    std::array<problem::Word<Op>, std::size(kOps)> words{};
    std::ranges::transform(kOps, words.begin(), [](const auto& op) { return op.word; });
    return words;
}();

static_assert(problem::has_numbers_of_c(std::span<const problem::Word<Op>>(kWords)));

const OpTraits* find(Op op) {
    const auto found = std::ranges::find(kOps, op, [](const auto& one) { return one.word.value; });
    return found == std::end(kOps) ? nullptr : found->traits;
}

}  // namespace

const OpTraits& op_traits(Op op) { return *find(op); }

problem::BoundShape check_operands(const problem::Problem& problem, const Operands& operands) {
    const Op op = problem.spec.op;
    if (const OpTraits& planned = op_traits(op); planned.tensors_of == operands.op)
        return planned.check_tensors(problem, operands);
    throw InvalidRequest("op", std::string(to_string(op)),
                         fmt::format("{}, which {} belong to; this kernel was prepared for another op",
                                     to_string(operands.op), op_traits(operands.op).tensors));
}

void check_workspace(const problem::Problem& problem, void* data, std::int64_t bytes,
                     const Operands& operands) {
    op_traits(problem.spec.op).check_workspace(problem, data, bytes, operands);
}

}  // namespace ops

namespace problem {

constinit const WordList<Op> kOpWords{ops::kWords};

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
