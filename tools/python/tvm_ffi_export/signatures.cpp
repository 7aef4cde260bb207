#include "signatures.hpp"

#include <algorithm>
#include <array>

namespace attnsmith::tvm_ffi {
namespace {

using python::field_of;

template <class Member>
consteval Parameter needed(const char* name, Member member, const char* field_name = nullptr) {
    return {name, Kind::tensor, field_of(member), nullptr, field_name};
}
template <class Member>
consteval Parameter optional(const char* name, Member member) {
    return {name, Kind::tensor_or_none, field_of(member), "None", nullptr};
}

constexpr Parameter q = needed("q", &attnsmith_tensors::q), k = needed("k", &attnsmith_tensors::k),
                    v = needed("v", &attnsmith_tensors::v), out = needed("out", &attnsmith_tensors::o, "o"),
                    k_cache = needed("k_cache", &attnsmith_tensors::k, "k"),
                    v_cache = needed("v_cache", &attnsmith_tensors::v, "v"),
                    ckv = needed("ckv", &attnsmith_tensors::k, "k"),
                    q_indptr = needed("q_indptr", &attnsmith_batch::q_indptr),
                    kv_indptr = needed("kv_indptr", &attnsmith_batch::kv_indptr),
                    lse = optional("lse", &attnsmith_tensors::lse);
// Given by position, and None where pages are listed by page_indptr.
constexpr Parameter page_table{"page_table", Kind::tensor_or_none, field_of(&attnsmith_batch::page_table),
                               nullptr, nullptr},
    kv_lens{"kv_lens", Kind::tensor_or_none, field_of(&attnsmith_batch::kv_lens), nullptr, nullptr};
constexpr Parameter o_states{"o_states", Kind::tensor, kOStates, nullptr, nullptr},
    lse_states{"lse_states", Kind::tensor, kLseStates, nullptr, nullptr};

constexpr Parameter causal{"causal", Kind::flag, kCausal, "False", nullptr},
    scale{"scale", Kind::number, kScale, "0.0", nullptr},
    needed_scale{"scale", Kind::number, kScale, nullptr, nullptr},
    page_order{"page_order", Kind::word, kPageOrder, "NHD", nullptr},
    head_dim_ckv{"head_dim_ckv", Kind::integer, kHeadDimCkv, "0", nullptr},
    max_q_len{"max_q_len", Kind::integer, kMaxQLen, "0", nullptr},
    max_kv_len{"max_kv_len", Kind::integer, kMaxKvLen, "0", nullptr},
    kv_dtype{"kv_dtype", Kind::word, kKvDType, "None", nullptr},
    precision{"precision", Kind::word, kPrecision, "standard", nullptr},
    consistency{"consistency", Kind::word, kConsistency, "standard", nullptr};

// What the first three functions end with.
constexpr std::array kRest{Parameter{"window_left", Kind::integer, kWindowLeft, "-1", nullptr},
                           Parameter{"window_right", Kind::integer, kWindowRight, "-1", nullptr},
                           Parameter{"attention_chunk", Kind::integer, kAttentionChunk, "0", nullptr},
                           Parameter{"softcap", Kind::number, kSoftcap, "0.0", nullptr},
                           optional("sinks", &attnsmith_tensors::sinks),
                           optional("alibi_slopes", &attnsmith_tensors::alibi_slopes),
                           optional("k_scale", &attnsmith_tensors::k_scale),
                           optional("v_scale", &attnsmith_tensors::v_scale),
                           kv_dtype,
                           precision,
                           consistency};
// What sequences in pages have besides.
constexpr std::array kPaging{optional("q_indptr", &attnsmith_batch::q_indptr),
                             optional("q_lens", &attnsmith_batch::q_lens),
                             optional("table_rows", &attnsmith_batch::table_rows),
                             optional("page_indptr", &attnsmith_batch::page_indptr),
                             optional("page_indices", &attnsmith_batch::page_indices),
                             optional("last_page_len", &attnsmith_batch::last_page_len)};

template <std::size_t... sizes>
consteval auto joined(const std::array<Parameter, sizes>&... parts) {
    std::array<Parameter, (sizes + ...)> all{};
    std::size_t at = 0;
    ((std::copy(parts.begin(), parts.end(), all.begin() + static_cast<std::ptrdiff_t>(at)), at += sizes),
     ...);
    return all;
}

constexpr auto kAttention =
    joined(std::array{q, k, v, out, lse, causal, scale, optional("q_lens", &attnsmith_batch::q_lens),
                      optional("kv_lens", &attnsmith_batch::kv_lens)},
           kRest);
constexpr auto kVarlen =
    joined(std::array{q, k, v, q_indptr, kv_indptr, out, lse, causal, scale, max_q_len, max_kv_len}, kRest);
constexpr auto kPaged = joined(std::array{q, k_cache, v_cache, page_table, kv_lens, out, lse, causal, scale,
                                          page_order, max_q_len, max_kv_len},
                               kPaging, kRest);
constexpr auto kMla = joined(
    std::array{q, ckv, page_table, kv_lens, out, needed_scale, lse, causal,
               optional("q_pe", &attnsmith_tensors::q_pe), optional("kpe", &attnsmith_tensors::kpe),
               head_dim_ckv, max_q_len, max_kv_len, optional("kv_indptr", &attnsmith_batch::kv_indptr)},
    kPaging, std::array{optional("k_scale", &attnsmith_tensors::k_scale), kv_dtype, consistency});
constexpr std::array kMerge{o_states, lse_states, out, lse};

}  // namespace

const Function attention_function{"attention", Storage::dense, kAttention};
const Function varlen_attention_function{"varlen_attention", Storage::ragged, kVarlen};
const Function paged_attention_function{"paged_attention", Storage::paged, kPaged};
const Function mla_attention_function{"mla_attention", Storage::latent, kMla};
const Function merge_states_function{"merge_states", Storage::merge, kMerge};

std::size_t Function::required() const {
    std::size_t count = parameters.size();
    while (count > 0 && parameters[count - 1].fallback != nullptr) --count;
    return count;
}

std::string Function::signature() const {
    std::string text = std::string(name) + "(";
    for (const Parameter& one : parameters) {
        if (text.back() != '(') text += ", ";
        text += one.name;
        if (one.fallback == nullptr) continue;
        const std::string fallback = one.fallback;
        const bool is_quoted = one.kind == Kind::word && fallback != "None";
        text += "=" + (is_quoted ? '"' + fallback + '"' : fallback);
    }
    return text + ")";
}

}  // namespace attnsmith::tvm_ffi
