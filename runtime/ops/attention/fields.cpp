#include <cmath>
#include <string>

#include "attnsmith/error.hpp"
#include "ops/attention/op.hpp"
#include "ops/request_checks.hpp"
#include "problem/request/size_checks.hpp"

namespace attnsmith::ops::attention {
namespace {

using namespace problem;

constexpr std::string_view kFields[] = {"op",
                                        "dtype",
                                        "head_dim",
                                        "head_dim_qk",
                                        "head_dim_vo",
                                        "q_heads",
                                        "kv_heads",
                                        "mask",
                                        "window_left",
                                        "window_right",
                                        "attention_chunk",
                                        "causal_block",
                                        "scale",
                                        "softcap",
                                        "alibi",
                                        "sink",
                                        "lse",
                                        "kv",
                                        "page_order",
                                        "page_size",
                                        "index_dtype",
                                        "alignment",
                                        "o_dtype",
                                        "kv_dtype",
                                        "kv_scale",
                                        "precision",
                                        "consistency",
                                        "batch",
                                        "q_len",
                                        "kv_len",
                                        "sm"};

// A causal mask ends at the query's own key, so it would drop a window to the right of it.
void normalise_window(AttentionSpec& spec) {
    if (spec.mask != Mask::causal || !spec.window_right) return;
    if (*spec.window_right != 0)
        throw InvalidRequest(
            "window_right", std::to_string(*spec.window_right),
            "nothing, -1 or 0 with mask causal, which ends at the query's own key; or mask full");
    spec.window_right.reset();
}

// A block of one token ends at the query's own key, as every causal mask does.
void normalise_causal_block(AttentionSpec& spec) {
    if (!spec.causal_block) return;
    if (spec.mask != Mask::causal)
        throw InvalidRequest("causal_block", std::to_string(*spec.causal_block),
                             "nothing with mask full, which hides no later key; or mask causal");
    if (*spec.causal_block == 1) spec.causal_block.reset();
}

void normalise_factors(AttentionSpec& spec) {
    if (!spec.scale) spec.scale = 1.0 / std::sqrt(static_cast<double>(spec.head_dim_qk));
    check_factor("scale", *spec.scale);
    if (spec.softcap == 0.0) spec.softcap.reset();  // the other libraries' word for none
    if (spec.softcap) check_factor("softcap", *spec.softcap, ", or 0 for none");
}

void validate(AttentionSpec& spec, const PlanSizes& sizes) {
    normalise_head_dims(spec);
    normalise_heads(spec);
    normalise_window(spec);
    normalise_causal_block(spec);
    normalise_factors(spec);
    normalise_output(spec);
    normalise_keys_and_values(spec);
    normalise_storage(spec);
    check_sizes(spec, sizes);
}

}  // namespace

constinit const OpRequest kRequest{
    .help = "", .fields = kFields, .required = {}, .without_default = {}, .validate = validate};

}  // namespace attnsmith::ops::attention
