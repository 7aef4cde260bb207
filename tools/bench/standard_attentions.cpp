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

PlanSizes tuning_sizes() { return {.batch = 4, .q_len = 4096, .kv_len = 4096}; }

std::vector<TuningAttention> tuning_attentions() {
    constexpr Heads kTuned[] = {{64, 64, 32, 8},    {80, 80, 32, 8},   {96, 96, 32, 8},
                                {112, 112, 32, 8},  {128, 128, 32, 8}, {160, 160, 32, 8},
                                {192, 128, 32, 32}, {192, 192, 32, 8}, {256, 256, 32, 8}};
    // So short that the rows a tile has too many count, without a group that would make more of them.
    constexpr PlanSizes kShort = {.batch = 32, .q_len = 512, .kv_len = 512};
    constexpr int kShortRows = 1024;
    // So short that starts and joins count, and so much that L2 holds little of it.
    constexpr PlanSizes kDecode = {.batch = 16, .q_len = 1, .kv_len = 2048};
    constexpr std::int64_t kDecodeKvHeads = 8;
    constexpr std::int64_t kDecodePage = 16;  // tokens
    std::vector<TuningAttention> attentions;
    for (const Heads& heads : kTuned) {
        AttentionSpec spec{.head_dim_qk = heads.dim_qk,
                           .head_dim_vo = heads.dim_vo,
                           .q_heads = heads.query,
                           .kv_heads = heads.key_value};
        AttentionSpec decode = spec;
        decode.kv_heads = kDecodeKvHeads;
        for (const std::int64_t page_size : {std::int64_t{0}, kDecodePage}) {
            if (page_size > 0) decode.kv = KvStorage::paged, decode.page_size = page_size;
            TuningAttention one;
            one.attention.request = {.spec = decode, .sizes = kDecode};
            attentions.push_back(std::move(one));
        }
        for (const std::int64_t page_size : {0, 64, 1}) {
            if (page_size > 0) spec.kv = KvStorage::paged, spec.page_size = page_size;
            AttentionSpec causal = spec, window = spec;
            causal.mask = window.mask = Mask::causal;
            window.window_left = 1023;
            for (const AttentionSpec& masked : {spec, causal, window}) {
                TuningAttention one;
                one.attention.request = {.spec = masked, .sizes = tuning_sizes()};
                attentions.push_back(one);
                if (page_size == 1) continue;
                one.attention.request.sizes = kShort;
                one.attention.request.spec.kv_heads = masked.q_heads;
                one.max_rows = kShortRows;
                attentions.push_back(std::move(one));
            }
        }
    }
    return attentions;
}

}  // namespace attnsmith::bench
