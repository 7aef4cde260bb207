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

inline constexpr std::int64_t kBatch = 2, kQueries = 4, kKeys = 32, kHeads = 4, kKvHeads = 2, kDim = 64;
inline constexpr std::int64_t kPageSize = 16, kPages = 4;

inline constexpr attnsmith_dl_data_type kBf16{ATTNSMITH_DL_BFLOAT, 16, 1}, kF32{ATTNSMITH_DL_FLOAT, 32, 1};

enum class Kind { dense, ragged, paged, merge, merge_lse };
inline constexpr Kind kKinds[] = {Kind::dense, Kind::ragged, Kind::paged, Kind::merge, Kind::merge_lse};
inline constexpr std::size_t kAttentionKinds = 3;  // the first ones

inline bool is_merge(Kind kind) { return kind == Kind::merge || kind == Kind::merge_lse; }

inline attnsmith_spec valid_spec(Kind kind) {
    attnsmith_spec spec{};
    spec.size = sizeof spec;
    spec.q_heads = kHeads;
    if (is_merge(kind)) {
        spec.op = ATTNSMITH_OP_MERGE;
        spec.head_dim_vo = kDim;
        spec.lse = kind == Kind::merge_lse ? 1 : 0;
        return spec;
    }
    spec.head_dim_qk = kDim;
    spec.kv_heads = kKvHeads;
    spec.mask = ATTNSMITH_MASK_CAUSAL;
    if (kind == Kind::ragged) {
        spec.kv = ATTNSMITH_KV_RAGGED;
        spec.lse = spec.sink = 1;
    } else if (kind == Kind::paged) {
        spec.kv = ATTNSMITH_KV_PAGED;
        spec.page_size = kPageSize;
        spec.alibi = 1;
        spec.index_dtype = ATTNSMITH_INT64;
    }
    return spec;
}

// A tensor with room for more axes than any has.
struct FuzzTensor {
    static constexpr int kRoom = 8;

    std::string name;
    bool output = false;
    bool operand = false;  // of q, k, v and o: aligned to 16 bytes
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

    void write_compact_strides() {
        std::uint64_t stride = 1;  // of a broken shape it wraps
        for (int axis = view.ndim - 1; axis >= 0; --axis) {
            strides[static_cast<std::size_t>(axis)] = static_cast<std::int64_t>(stride);
            stride *= static_cast<std::uint64_t>(shape[static_cast<std::size_t>(axis)]);
        }
        view.strides = strides.data();
    }
};

// What a valid bind of a kind of attention has. Not to be copied: the structs point into it.
class Operands {
  public:
    explicit Operands(Kind kind) {
        constexpr attnsmith_dl_data_type kI32{ATTNSMITH_DL_INT, 32, 1}, kI64{ATTNSMITH_DL_INT, 64, 1};
        tensors.size = sizeof tensors;
        batch.size = sizeof batch;
        list.reserve(16);
        if (kind == Kind::dense) {
            operand("q", &tensors.q, kBf16, {kBatch, kQueries, kHeads, kDim});
            operand("k", &tensors.k, kBf16, {kBatch, kKeys, kKvHeads, kDim});
            operand("v", &tensors.v, kBf16, {kBatch, kKeys, kKvHeads, kDim});
            operand("o", &tensors.o, kBf16, {kBatch, kQueries, kHeads, kDim});
        } else if (kind == Kind::ragged) {
            operand("q", &tensors.q, kBf16, {kBatch * kQueries, kHeads, kDim});
            operand("k", &tensors.k, kBf16, {kBatch * kKeys, kKvHeads, kDim});
            operand("v", &tensors.v, kBf16, {kBatch * kKeys, kKvHeads, kDim});
            operand("o", &tensors.o, kBf16, {kBatch * kQueries, kHeads, kDim});
            add("lse", &tensors.lse, kF32, {kBatch * kQueries, kHeads}).output = true;
            add("sinks", &tensors.sinks, kF32, {kHeads});
            add("batch.q_indptr", &batch.q_indptr, kI32, {kBatch + 1});
            add("batch.kv_indptr", &batch.kv_indptr, kI32, {kBatch + 1});
        } else {
            operand("q", &tensors.q, kBf16, {kBatch, kQueries, kHeads, kDim});
            operand("k", &tensors.k, kBf16, {kPages, kPageSize, kKvHeads, kDim});
            operand("v", &tensors.v, kBf16, {kPages, kPageSize, kKvHeads, kDim});
            operand("o", &tensors.o, kBf16, {kBatch, kQueries, kHeads, kDim});
            add("alibi_slopes", &tensors.alibi_slopes, kF32, {kHeads});
            add("batch.page_table", &batch.page_table, kI64, {kBatch, 2});
            add("batch.kv_lens", &batch.kv_lens, kI64, {kBatch});
        }
        for (FuzzTensor& tensor : list) {
            tensor.view.shape = tensor.shape.data();
            *tensor.slot = &tensor.view;
        }
    }
    Operands(const Operands&) = delete;
    Operands& operator=(const Operands&) = delete;

    attnsmith_tensors tensors{};
    attnsmith_batch batch{};
    std::vector<FuzzTensor> list;

  private:
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

    std::uintptr_t next_ = std::uintptr_t{1} << 40;
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
