// Problems at random, of which any must be planned well.
#pragma once

#include <random>

#include "attnsmith/spec.hpp"

namespace attnsmith::test {

inline AttentionSpec random_spec(std::mt19937& random) {
    const auto pick = [&](auto... values) {
        const std::int64_t list[] = {static_cast<std::int64_t>(values)...};
        return list[random() % std::size(list)];
    };
    AttentionSpec spec;
    spec.dtype = random() % 2 ? DType::bf16 : DType::f16;
    spec.head_dim_qk = 8 * (1 + static_cast<std::int64_t>(random() % 32));
    spec.head_dim_vo = random() % 3 == 0 ? 8 * (1 + static_cast<std::int64_t>(random() % 32)) : 0;
    spec.kv_heads = pick(1, 2, 4, 8, 16);
    spec.q_heads = spec.kv_heads * pick(1, 2, 3, 4, 7, 8, 16);
    spec.mask = random() % 2 ? Mask::causal : Mask::full;
    if (random() % 3 == 0) spec.window_left = static_cast<std::int64_t>(random() % 5000);
    if (random() % 4 == 0) spec.attention_chunk = 1 + static_cast<std::int64_t>(random() % 9000);
    if (random() % 3 == 0) spec.softcap = 30.0;
    spec.alibi = random() % 4 == 0;
    spec.sink = random() % 4 == 0;
    spec.alignment = static_cast<int>(pick(16, 8, 4, 2));
    spec.index_dtype = random() % 2 ? DType::i32 : DType::i64;
    if (random() % 3 == 0) spec.o_dtype = DType::f32;
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

inline PlanSizes random_sizes(std::mt19937& random) {
    const auto up_to = [&](int bits) {
        return static_cast<std::int64_t>(random() % (1u << (1 + random() % static_cast<unsigned>(bits))));
    };
    return {.batch = 1 + up_to(9), .q_len = up_to(14), .kv_len = up_to(17)};
}

}  // namespace attnsmith::test
