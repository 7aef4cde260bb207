// Valid structs for the fuzzer to break: specs, and the tensors that fit them.
#pragma once

#include <attnsmith/attnsmith.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

namespace attnsmith::test {

inline constexpr std::int64_t kBatch = 2, kQueries = 4, kKeys = 32, kHeads = 4, kKvHeads = 2, kDim = 16;
inline constexpr std::int64_t kPageSize = 16, kPages = 4;

inline constexpr attnsmith_dl_data_type kBf16{ATTNSMITH_DL_BFLOAT, 16, 1}, kF32{ATTNSMITH_DL_FLOAT, 32, 1},
    kI32{ATTNSMITH_DL_INT, 32, 1}, kI64{ATTNSMITH_DL_INT, 64, 1}, kE4m3{ATTNSMITH_DL_E4M3FN, 8, 1},
    kE5m2{ATTNSMITH_DL_E5M2, 8, 1}, kU8{ATTNSMITH_DL_UINT, 8, 1};

inline constexpr std::int64_t kLatent = 128, kPosition = 64, kTokens = kBatch * kQueries, kAngles = 100;
inline constexpr std::int64_t kColumns = 90, kSelected = 7;  // of op top_k

// stored: keys of 8 bits. scaled: the same in pages, with a scale of each token and bitwise rows. latent: op
// mla, with bitwise rows. append: with slots, 8 bits and scales written. append_table: latents, with a page
// table.
enum class Kind {
    dense,
    ragged,
    paged,
    stored,
    scaled,
    latent,
    merge,
    merge_lse,
    append,
    append_table,
    top_k
};
inline constexpr Kind kKinds[] = {Kind::dense,  Kind::ragged,       Kind::paged, Kind::stored,
                                  Kind::scaled, Kind::latent,       Kind::merge, Kind::merge_lse,
                                  Kind::append, Kind::append_table, Kind::top_k};
inline constexpr std::size_t kAttentionKinds = 6;  // the first ones
// Of these a set of kernels is prepared. Compiling them takes nearly all of the fuzzer's time, so the others
// have the kernels of the sizes below alone.
inline constexpr Kind kSetKinds[] = {Kind::dense,  Kind::ragged,       Kind::merge, Kind::merge_lse,
                                     Kind::append, Kind::append_table, Kind::top_k};

// Kernels of few columns take less time to compile; those of 64 have tensor maps.
inline std::int64_t dim_of(Kind kind) { return kind == Kind::dense || kind == Kind::ragged ? 64 : kDim; }

inline bool is_merge(Kind kind) { return kind == Kind::merge || kind == Kind::merge_lse; }
inline bool is_append(Kind kind) { return kind == Kind::append || kind == Kind::append_table; }
inline bool is_attention(Kind kind) { return static_cast<std::size_t>(kind) < kAttentionKinds; }

inline attnsmith_spec valid_append_spec(Kind kind) {
    attnsmith_spec spec{};
    spec.size = sizeof spec;
    spec.op = ATTNSMITH_OP_APPEND;
    spec.q_heads = kHeads;
    spec.kv = ATTNSMITH_KV_PAGED;
    spec.page_size = kPageSize;
    if (kind == Kind::append) {
        spec.head_dim_qk = kDim;
        spec.kv_heads = kKvHeads;
        spec.kv_dtype = ATTNSMITH_DTYPE_E4M3;
        spec.kv_scale = ATTNSMITH_KV_SCALE_TOKEN_HEAD;
        spec.q_dtype = ATTNSMITH_DTYPE_E5M2;
        spec.rope = ATTNSMITH_ROPE_HALF;
        spec.k_norm = spec.check_slots = 1;
        spec.norm_eps = 1e-5;
    } else {
        spec.head_dim_ckv = kLatent;
        spec.head_dim_kpe = kPosition;
        spec.slots = ATTNSMITH_SLOTS_TABLE;
        spec.rope = ATTNSMITH_ROPE_INTERLEAVED;
        spec.rope_table = ATTNSMITH_ROPE_TABLE_FREQUENCIES;
        spec.rope_factor = 1.5;
    }
    return spec;
}

inline attnsmith_spec valid_spec(Kind kind) {
    if (is_append(kind)) return valid_append_spec(kind);
    attnsmith_spec spec{};
    spec.size = sizeof spec;
    if (kind == Kind::top_k) {
        spec.op = ATTNSMITH_OP_TOP_K;
        spec.index_dtype = ATTNSMITH_DTYPE_INT64;
        return spec;
    }
    spec.q_heads = kHeads;
    if (is_merge(kind)) {
        spec.op = ATTNSMITH_OP_MERGE;
        spec.head_dim_vo = kDim;
        spec.lse = kind == Kind::merge_lse ? 1 : 0;
        return spec;
    }
    spec.mask = ATTNSMITH_MASK_CAUSAL;
    if (kind == Kind::latent) {
        spec.op = ATTNSMITH_OP_MLA;
        spec.head_dim_ckv = kLatent;
        spec.head_dim_kpe = kPosition;
        spec.scale = 0.1;
        spec.lse = 1;
    } else {
        spec.head_dim_qk = dim_of(kind);
        spec.kv_heads = kKvHeads;
    }
    if (kind == Kind::ragged) {
        spec.kv = ATTNSMITH_KV_RAGGED;
        spec.lse = spec.sink = 1;
    } else if (kind == Kind::stored) {
        spec.kv_dtype = ATTNSMITH_DTYPE_E4M3;
        spec.kv_scale = ATTNSMITH_KV_SCALE_HEAD;
    } else if (kind != Kind::dense) {
        spec.kv = ATTNSMITH_KV_PAGED;
        spec.page_size = kPageSize;
    }
    if (kind == Kind::paged) {
        spec.alibi = 1;
        spec.index_dtype = ATTNSMITH_DTYPE_INT64;
    } else if (kind == Kind::scaled) {
        spec.kv_dtype = ATTNSMITH_DTYPE_E5M2;
        spec.kv_scale = ATTNSMITH_KV_SCALE_TOKEN_HEAD;
    }
    if (kind == Kind::scaled || kind == Kind::latent) spec.consistency = ATTNSMITH_CONSISTENCY_BITWISE;
    return spec;
}

// A tensor with room for more axes than any has.
struct FuzzTensor {
    static constexpr int kRoom = 8;

