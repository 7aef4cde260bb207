#include "problem/request/ops.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string>

#include "attnsmith/error.hpp"
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

constexpr OpTraits kOps[] = {
    {Op::attention, {}, {}, validate_attention},
    {Op::mla, kMlaFields, kMlaRequired, validate_mla},
    {Op::merge, kMergeFields, {}, validate_merge},
    {Op::append, kAppendFields, {}, validate_append},
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

}  // namespace attnsmith::problem
