#include "attnsmith/error.hpp"
#include "ops/mla/op.hpp"
#include "ops/request_checks.hpp"
#include "problem/request/size_checks.hpp"

namespace attnsmith::ops::mla {
namespace {

using namespace problem;

constexpr std::string_view kFields[] = {
    "op",       "dtype",    "head_dim_ckv", "head_dim_kpe", "q_heads",     "kv_heads",  "mask",
    "scale",    "lse",      "kv",           "page_size",    "index_dtype", "alignment", "o_dtype",
    "kv_dtype", "kv_scale", "consistency",  "batch",        "q_len",       "kv_len",    "sm"};
constexpr std::string_view kRequired[] = {"head_dim_ckv", "head_dim_kpe"};
constexpr std::string_view kWithoutDefault[] = {"head_dim_ckv", "head_dim_kpe", "scale"};

void validate(AttentionSpec& spec, const PlanSizes& sizes) {
    normalise_latents(spec);
    if (!spec.scale)
        throw InvalidRequest(
            "scale", "nothing",
            "the model's factor on q k^T, as head_dim_ckv and head_dim_kpe do not tell it: "
            "1/sqrt(192) where keys have 128 columns and 64 of the position before W_UK is absorbed, "
            "times the square of YaRN's mscale where the model has that");
    check_factor("scale", *spec.scale);
    normalise_output(spec);
    normalise_keys_and_values(spec);
    normalise_storage(spec);
    check_sizes(spec, sizes);
}

}  // namespace

constinit const OpRequest kRequest{.help = "latent attention",
                                   .fields = kFields,
                                   .required = kRequired,
                                   .without_default = kWithoutDefault,
                                   .validate = validate};

}  // namespace attnsmith::ops::mla
