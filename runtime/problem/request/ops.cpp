#include "problem/request/ops.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string>

#include "attnsmith/error.hpp"
#include "problem/request/request_fields.hpp"
#include "problem/request/validation.hpp"

namespace attnsmith::problem {
namespace {

constexpr std::string_view kMergeFields[] = {"op",      "dtype",  "head_dim",  "head_dim_vo",
                                             "q_heads", "lse",    "alignment", "batch",
                                             "q_len",   "kv_len", "sm"};

constexpr std::string_view kMlaFields[] = {
    "op",       "dtype",    "head_dim_ckv", "head_dim_kpe", "q_heads",     "kv_heads",  "mask",
    "scale",    "lse",      "kv",           "page_size",    "index_dtype", "alignment", "o_dtype",
    "kv_dtype", "kv_scale", "consistency",  "batch",        "q_len",       "kv_len",    "sm"};
constexpr std::string_view kMlaRequired[] = {"head_dim_ckv", "head_dim_kpe"};

constexpr std::string_view kAppendFields[] = {
    "op",       "dtype",    "head_dim", "head_dim_qk", "head_dim_vo", "head_dim_ckv", "head_dim_kpe",
    "q_heads",  "kv_heads", "kv",       "page_order",  "page_size",   "index_dtype",  "alignment",
    "kv_dtype", "kv_scale", "slots",    "rope",        "rotary_dim",  "rope_table",   "rope_factor",
    "q_norm",   "k_norm",   "v_norm",   "norm_eps",    "q_dtype",     "check_slots",  "batch",
    "q_len",    "kv_len",   "sm"};

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

constexpr OpTraits kOps[] = {
    {Op::attention,
     {},
     {},
     validate_attention,
     "AttentionTensors",
     takes<AttentionOperands>,
     check_attention},
    {Op::mla, kMlaFields, kMlaRequired, validate_mla, "AttentionTensors", takes<AttentionOperands>,
     check_attention},
    {Op::merge, kMergeFields, {}, validate_merge, "MergeTensors", takes<MergeOperands>, check_merge},
    {Op::append, kAppendFields, {}, validate_append, "AppendTensors", takes<AppendOperands>, check_append},
};

}  // namespace

const OpTraits* find_op(Op op) {
    const auto found = std::ranges::find(kOps, op, &OpTraits::op);
    return found == std::end(kOps) ? nullptr : found;
}

const OpTraits& op_traits(Op op) {
    if (const OpTraits* const traits = find_op(op)) return *traits;
    throw Unsupported(fmt::format("op {} is not supported", to_string(op)), {});
}

const char* leading_head_dim(Op op) {
    return counts("head_dim_qk", op)   ? "head_dim_qk"
           : counts("head_dim_vo", op) ? "head_dim_vo"
                                       : "head_dim_ckv";
}

BoundShape check_operands(const Problem& problem, const Operands& operands) {
    const OpTraits& planned = op_traits(problem.spec.op);
    if (planned.takes(operands)) return planned.check_tensors(problem, operands);
    const auto bound = std::ranges::find_if(kOps, [&](const OpTraits& op) { return op.takes(operands); });
    throw InvalidRequest("op", std::string(to_string(problem.spec.op)),
                         fmt::format("{}, which {} belong to; this kernel was prepared for another op",
                                     to_string(bound->op), bound->tensors));
}

}  // namespace attnsmith::problem