    std::string name;
    bool output = false;
    bool operand = false;    // of q, k, v and o: aligned to 16 bytes
    bool optional = false;   // may be left out
    bool any_count = false;  // may have any number of its first axis
    bool any_width = false;  // may have any number of its last axis
    std::array<std::int64_t, kRoom> shape{}, strides{};
    attnsmith_dl_tensor view{};
    const attnsmith_dl_tensor** slot = nullptr;  // in the struct that holds it

    FuzzTensor(std::string called, const attnsmith_dl_tensor** at, void* data, attnsmith_dl_data_type dtype,
               std::initializer_list<std::int64_t> extents)
        : name(std::move(called)), slot(at) {
        std::copy(extents.begin(), extents.end(), shape.begin());
        view.data = data;
        view.device = {ATTNSMITH_DL_CUDA, 0};
        view.ndim = static_cast<std::int32_t>(extents.size());
        view.dtype = dtype;
    }

    bool takes_any(std::size_t axis) const {
        return (any_count && axis == 0) || (any_width && axis + 1 == static_cast<std::size_t>(view.ndim));
    }

    void write_compact_strides() {
        std::uint64_t stride = 1;  // of a broken shape it wraps
        for (int axis = view.ndim - 1; axis >= 0; --axis) {
            strides[static_cast<std::size_t>(axis)] = static_cast<std::int64_t>(stride);
            stride *= static_cast<std::uint64_t>(shape[static_cast<std::size_t>(axis)]);
        }
        view.strides = strides.data();
    }
};

// Tensors that do not overlap. Not to be copied: the structs of those that derive from it point into it.
class TensorList {
  public:
    TensorList() { list.reserve(16); }
    TensorList(const TensorList&) = delete;
    TensorList& operator=(const TensorList&) = delete;

    // Null where there is none.
    FuzzTensor* find(const std::string& name) {
        const auto found = std::find_if(list.begin(), list.end(),
                                        [&](const FuzzTensor& tensor) { return tensor.name == name; });
        return found == list.end() ? nullptr : &*found;
    }

    // REQUIRES: the last tensor is optional.
    void leave_out_last() {
        *list.back().slot = nullptr;
        list.pop_back();
    }

    std::vector<FuzzTensor> list;

  protected:
    // Addresses alone: the stub of the driver runs nothing.
    FuzzTensor& add(const char* name, const attnsmith_dl_tensor** slot, attnsmith_dl_data_type dtype,
                    std::initializer_list<std::int64_t> extents) {
        next_ += std::uintptr_t{1} << 24;
        return list.emplace_back(name, slot, reinterpret_cast<void*>(next_), dtype, extents);
    }

    void operand(const char* name, const attnsmith_dl_tensor** slot, attnsmith_dl_data_type dtype,
                 std::initializer_list<std::int64_t> extents) {
        FuzzTensor& tensor = add(name, slot, dtype, extents);
        tensor.operand = true;
        tensor.output = *name == 'o';
    }

    void output(const char* name, const attnsmith_dl_tensor** slot, attnsmith_dl_data_type dtype,
                std::initializer_list<std::int64_t> extents) {
        add(name, slot, dtype, extents).output = true;
    }

