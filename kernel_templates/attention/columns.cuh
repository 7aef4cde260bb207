// Which columns the keys and values of a kernel have, and in which tensors, as a type: what loaders, scales
// and queries need to know of latent attention.
#pragma once

#include "abi/attention_arguments.h"
#include "abi/key_value_ring.h"

namespace attnsmith {

// K and V are two tensors.
template <class Config>
struct SeparateColumns {
    using KeyValue = typename Config::KeyValue;
    using Key = KeyValue;  // of tiles of keys
    // That a token has of its own.
    static constexpr int kScales = abi::token_scales(false, Config::scale_blocks);
    static constexpr int kValueScales = kScales / 2, kKeyScales = kScales - kValueScales;

    // The columns of key tiles, of the first key of all.
    static __device__ const Key* keys(const abi::AttentionArguments& args) {
        return static_cast<const Key*>(args.k);
    }
};

// Latents are the values and most of each key; tiles of keys have the rest, the columns of the position.
template <class Config>
struct LatentColumns {
    using KeyValue = typename Config::KeyValue;
    using Key = typename Config::Position;
    // One for each block of a latent's columns.
    static constexpr int kScales = abi::token_scales(true, Config::scale_blocks);
    static constexpr int kValueScales = 0, kKeyScales = kScales;

    // In a tensor of their own, or behind the latents' columns.
    static __device__ const Key* keys(const abi::AttentionArguments& args) {
        if constexpr (sizeof(Key) == sizeof(KeyValue)) {
            if (args.k == nullptr) return static_cast<const Key*>(args.v) + Config::head_dim_vo;
        }
        return static_cast<const Key*>(args.k);
    }
};

template <bool Latent, class Config>
struct ColumnsType {
    using Type = SeparateColumns<Config>;
};
template <class Config>
struct ColumnsType<true, Config> {
    using Type = LatentColumns<Config>;
};
template <class Config>
using ColumnsOf = typename ColumnsType<Config::latent, Config>::Type;

}  // namespace attnsmith
