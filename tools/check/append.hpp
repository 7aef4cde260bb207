// A case of op append on the GPU, by description: it is judged by the bits of every byte of the cache and of
// q, and of the memory around them.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "check/case.hpp"
#include "check/run_case.hpp"

namespace attnsmith::check {

struct AppendCase {
    std::string group, name;
    AttentionSpec spec;  // op append
    // How many new tokens each sequence has, and keys after them; what is kept before is not looked at.
    std::vector<std::int64_t> q_lens, kv_lens;

    bool in_a_row = true;      // [tokens, ...], else [batch, q_len, ...]
    std::int64_t padding = 0;  // tokens behind all sequences, which belong to none
    bool has_q = true, has_k = true;
    bool in_place = false;  // q_out is q
    bool fused = false;     // q, k and v are slices of one tensor's rows, not of latents
    bool latents_apart = false,
         caches_apart = false;   // of latents: the position's columns of the inputs, the cache
    bool latent_heads = false;   // of latents: an axis of one head
    bool one_cache = false;      // k_cache and v_cache are slices of one tensor's pages
    bool wide_indices = false;   // slots and positions are int64 whatever the index_dtype is
    bool own_positions = false;  // with slots table: positions that are not by length
    bool table_in_fp32 = true, weights_in_fp32 = true;
    bool bytes = false;     // 8-bit tensors are called u8
    std::int64_t pad = 0;   // elements between rows and heads, of every tensor of q, k and v
    std::int64_t base = 0;  // elements between an aligned address and each first element
    PageList page_list = PageList::padded;
    bool table_rows = false;
    std::int64_t rope_positions = 0;  // of the table; 0: as many as there are keys
    std::optional<float> k_scale{};   // of head 0, in place of an ordinary one
    bool inline_scales = false;       // computed scales lie behind their columns, in the rows of the cache

    // Values of k and v in place of random ones: of a token's head, at one column or, below 0, at all.
    struct Value {
        std::int64_t token, head, column;
        float value;
    };
    std::vector<Value> values{};

    // What these tokens have in place of what is right.
    std::vector<std::pair<std::int64_t, std::int64_t>> slots{}, positions{};
    // Tokens that have the slots of others.
    std::vector<std::pair<std::int64_t, std::int64_t>> twins{};
    // With slots table: lengths and pages that are not right, and the sequences that are not written for
    // them.
    std::function<void(IndexArrays&)> spoil{};
    std::vector<std::int64_t> unwritten{};
    CallStatus status{};
    int launches = 2;  // all must give the same bits

    std::string full_name() const { return group + "/" + name; }
    std::string describe() const;
};

// Uploads fresh random rows, launches, and checks every byte. Never throws for a wrong result.
CaseResult run_append(Runtime& runtime, const AppendCase& test, const RunOptions& options);

}  // namespace attnsmith::check
