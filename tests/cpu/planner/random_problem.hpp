// Problems at random, of which any must be planned well.
#pragma once

#include <algorithm>
#include <iterator>
#include <random>
#include <type_traits>

#include "attnsmith/spec.hpp"

namespace attnsmith::test {

template <typename... T>
std::common_type_t<T...> pick_of(std::mt19937& random, T... values) {
    const std::common_type_t<T...> list[] = {values...};
    return list[random() % std::size(list)];
}

inline AttentionSpec random_spec(std::mt19937& random) {
    const auto pick = [&](auto... values) { return pick_of<std::int64_t>(random, values...); };
    AttentionSpec spec;
    spec.dtype = random() % 2 ? DType::bf16 : DType::fp16;
    spec.head_dim_qk = 8 * (1 + static_cast<std::int64_t>(random() % 32));
    spec.head_dim_vo = random() % 3 == 0 ? 8 * (1 + static_cast<std::int64_t>(random() % 32)) : 0;
    spec.kv_heads = pick(1, 2, 4, 8, 16);
    spec.q_heads = spec.kv_heads * pick(1, 2, 3, 4, 7, 8, 16);
    spec.mask = random() % 2 ? Mask::causal : Mask::full;
    if (random() % 3 == 0) spec.window_left = static_cast<std::int64_t>(random() % 5000);
    if (random() % 4 == 0) spec.attention_chunk = 1 + static_cast<std::int64_t>(random() % 9000);
    // Without another draw, which would make all later problems others.
    if (spec.mask == Mask::causal && spec.head_dim_qk % 5 == 3) spec.causal_block = 2 + 3 * spec.head_dim_qk;
    if (random() % 3 == 0) spec.softcap = 30.0;
    spec.alibi = random() % 4 == 0;
    spec.sink = random() % 4 == 0;
    spec.alignment = static_cast<int>(pick(16, 8, 4, 2));
    spec.index_dtype = random() % 2 ? DType::int32 : DType::int64;
    if (random() % 3 == 0) spec.o_dtype = DType::fp32;
    switch (random() % 3) {
        case 0:
            spec.kv = KvStorage::dense;
            break;
        case 1:
            spec.kv = KvStorage::ragged;
            break;
        default:
            spec.kv = KvStorage::paged, spec.page_size = pick(1, 3, 16, 64, 256);
    }
    return spec;
}

// The same with keys and values of 8 bits now and then, where kernels may be for them.
inline AttentionSpec random_stored_spec(std::mt19937& random) {
    AttentionSpec spec = random_spec(random);
    if (random() % 2 || spec.head_dim_qk % 16 != 0 || spec.head_dim_vo % 16 != 0) return spec;
    spec.kv_dtype = random() % 2 ? DType::e4m3 : DType::e5m2;
    spec.kv_scale = random() % 2 ? KvScale::head : KvScale::none;
    return spec;
}

// ---- Every op that reads or writes keys, with all that changes its kernels. What these give is valid, and
// served on every SM.

// Head dims to 512, keys of 8 bits with every kind of scale, and one of bitwise rows and P in fp32.
inline AttentionSpec random_attention(std::mt19937& random) {
    AttentionSpec spec = random_spec(random);
    const bool wide = random() % 8 == 0;
    if (wide) spec.head_dim_qk += 256;
    if (random() % 8 == 0) spec.head_dim_vo = 8 * (1 + static_cast<std::int64_t>(random() % 64));
    switch (random() % 4) {
        case 0:
            spec.consistency = Consistency::bitwise;
            break;
        case 1:  // on CUDA cores, whose lanes have 256 columns and read keys of 16 bits
            spec.head_dim_qk = std::min<std::int64_t>(spec.head_dim_qk, 256);
            spec.head_dim_vo = std::min<std::int64_t>(spec.head_dim_vo, 256);
            spec.precision = Precision::high;
            return spec;
        default:
            break;
    }
    if (random() % 2) return spec;
    spec.kv_dtype = pick_of(random, DType::e4m3, DType::e5m2);
    spec.kv_scale = pick_of(random, KvScale::none, KvScale::tensor, KvScale::head, KvScale::token_head,
                            KvScale::block128);
    const bool blocks = spec.kv_scale == KvScale::block128;
    for (std::int64_t* const columns : {&spec.head_dim_qk, &spec.head_dim_vo}) {
        *columns = (*columns + 15) / 16 * 16;
        if (blocks) *columns = std::min<std::int64_t>(*columns, 128);
    }
    return spec;
}

// Where the keys of `spec` are, and how 8 bits of latents are scaled.
inline void store_randomly(AttentionSpec& spec, std::mt19937& random) {
    spec.index_dtype = pick_of(random, DType::int32, DType::int64);
    spec.alignment = pick_of(random, 16, 8, 4, 2);
    if (spec.kv == KvStorage::paged) spec.page_size = pick_of(random, 1, 3, 16, 64, 256);
}
inline void scale_latents_randomly(AttentionSpec& spec, std::mt19937& random) {
    spec.kv_dtype = pick_of(random, DType::e4m3, DType::e5m2);
    spec.kv_scale = pick_of(random, KvScale::none, KvScale::tensor, KvScale::head, KvScale::token_head,
                            KvScale::block128);
    if (spec.kv_scale == KvScale::block128)
        spec.head_dim_ckv = pick_of(random, 128, 256, 512);
    else
        spec.head_dim_kpe = spec.head_dim_kpe / 16 * 16;
}

inline AttentionSpec random_mla(std::mt19937& random) {
    AttentionSpec spec{.op = Op::mla,
                       .dtype = pick_of(random, DType::bf16, DType::fp16),
                       .head_dim_ckv = 64 * (1 + static_cast<std::int64_t>(random() % 8)),
                       .head_dim_kpe = 8 * static_cast<std::int64_t>(random() % 9),
                       .q_heads = pick_of(random, 1, 8, 16, 64, 128),
                       .mask = pick_of(random, Mask::full, Mask::causal),
                       .scale = 0.1};
    spec.kv = pick_of(random, KvStorage::dense, KvStorage::ragged, KvStorage::paged);
    store_randomly(spec, random);
    if (random() % 3 == 0) spec.o_dtype = DType::fp32;
    if (random() % 3 == 0) spec.consistency = Consistency::bitwise;
    if (random() % 2) scale_latents_randomly(spec, random);
    return spec;
}

inline AttentionSpec random_append(std::mt19937& random) {
    const auto some = [&] { return random() % 2 == 0; };
    AttentionSpec spec{.op = Op::append, .dtype = pick_of(random, DType::bf16, DType::fp16)};
    spec.kv = pick_of(random, KvStorage::dense, KvStorage::paged);
    store_randomly(spec, random);
    const bool latent = random() % 3 == 0;
    if (latent) {
        spec.head_dim_ckv = 64 * (1 + static_cast<std::int64_t>(random() % 8));
        spec.head_dim_kpe = 16 * (1 + static_cast<std::int64_t>(random() % 4));
        spec.q_heads = pick_of(random, 1, 16, 128);
    } else {
        spec.head_dim_qk = 16 * (1 + static_cast<std::int64_t>(random() % 32));
        spec.head_dim_vo = some() ? 0 : 16 * (1 + static_cast<std::int64_t>(random() % 32));
        spec.kv_heads = pick_of(random, 1, 2, 8);
        spec.q_heads = spec.kv_heads * pick_of(random, 1, 3, 8);
    }
    if (some()) {
        spec.rope = pick_of(random, Rope::half, Rope::interleaved);
        spec.rope_table = pick_of(random, RopeTable::cos_sin, RopeTable::frequencies);
        if (some()) spec.rotary_dim = 8;
    }
    spec.q_norm = some() && !latent, spec.k_norm = some(), spec.v_norm = some() && !latent;
    if (some()) spec.q_dtype = pick_of(random, DType::e4m3, DType::e5m2);
    spec.slots = pick_of(random, Slots::mapping, Slots::table);
    spec.check_slots = spec.slots == Slots::mapping && some();
    if (some()) return spec;
    if (latent) {
        scale_latents_randomly(spec, random);
        return spec;
    }
    spec.kv_dtype = pick_of(random, DType::e4m3, DType::e5m2);
    spec.kv_scale = pick_of(random, KvScale::none, KvScale::tensor, KvScale::head, KvScale::token_head);
    return spec;
}

inline AttentionSpec random_spec_of_any_op(std::mt19937& random) {
    switch (random() % 5) {
        case 0:
            return random_mla(random);
        case 1:
            return random_append(random);
        default:
            return random_attention(random);
    }
}

inline PlanSizes random_sizes(std::mt19937& random) {
    const auto up_to = [&](int bits) {
        const auto value = random();  // before the range, whatever the compiler
        return static_cast<std::int64_t>(value % (1u << (1 + random() % static_cast<unsigned>(bits))));
    };
    return {.batch = 1 + up_to(9), .q_len = up_to(14), .kv_len = up_to(17)};
}

}  // namespace attnsmith::test
