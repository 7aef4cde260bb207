#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "attnsmith/error.hpp"
#include "ops/append/op.hpp"
#include "ops/request_checks.hpp"
#include "problem/json_text.hpp"
#include "problem/request/request_fields.hpp"
#include "problem/request/size_checks.hpp"
#include "problem/request/spec_facts.hpp"
#include "problem/vocabulary.hpp"

namespace attnsmith::ops::append {
namespace {

using namespace problem;

constexpr std::string_view kFields[] = {
    "op",       "dtype",    "head_dim", "head_dim_qk", "head_dim_vo", "head_dim_ckv", "head_dim_kpe",
    "q_heads",  "kv_heads", "kv",       "page_order",  "page_size",   "index_dtype",  "alignment",
    "kv_dtype", "kv_scale", "slots",    "rope",        "rotary_dim",  "rope_table",   "rope_factor",
    "q_norm",   "k_norm",   "v_norm",   "norm_eps",    "q_dtype",     "check_slots",  "batch",
    "q_len",    "kv_len",   "sm"};
constexpr std::string_view kOfLatents[] = {"head_dim_ckv", "head_dim_kpe"};
constexpr std::string_view kOfHeads[] = {"head_dim",   "head_dim_qk", "head_dim_vo",
                                         "page_order", "q_norm",      "v_norm"};

bool counts_in_form(std::string_view field, const AttentionSpec& spec) {
    const auto is_one_of = [&](const auto& fields) {
        return std::ranges::find(fields, field) != std::end(fields);
    };
    return is_latent(spec) ? !is_one_of(kOfHeads) : !is_one_of(kOfLatents);
}

std::string_view form(const AttentionSpec& spec) { return is_latent(spec) ? " and head_dim_ckv" : ""; }

// Latents have no head dims.
bool checks_head_dims(const nlohmann::json& object) {
    if (!object.contains("head_dim_ckv")) return false;
    for (const char* other : {"head_dim", "head_dim_qk", "head_dim_vo"}) {
        if (object.contains(other))
            throw InvalidRequest(other, describe(object[other]),
                                 "nothing beside head_dim_ckv: latents have it and head_dim_kpe");
    }
    if (!object.contains("head_dim_kpe"))
        throw InvalidRequest(
            "head_dim_kpe", "nothing",
            fmt::format("{} (the field is required beside head_dim_ckv)", find_field("head_dim_kpe")->help));
    return true;
}

// Heads of their own columns, or latents.
void normalise_appended_heads(AttentionSpec& spec) {
    if (is_latent(spec)) return normalise_latents(spec);
    normalise_head_dims(spec);
    normalise_heads(spec);
}

// A field that says nothing in this request, and was given.
void refuse_unused(std::string_view field, bool is_given, const std::string& value, std::string_view needs) {
    if (is_given)
        throw InvalidRequest(std::string(field), value, fmt::format("nothing: it counts with {}", needs));
}

void normalise_rope(AttentionSpec& spec) {
    const auto factor = [&] { return fmt::format("{}", spec.rope_factor.value_or(0)); };
    if (spec.rope == Rope::none) {
        constexpr const char* kNeeds = "a rope alone, half or interleaved";
        refuse_unused("rotary_dim", spec.rotary_dim != 0, std::to_string(spec.rotary_dim), kNeeds);
        refuse_unused("rope_table", spec.rope_table != RopeTable::cos_sin,
                      std::string(to_string(spec.rope_table)), kNeeds);
        refuse_unused("rope_factor", spec.rope_factor.has_value(), factor(), kNeeds);
        return;
    }
    const bool latent = is_latent(spec);
    const std::int64_t columns = latent ? spec.head_dim_kpe : spec.head_dim_qk;
    if (columns == 0)
        throw InvalidRequest("rope", std::string(to_string(spec.rope)),
                             "none, since head_dim_kpe is 0: there are no columns of the position");
    if (spec.rotary_dim == 0) spec.rotary_dim = columns;
    if (spec.rotary_dim < 2 || spec.rotary_dim > columns || spec.rotary_dim % 2 != 0)
        throw InvalidRequest("rotary_dim", std::to_string(spec.rotary_dim),
                             fmt::format("an even number from 2 to {}, which is {}, or 0 for all of them",
                                         columns, latent ? "head_dim_kpe" : "head_dim_qk"));
    if (spec.rope_table == RopeTable::frequencies) {
        if (!spec.rope_factor) spec.rope_factor = 1.0;
        return check_factor("rope_factor", *spec.rope_factor);
    }
    refuse_unused("rope_factor", spec.rope_factor.has_value(), factor(),
                  "rope_table frequencies alone; a table of cosines and sines has it already");
}

void normalise_norms(AttentionSpec& spec) {
    if (!spec.q_norm && !spec.k_norm && !spec.v_norm) {
        const std::string eps = fmt::format("{}", spec.norm_eps.value_or(0));
        return refuse_unused("norm_eps", spec.norm_eps.has_value(), eps, "q_norm, k_norm or v_norm alone");
    }
    if (!spec.norm_eps) spec.norm_eps = 1e-6;
    check_factor("norm_eps", *spec.norm_eps);
}

void normalise_written_queries(AttentionSpec& spec) {
    if (!spec.q_dtype) spec.q_dtype = spec.dtype;
    const DType dtype = *spec.q_dtype;
    if (is_fp8(dtype))
        return is_latent(spec) ? check_fp8_head_dim("head_dim_kpe", spec.head_dim_kpe, "q_dtype", dtype)
                               : check_fp8_head_dim("head_dim_qk", spec.head_dim_qk, "q_dtype", dtype);
    if (dtype != spec.dtype)
        throw InvalidRequest("q_dtype", std::string(to_string(dtype)),
                             fmt::format("{}, as dtype is, e4m3 or e5m2", to_string(spec.dtype)));
}

void validate(AttentionSpec& spec, const PlanSizes& sizes) {
    normalise_appended_heads(spec);
    normalise_keys_and_values(spec);
    if (spec.kv == KvStorage::ragged)
        throw InvalidRequest("kv", "ragged", "dense or paged: there is no room behind ragged sequences");
    normalise_storage(spec);
    normalise_rope(spec);
    normalise_norms(spec);
    normalise_written_queries(spec);
    refuse_unused("check_slots", spec.check_slots && spec.slots == Slots::table, "true",
                  "slots mapping alone; a table gives each token of a sequence a slot of its own");
    check_sizes(spec, sizes);
}

}  // namespace

constinit const OpRequest kRequest{.help = "writes keys and values into a cache",
                                   .fields = kFields,
                                   .required = {},
                                   .without_default = kOfLatents,
                                   .validate = validate,
                                   .counts = counts_in_form,
                                   .form = form,
                                   .checks_head_dims = checks_head_dims};

}  // namespace attnsmith::ops::append
