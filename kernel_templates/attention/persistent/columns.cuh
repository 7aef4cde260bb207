// Which columns the loaders of a persistent kernel bring, and in which tensors these are. What a loader does
// with panels is the same for all.
#pragma once

#include "abi/attention_persistent.h"
#include "attention/columns.cuh"

namespace attnsmith {

// Bytes of an element of K and V as it is multiplied.
template <class Config>
inline constexpr int32 kOperandBytes = abi::operand_bytes(Config::shape);

// What a panel holds: some columns of a tensor.
struct PanelColumns {
    const abi::TensorMap& map;
    int32 first;
};

// Those of queries.
template <class Config, class Columns = ColumnsOf<Config>>
struct QueryPanels {
    static constexpr int kElementBytes = sizeof(typename Config::Query);
    static constexpr int kPanels = abi::panels_of(Config::head_dim_qk, kElementBytes);

    static __device__ PanelColumns of(const abi::PersistentArguments& args, int panel) {
        return {args.q, panel * abi::panel_elements(kElementBytes)};
    }
};
// Columns of the position have a tensor of their own, or lie behind the others.
template <class Config>
struct QueryPanels<Config, LatentColumns<Config>> {
    static constexpr int kElementBytes = sizeof(typename Config::Query);
    static constexpr int kLatentPanels = abi::panels_of(Config::head_dim_vo, kElementBytes);
    static constexpr int kPanels = kLatentPanels + abi::panels_of(Config::head_dim_qk, kElementBytes);

    static __device__ PanelColumns of(const abi::PersistentArguments& args, int panel) {
        const bool is_apart = panel == kLatentPanels && args.attention.q_pe;
        return {is_apart ? args.q_pe : args.q, is_apart ? 0 : panel * abi::panel_elements(kElementBytes)};
    }
};

// The columns that the K loader, or the V loader, brings of each key.
template <class Config, bool Values, class Columns = ColumnsOf<Config>>
struct KeyPanels {
    static constexpr int kHeadDim = Values ? Config::head_dim_vo : Config::head_dim_qk;
    static constexpr int kElementBytes = sizeof(typename Config::KeyValue);
    static constexpr int kPanels = abi::panels_of(kHeadDim, kElementBytes);
    static constexpr bool kHasPosition = false;  // and the position's, in a panel more
    static constexpr bool kAreValues = Values;   // which P is multiplied by, so that unseen rows are cleared
    static constexpr int kFirstColumn = 0;       // in a row of the tensor
    static constexpr int kRowColumns = kHeadDim;

    static __device__ PanelColumns of(const abi::PersistentArguments& args, int panel) {
        return {kAreValues ? args.v : args.k, panel * abi::panel_elements(kElementBytes)};
    }
    static __device__ bool has_own_position(const abi::PersistentArguments&) { return false; }
    // Where K may be no tensor, its map is not set.
    static __device__ bool has_key_map(const abi::PersistentArguments&) { return true; }
};
// Latents are divided between the two, since one warp would take too long, and the V loader brings the
// position's columns as well.
template <class Config, bool Values>
struct KeyPanels<Config, Values, LatentColumns<Config>> {
    static constexpr int kHeadDim = Config::head_dim_vo / 2;
    static constexpr int kElementBytes = sizeof(typename Config::KeyValue);
    static constexpr int kPanels = abi::panels_of(kHeadDim, kElementBytes);
    static constexpr bool kHasPosition = Values && Config::head_dim_qk > 0;
    static constexpr bool kAreValues = true;
    static constexpr int kFirstColumn = Values ? kHeadDim : 0;
    static constexpr int kRowColumns = Config::head_dim_vo + Config::head_dim_qk;  // at most

    static __device__ PanelColumns of(const abi::PersistentArguments& args, int panel) {
        if (panel < kPanels) return {args.v, kFirstColumn + panel * abi::panel_elements(kElementBytes)};
        return args.attention.k ? PanelColumns{args.k, 0} : PanelColumns{args.v, Config::head_dim_vo};
    }
    // Else the columns of the position lie behind the latents'.
    static __device__ bool has_own_position(const abi::PersistentArguments& args) {
        return kHasPosition && has_key_map(args);
    }
    static __device__ bool has_key_map(const abi::PersistentArguments& args) {
        return args.attention.k != nullptr;
    }
};
template <class Config, bool Values>
struct LoadedColumns : KeyPanels<Config, Values> {
    using Base = KeyPanels<Config, Values>;
    static constexpr int kPieces = abi::column_pieces(Config::shape, Values);
    static constexpr int kWidenedPanels = abi::panels_of(Base::kHeadDim, kOperandBytes<Config>);
};

}  // namespace attnsmith
