// Where a case's tensors lie: shapes and strides in a host image of each device buffer, guard zones around
// them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "check/case.hpp"

namespace attnsmith::check {

// What the tensors must hold: the largest of all steps, plus slack.
struct Capacity {
    std::int64_t batch = 0;
    std::int64_t q_rows = 0;    // of one sequence of a dense q
    std::int64_t q_tokens = 0;  // of a ragged q
    std::int64_t kv_rows = 0;
    std::int64_t kv_tokens = 0;
    std::int64_t columns = 0;       // of a padded page table
    std::int64_t page_entries = 0;  // of compressed rows
    std::int64_t pages = 0;         // in the pool; some are never in a list
    std::int64_t longest_q = 0;
    std::int64_t longest_kv = 0;
};

Capacity capacity_of(const Case& test);

// Bytes of guard zone before and after each tensor. A multiple of any alignment that the API asks for.
inline constexpr std::size_t kGuardBytes = 32768;

// A tensor inside an image. Strides count elements; `first` is the element that index 0 is at.
struct Place {
    DType dtype = DType::fp16;
    int rank = 0;
    std::array<std::int64_t, Tensor::kMaxRank> shape{};
    std::array<std::int64_t, Tensor::kMaxRank> strides{};
    std::int64_t first = 0;

    // Element number of (a, b, c) on the first three axes, or of (a, b) with rank 3.
    std::int64_t at(std::int64_t a, std::int64_t b, std::int64_t c) const;
    std::int64_t at(std::int64_t a, std::int64_t b) const;
    // One past the last element.
    std::int64_t end() const;
    std::size_t image_bytes() const;
    Tensor tensor(void* image) const;
};

struct Placement {
    Place q, k, v, o, lse;
    // Op mla: these have the columns of the position, where they are apart.
    Place q_pe, kpe;
    bool is_q_pe_apart = false, is_kpe_apart = false;
    Place k_scale, v_scale;  // of each token, with the axis of heads, and of blocks where there are such
    // Which share an image: with packed_qkv all of q, k and v; with one_kv_tensor k and v.
    bool k_in_q = false;
    bool v_in_k = false;
    // Where scales of tokens lie behind the columns: in k and in v, and kpe behind them in k.
    bool scales_inline = false, kpe_in_k = false;
};

// Scales of one head of one token: 0 where tokens have none. `columns` are those of the head that have any.
std::int64_t scales_of(const AttentionSpec& spec, std::int64_t columns);
// Columns of k that are stored as k is: not those of the position with scales of blocks.
std::int64_t stored_key_dim(const AttentionSpec& spec);

Placement place_tensors(const Case& test, const Capacity& capacity);

}  // namespace attnsmith::check
