#include "bench/standard_attentions.hpp"

#include <string>

namespace attnsmith::bench {
namespace {

struct Heads {
    std::int64_t dim_qk, dim_vo, query, key_value;
};

// Head counts of models that have these dimensions.
constexpr Heads kHeads[] = {
    {64, 64, 64, 8}, {96, 96, 32, 32}, {128, 128, 32, 8}, {192, 128, 128, 128}, {256, 256, 16, 8}};

ModelAttention attention_of(const Heads& heads, const char* phase, std::int64_t q_len) {
    ModelAttention attention;
    const std::string dims = heads.dim_qk == heads.dim_vo
                                 ? std::to_string(heads.dim_qk)
                                 : std::to_string(heads.dim_qk) + "x" + std::to_string(heads.dim_vo);
    attention.name = "head_dim " + dims + "/" + phase;
    attention.phase = phase;
    attention.layers = 1;
    AttentionSpec& spec = attention.request.spec;
    spec.head_dim_qk = heads.dim_qk;
    spec.head_dim_vo = heads.dim_vo;
    spec.q_heads = heads.query;
    spec.kv_heads = heads.key_value;
    spec.mask = Mask::causal;
    spec.kv = KvStorage::paged;
    spec.page_size = 16;
    attention.request.sizes = {.batch = 8, .q_len = q_len, .kv_len = 4096};
    return attention;
}

}  // namespace

std::vector<ModelAttention> standard_attentions() {
    std::vector<ModelAttention> attentions;
    for (const Heads& heads : kHeads) {
        attentions.push_back(attention_of(heads, "prefill", 1024));
        attentions.push_back(attention_of(heads, "decode", 1));
    }
    return attentions;
}

}  // namespace attnsmith::bench