    // Once the list is whole.
    void fill_slots() {
        for (FuzzTensor& tensor : list) {
            tensor.view.shape = tensor.shape.data();
            *tensor.slot = &tensor.view;
        }
    }

  private:
    std::uintptr_t next_ = std::uintptr_t{1} << 40;
};

// What a valid bind of a kind of attention has.
class Operands : public TensorList {
  public:
    explicit Operands(Kind kind) {
        tensors.size = sizeof tensors;
        batch.size = sizeof batch;
        const std::int64_t dim = dim_of(kind);
        if (kind == Kind::ragged) {
            operand("q", &tensors.q, kBf16, {kTokens, kHeads, dim});
            operand("k", &tensors.k, kBf16, {kBatch * kKeys, kKvHeads, dim});
            operand("v", &tensors.v, kBf16, {kBatch * kKeys, kKvHeads, dim});
            operand("o", &tensors.o, kBf16, {kTokens, kHeads, dim});
            output("lse", &tensors.lse, kF32, {kTokens, kHeads});
            add("sinks", &tensors.sinks, kF32, {kHeads});
            add("batch.q_indptr", &batch.q_indptr, kI32, {kBatch + 1});
            add("batch.kv_indptr", &batch.kv_indptr, kI32, {kBatch + 1});
        } else if (kind == Kind::latent) {
            operand("q", &tensors.q, kBf16, {kBatch, kQueries, kHeads, kLatent});
            operand("q_pe", &tensors.q_pe, kBf16, {kBatch, kQueries, kHeads, kPosition});
            operand("k", &tensors.k, kBf16, {kPages, kPageSize, kLatent});
            operand("kpe", &tensors.kpe, kBf16, {kPages, kPageSize, kPosition});
            operand("o", &tensors.o, kBf16, {kBatch, kQueries, kHeads, kLatent});
            output("lse", &tensors.lse, kF32, {kBatch, kQueries, kHeads});
        } else {
            const attnsmith_dl_data_type stored = kind == Kind::stored   ? kE4m3
                                                  : kind == Kind::scaled ? kU8
                                                                         : kBf16;
            const bool dense = kind == Kind::dense || kind == Kind::stored;
            const std::int64_t outer = dense ? kBatch : kPages, inner = dense ? kKeys : kPageSize;
            operand("q", &tensors.q, kBf16, {kBatch, kQueries, kHeads, dim});
            operand("k", &tensors.k, stored, {outer, inner, kKvHeads, dim});
            operand("v", &tensors.v, stored, {outer, inner, kKvHeads, dim});
            operand("o", &tensors.o, kBf16, {kBatch, kQueries, kHeads, dim});
        }
        if (kind == Kind::paged) add("alibi_slopes", &tensors.alibi_slopes, kF32, {kHeads});
        if (kind == Kind::stored) {
            add("k_scale", &tensors.k_scale, kF32, {kKvHeads});
            add("v_scale", &tensors.v_scale, kF32, {kKvHeads});
        } else if (kind == Kind::scaled) {
            add("k_scale", &tensors.k_scale, kF32, {kPages, kPageSize, kKvHeads});
            add("v_scale", &tensors.v_scale, kF32, {kPages, kPageSize, kKvHeads});
        }
        if (kind == Kind::paged || kind == Kind::scaled || kind == Kind::latent) {
            const attnsmith_dl_data_type index = kind == Kind::paged ? kI64 : kI32;
            add("batch.page_table", &batch.page_table, index, {kBatch, 2});
            add("batch.kv_lens", &batch.kv_lens, index, {kBatch});
        }
        fill_slots();
    }

    attnsmith_tensors tensors{};
    attnsmith_batch batch{};
};

// What a valid bind of an append has.
class AppendOperands : public TensorList {
  public:
    explicit AppendOperands(Kind kind) : by_table(kind == Kind::append_table) {
        tensors.size = sizeof tensors;
        batch.size = sizeof batch;
        if (by_table) {
            add("q", &tensors.q, kBf16, {kTokens, kHeads, kPosition});
            add("k", &tensors.k, kBf16, {kTokens, kLatent});
            add("kpe", &tensors.kpe, kBf16, {kTokens, kPosition});
            output("q_out", &tensors.q_out, kBf16, {kTokens, kHeads, kPosition});
            output("k_cache", &tensors.k_cache, kBf16, {kPages, kPageSize, kLatent});
            output("kpe_cache", &tensors.kpe_cache, kBf16, {kPages, kPageSize, kPosition});
            add("rope_table", &tensors.rope_table, kF32, {kPosition / 2});
            add("batch.q_indptr", &batch.q_indptr, kI32, {kBatch + 1});
            add("batch.page_table", &batch.page_table, kI32, {kBatch, 2});
            add("batch.kv_lens", &batch.kv_lens, kI32, {kBatch});
        } else {
            add("q", &tensors.q, kBf16, {kTokens, kHeads, kDim});
            add("k", &tensors.k, kBf16, {kTokens, kKvHeads, kDim});
            add("v", &tensors.v, kBf16, {kTokens, kKvHeads, kDim});
            output("q_out", &tensors.q_out, kE5m2, {kTokens, kHeads, kDim});
            output("k_cache", &tensors.k_cache, kE4m3, {kPages, kPageSize, kKvHeads, kDim});
            output("v_cache", &tensors.v_cache, kU8, {kPages, kPageSize, kKvHeads, kDim});
            add("slot_mapping", &tensors.slot_mapping, kI64, {kTokens});
            add("positions", &tensors.positions, kI32, {kTokens});
            add("rope_table", &tensors.rope_table, kBf16, {kAngles, kDim}).any_count = true;
            add("k_norm_weight", &tensors.k_norm_weight, kF32, {kDim});
            output("k_scale", &tensors.k_scale, kF32, {kPages, kPageSize, kKvHeads});
            output("v_scale", &tensors.v_scale, kF32, {kPages, kPageSize, kKvHeads});
            add("q_scale", &tensors.q_scale, kF32, {1}).optional = true;
        }
        fill_slots();
    }

    const bool by_table;
    attnsmith_append_tensors tensors{};
    attnsmith_batch batch{};
};

// What a valid bind of a selection has.
class TopKOperands : public TensorList {
  public:
    TopKOperands() {
        tensors.size = sizeof tensors;
        batch.size = sizeof batch;
        add("scores", &tensors.scores, kF32, {kTokens, kColumns}).any_width = true;
        output("indices", &tensors.indices, kI32, {kTokens, kSelected});
        list.back().any_width = true;
        add("row_starts", &tensors.row_starts, kI64, {kTokens}).optional = true;
        add("row_ends", &tensors.row_ends, kI64, {kTokens}).optional = true;
        fill_slots();
    }

    attnsmith_top_k_tensors tensors{};
    attnsmith_batch batch{};
};

// What a valid bind of a merge has. Not to be copied.
class MergeOperands {
  public:
    static constexpr std::size_t kMostStates = 32;  // that a merge takes
    static constexpr std::size_t kRoom = 40;

    // REQUIRES: 1 <= states <= kRoom.
    MergeOperands(Kind kind, std::size_t states) : has_lse(kind == Kind::merge_lse) {
        list.reserve(2 * kRoom + 2);
        for (std::size_t i = 0; i < states; ++i) {
            const std::string place = "[" + std::to_string(i) + "]";
            add_o("o_states" + place, &o_states[i]);
            add_lse("lse_states" + place, &lse_states[i]);
        }
        tensors.size = sizeof tensors;
        tensors.state_count = states;
        tensors.o_states = o_states.data();
        tensors.lse_states = lse_states.data();
        add_o("o", &tensors.o);
        if (has_lse) add_lse("lse", &tensors.lse);
        for (FuzzTensor& tensor : list) {
            tensor.view.shape = tensor.shape.data();
            *tensor.slot = &tensor.view;
        }
    }
    MergeOperands(const MergeOperands&) = delete;
    MergeOperands& operator=(const MergeOperands&) = delete;

    FuzzTensor& o_state(std::size_t i) { return list[2 * i]; }
    FuzzTensor& lse_state(std::size_t i) { return list[2 * i + 1]; }
    FuzzTensor& o() { return list[list.size() - (has_lse ? 2 : 1)]; }
    FuzzTensor& lse() { return list.back(); }  // REQUIRES: has_lse

    const bool has_lse;
    std::array<const attnsmith_dl_tensor*, kRoom> o_states{}, lse_states{};
    attnsmith_merge_tensors tensors{};
    std::vector<FuzzTensor> list;

  private:
    void add_o(std::string name, const attnsmith_dl_tensor** slot) {
        list.emplace_back(std::move(name), slot, next(), kBf16,
                          std::initializer_list<std::int64_t>{kBatch * kQueries, kHeads, kDim});
    }
    void add_lse(std::string name, const attnsmith_dl_tensor** slot) {
        list.emplace_back(std::move(name), slot, next(), kF32,
                          std::initializer_list<std::int64_t>{kBatch * kQueries, kHeads});
    }
    void* next() { return reinterpret_cast<void*>(next_ += std::uintptr_t{1} << 24); }

    std::uintptr_t next_ = std::uintptr_t{1} << 40;
};

}  // namespace attnsmith::test
