#include "ops/append/tensors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "problem/ceil_div.hpp"
#include "problem/limits.hpp"
#include "problem/request/problem.hpp"
#include "problem/tensors/batch_tensors.hpp"
#include "problem/tensors/overlap.hpp"
#include "problem/tensors/tensor_checks.hpp"

namespace attnsmith::ops::append {
namespace {

using namespace problem;

class AppendChecker {
  public:
    AppendChecker(const Problem& problem, const AppendTensors& tensors, const Batch& batch)
        : spec_(problem.spec),
          latent_(is_latent(problem.spec)),
          q_{"q", tensors.q},
          k_{"k", tensors.k},
          v_{"v", tensors.v},
          q_out_{"q_out", tensors.q_out},
          k_cache_{"k_cache", tensors.k_cache},
          v_cache_{"v_cache", tensors.v_cache},
          kpe_{"kpe", tensors.kpe},
          kpe_cache_{"kpe_cache", tensors.kpe_cache},
          slot_mapping_{"slot_mapping", tensors.slot_mapping},
          positions_{"positions", tensors.positions},
          rope_table_{"rope_table", tensors.rope_table},
          q_norm_weight_{"q_norm_weight", tensors.q_norm_weight},
          k_norm_weight_{"k_norm_weight", tensors.k_norm_weight},
          k_scale_{"k_scale", tensors.k_scale},
          v_scale_{"v_scale", tensors.v_scale},
          q_scale_{"q_scale", tensors.q_scale},
          batch_(problem.spec, batch),
          max_q_len_(batch.max_q_len),
          max_kv_len_(batch.max_kv_len) {}

    BoundShape check() {
        check_parts();
        find_form();
        if (has_q()) check_queries();
        if (has_k()) check_keys_and_values();
        count_tokens();
        if (has_k()) check_caches();
        if (by_table())
            check_batch();
        else
            batch_.refuse_all(max_q_len_, max_kv_len_, "slots table, and the spec's slots is mapping");
        check_places();
        check_rope();
        check_weight(q_norm_weight_, spec_.q_norm && has_q(), "q", {spec_.head_dim_qk, "head_dim_qk"});
        check_weight(k_norm_weight_, spec_.k_norm && has_k(), "k",
                     latent_ ? Expected{spec_.head_dim_ckv, "head_dim_ckv"}
                             : Expected{spec_.head_dim_qk, "head_dim_qk"});
        check_scales();
        check_overlaps();
        return bound_;
    }

    // `scratch` is memory that a launch writes to: no tensor's.
    void refuse_shared(const Named& scratch) const {
        for (const Named* input : inputs()) refuse_overlap(scratch, *input);
        for (const Named* output : outputs()) refuse_overlap(scratch, *output);
    }

  private:
    bool has_q() const { return q_.present(); }
    bool has_k() const { return k_.present(); }
    bool by_table() const { return spec_.slots == Slots::table; }
    bool is_paged() const { return spec_.kv == KvStorage::paged; }

    // What is there with what.
    void check_parts() const {
        if (!has_q() && !has_k())
            refuse("k", "an absent tensor",
                   latent_ ? "k with k_cache, or q with q_out, or both"
                           : "k and v with their caches, or q with q_out, or all");
        check_beside(q_out_, q_, "memory for the queries that are written; q itself will do");
        check_beside(k_cache_, k_, "the cache that k is written to");
        if (latent_) {
            refuse_extra(v_, "a spec without head_dim_ckv: the latents are keys and values");
            refuse_extra(v_cache_, "a spec without head_dim_ckv: the latents are keys and values");
            for (const Named* position : {&kpe_, &kpe_cache_}) {
                if (spec_.head_dim_kpe == 0) refuse_extra(*position, "a spec with head_dim_kpe");
                if (!has_k()) refuse_extra(*position, "k, which is absent");
            }
            return;
        }
        check_beside(v_, k_, "the values of the keys in k");
        check_beside(v_cache_, k_, "the cache that v is written to");
        refuse_extra(kpe_, "latents, whose spec has head_dim_ckv");
        refuse_extra(kpe_cache_, "latents, whose spec has head_dim_ckv");
    }

    static void check_beside(const Named& named, const Named& with, std::string_view why) {
        if (with.present()) return check_present(named, why);
        if (named.present()) refuse_extra(named, fmt::format("{}, which is absent", with.text()));
    }

    // Whether tokens are all in a row. Of latents an axis of one head may be there or not: [tokens, 1,
    // columns] and [batch, 1, columns] are the same tokens.
    void find_form() {
        if (by_table())
            in_a_row_ = batch_.q_indptr.present();
        else if (has_q())
            in_a_row_ = q_.tensor.rank != 4;
        else
            in_a_row_ = latent_ ? k_.tensor.rank == 2 || (k_.tensor.rank == 3 && k_.extent(1) == 1)
                                : k_.tensor.rank != 4;
    }

    // [tokens, ...] or [batch, q_len, ...]; the first tensor says how many.
    void check_rows(const Named& named, const Expected& heads, const Expected& columns) {
        check_dtype(named, spec_.dtype);
        check_row_shape(named, heads, columns);
        check_operand(named, spec_);
        outer_ = named.extent(0);
        if (!in_a_row_) inner_ = named.extent(1);
    }

    void check_row_shape(const Named& named, const Expected& heads, const Expected& columns) const {
        const bool counted = outer_ != kAny;
        if (in_a_row_)
            check_shape(named,
                        {{outer_, counted ? "tokens, as the other inputs have" : "tokens"}, heads, columns});
        else
            check_shape(named, {{outer_, counted ? "batch, as the other inputs have" : "batch"},
                                {inner_, counted ? "q_len, as the other inputs have" : "q_len"},
                                heads,
                                columns});
    }

    // Latents may have an axis of one head before the columns, or none.
    void check_latent_rows(const Named& named, const Expected& columns) {
        const int with_head = in_a_row_ ? 3 : 4;
        if (named.tensor.rank == with_head) return check_rows(named, {1, "kv_heads"}, columns);
        check_dtype(named, spec_.dtype);
        if (in_a_row_)
            check_shape(named, {{outer_, "tokens"}, columns});
        else
            check_shape(named, {{outer_, "batch"}, {inner_, "q_len"}, columns});
        check_operand(named, spec_);
        outer_ = named.extent(0);
        if (!in_a_row_) inner_ = named.extent(1);
    }

    Expected query_columns() const {
        return latent_ ? Expected{spec_.head_dim_kpe, "head_dim_kpe: the columns of the position alone"}
                       : Expected{spec_.head_dim_qk, "head_dim_qk"};
    }
    void check_queries() {
        if (latent_ && spec_.head_dim_kpe == 0)
            refuse("q", "a tensor",
                   "nothing: head_dim_kpe is 0, and latents have no other columns of q to write");
        check_rows(q_, {spec_.q_heads, "q_heads"}, query_columns());
        check_stored_dtype(q_out_, spec_.q_dtype.value_or(spec_.dtype));
        check_row_shape(q_out_, {spec_.q_heads, "q_heads"}, query_columns());
        check_operand(q_out_, spec_);
        check_output_elements(q_out_);
    }

    void check_keys_and_values() {
        if (latent_) {
            check_latent_rows(k_, key_columns(spec_, kpe_));
            if (kpe_.present()) check_latent_rows(kpe_, {spec_.head_dim_kpe, "head_dim_kpe"});
            return;
        }
        const Expected heads{spec_.kv_heads, "kv_heads"};
        check_rows(k_, heads, key_columns(spec_, kpe_));
        check_rows(v_, heads, {spec_.head_dim_vo, "head_dim_vo"});
    }

    void count_tokens() {
        const Named& first = has_q() ? q_ : k_;
        if (!in_a_row_ && outer_ > kMaxBatch)
            refuse(first.at("shape", 0), std::to_string(outer_),
                   fmt::format("a batch of at most {}", kMaxBatch));
        bound_.batch = in_a_row_ ? 1 : outer_;
        bound_.max_q_len = in_a_row_ ? outer_ : inner_;
        bound_.q_tokens = bound_.batch * bound_.max_q_len;  // at most 2^60
        const std::int64_t most = std::min(kMaxLength, kMaxQueryRows / spec_.q_heads);
        if (bound_.q_tokens > most)
            refuse(first.part("shape"), fmt::format("{} tokens", bound_.q_tokens),
                   fmt::format("at most {} tokens", most));
    }

    void check_caches() {
        const Expected outer{is_paged() || !by_table() ? kAny : cache_batch(), is_paged()   ? "pages"
                                                                               : by_table() ? "batch"
                                                                                            : "sequences"};
        const Expected tokens{is_paged() ? spec_.page_size : kAny, is_paged() ? "page_size" : "kv_len"};
        if (spec_.kv_scale == KvScale::block128 && spec_.head_dim_kpe > 0 && !kpe_cache_.present())
            check_present(
                kpe_cache_,
                fmt::format("the position's columns of the cache, of {}: scales of kv_scale block128 "
                            "are the latent's alone",
                            to_string(position_dtype(spec_))));
        check_cache(k_cache_, kv_dtype(spec_), outer, tokens, key_columns(spec_, kpe_cache_));
        const int token_axis = has_heads_first() ? 2 : 1;
        const Expected as_outer{k_cache_.extent(0), "as k_cache has"};
        const Expected as_tokens{k_cache_.extent(token_axis), "as k_cache has"};
        if (!latent_)
            check_cache(v_cache_, kv_dtype(spec_), as_outer, as_tokens, {spec_.head_dim_vo, "head_dim_vo"});
        if (kpe_cache_.present())
            check_cache(kpe_cache_, position_dtype(spec_), as_outer, as_tokens,
                        {spec_.head_dim_kpe, "head_dim_kpe"});
        if (is_paged()) {
            bound_.pages = k_cache_.extent(0);
        } else {
            bound_.kv_tokens = bound_.max_kv_len = k_cache_.extent(1);
        }
    }

    std::int64_t cache_batch() const {
        return in_a_row_ ? std::max<std::int64_t>(0, batch_.q_indptr.extent(0) - 1) : bound_.batch;
    }
    bool has_heads_first() const { return is_paged() && spec_.page_order == PageOrder::HND; }

    void check_cache(const Named& named, DType dtype, const Expected& outer, const Expected& tokens,
                     const Expected& columns) const {
        const Expected heads{spec_.kv_heads, "kv_heads"};
        check_stored_dtype(named, dtype);
        if (latent_ && named.tensor.rank == 3)
            check_shape(named, {outer, tokens, columns});
        else if (has_heads_first())
            check_shape(named, {outer, heads, tokens, columns});
        else
            check_shape(named, {outer, tokens, heads, columns});
        check_operand(named, spec_);
        check_output_elements(named);
    }

    void check_batch() {
        if (in_a_row_) {
            bound_.batch = batch_.batch_of(batch_.q_indptr);
            if (bound_.batch > kMaxBatch)
                refuse(batch_.q_indptr.at("shape", 0), std::to_string(bound_.batch + 1),
                       fmt::format("a batch of at most {}, and 1", kMaxBatch));
            refuse_extra(batch_.q_lens,
                         "tokens as [batch, q_len]; lengths of those in a row are in q_indptr");
        } else if (batch_.q_lens.present()) {
            batch_.check_index(batch_.q_lens, {bound_.batch, "batch"});
        }
        refuse_extra(batch_.kv_indptr, "ragged KV, which op append does not write");
        if (is_paged())
            batch_.check_pages("[batch] lengths after the append, which a page_table needs", bound_);
        else
            check_dense_lengths();
        check_bounds();
    }

    void check_dense_lengths() {
        for (const Named* extra : {&batch_.page_table, &batch_.table_rows, &batch_.page_indptr,
                                   &batch_.page_indices, &batch_.last_page_len})
            refuse_extra(*extra, "paged KV, and the spec's kv is dense");
        check_present(batch_.kv_lens, "[batch] lengths after the append, which slots table needs");
        batch_.check_index(batch_.kv_lens, {bound_.batch, "batch"});
        if (!has_k()) bound_.kv_tokens = bound_.max_kv_len = kMaxLength;  // no cache bounds them
    }

    void check_bounds() {
        for (const auto& [field, given] :
             {std::pair("batch.max_q_len", max_q_len_), {"batch.max_kv_len", max_kv_len_}})
            if (given < 0)
                refuse(field, std::to_string(given), "a length from 1, or 0 for what the tensors hold");
        if (max_q_len_ > 0 && max_q_len_ < bound_.max_q_len && !in_a_row_ && !batch_.q_lens.present())
            refuse(
                "batch.max_q_len", std::to_string(max_q_len_),
                fmt::format("0 or {}, which every sequence has by the tensors' shapes; for shorter ones give "
                            "batch.q_lens",
                            bound_.max_q_len));
        if (max_q_len_ > 0) bound_.max_q_len = std::min(bound_.max_q_len, max_q_len_);
        if (max_kv_len_ > 0) bound_.max_kv_len = std::min(bound_.max_kv_len, max_kv_len_);
    }

    void check_places() const {
        if (by_table()) return refuse_extra(slot_mapping_, "slots mapping, and the spec's slots is table");
        if (has_k())
            check_present(slot_mapping_, "[tokens], the slot of each, since the spec's slots is mapping");
        if (slot_mapping_.present()) check_token_vector(slot_mapping_);
    }

    void check_token_vector(const Named& named) const {
        if (named.tensor.dtype != DType::int64) check_dtype(named, spec_.index_dtype);
        check_vector(named, named.tensor.dtype, {bound_.q_tokens, "tokens"});
    }

    void check_rope() const {
        if (spec_.rope == Rope::none) {
            refuse_extra(positions_, "a spec with a rope");
            return refuse_extra(rope_table_, "a spec with a rope");
        }
        if (!by_table())
            check_present(positions_, "[tokens], what each is rotated by, since the spec's slots is mapping");
        if (positions_.present()) {
            if (positions_.tensor.rank == 2)
                refuse("positions.rank", "2",
                       "1 [tokens]: one position a token; the three of M-RoPE are not supported");
            check_token_vector(positions_);
        }
        if (spec_.rope_table == RopeTable::frequencies) {
            check_present(rope_table_, "fp32 [rotary_dim / 2], since the spec's rope_table is frequencies");
            return check_vector(rope_table_, DType::fp32, {spec_.rotary_dim / 2, "rotary_dim / 2"});
        }
        check_present(rope_table_, "[positions, rotary_dim], the cosines and then the sines");
        check_float(rope_table_);
        check_shape(rope_table_, {{kAny, "positions"}, {spec_.rotary_dim, "rotary_dim"}});
        // Angles that are not loaded side by side are loaded one by one, and need no more than their own
        // size.
        const std::int64_t angles = spec_.rope == Rope::half ? 8 : 4;
        if (spec_.rotary_dim / 2 % angles == 0) return check_operand(rope_table_, spec_);
        check_memory(rope_table_, size_of(rope_table_.tensor.dtype));
        check_inner_stride(rope_table_);
    }

    // In fp32, or as the inputs are.
    void check_float(const Named& named) const {
        if (named.tensor.dtype == DType::fp32 || named.tensor.dtype == spec_.dtype) return;
        refuse(named.part("dtype"), std::string(to_string(named.tensor.dtype)),
               fmt::format("fp32 or {}", to_string(spec_.dtype)));
    }

    void check_weight(const Named& named, bool wanted, std::string_view of, const Expected& columns) const {
        if (!wanted) {
            if (named.present()) refuse_extra(named, fmt::format("a spec with {0}_norm, and {0}", of));
            return;
        }
        if (!named.present())
            check_present(named, fmt::format("[{}], fp32 or {}, since the spec has {}_norm", columns.meaning,
                                             to_string(spec_.dtype), of));
        check_float(named);
        check_shape(named, {columns});
        check_operand(named, spec_);
    }

    void check_scales() const {
        const bool wanted = spec_.kv_scale != KvScale::none && has_k();
        check_scale(k_scale_, k_cache_, wanted);
        check_scale(v_scale_, v_cache_, wanted && !latent_);
        if (!q_scale_.present()) return;
        if (!is_fp8(spec_.q_dtype.value_or(spec_.dtype)) || !has_q())
            refuse_extra(q_scale_, "q with a q_dtype of e4m3 or e5m2");
        check_vector(q_scale_, DType::fp32, {1, "scales"});
    }

    bool writes_scales() const { return is_per_token(spec_.kv_scale); }

    void check_scale(const Named& named, const Named& cache, bool wanted) const {
        if (!wanted) return refuse_extra(named, "k and v with a spec of kv_scale (of latents, k alone)");
        if (writes_scales()) return check_written_scale(named, cache);
        check_kv_scale(named, spec_);
    }

    // The axes of the cache but its columns, and one of blocks with scales of these. Strides may be any, so
    // that scales may lie within the cache's own rows.
    void check_written_scale(const Named& named, const Named& cache) const {
        check_token_scales(named, cache, spec_);
        check_output_elements(named);
    }

    std::array<const Named*, 21> inputs() const {
        return {&q_,
                &k_,
                &v_,
                &kpe_,
                &slot_mapping_,
                &positions_,
                &rope_table_,
                &q_norm_weight_,
                &k_norm_weight_,
                writes_scales() ? &nothing_ : &k_scale_,
                writes_scales() ? &nothing_ : &v_scale_,
                &q_scale_,
                &batch_.q_indptr,
                &batch_.q_lens,
                &batch_.kv_indptr,
                &batch_.kv_lens,
                &batch_.page_table,
                &batch_.table_rows,
                &batch_.page_indptr,
                &batch_.page_indices,
                &batch_.last_page_len};
    }
    std::array<const Named*, 6> outputs() const {
        return {&q_out_,
                &k_cache_,
                &v_cache_,
                &kpe_cache_,
                writes_scales() ? &k_scale_ : &nothing_,
                writes_scales() ? &v_scale_ : &nothing_};
    }

    void check_overlaps() const {
        const auto written = outputs();
        for (std::size_t i = 0; i < written.size(); ++i) {
            for (const Named* input : inputs()) {
                if (written[i] == &q_out_ && input == &q_ && is_same_view(q_out_, q_)) continue;
                refuse_shared_input(*written[i], *input);
            }
            for (std::size_t j = 0; j < i; ++j) refuse_overlap(*written[i], *written[j]);
        }
    }

    static void refuse_shared_input(const Named& output, const Named& input) {
        if (!may_overlap(output.tensor, input.tensor)) return;
        refuse(output.text(), fmt::format("memory that overlaps {}", input.text()),
               output.name == "q_out" ? "memory that no other tensor uses, or exactly the view that q is"
                                      : "memory that no other tensor uses");
    }

    const AttentionSpec& spec_;
    const bool latent_;
    const Named q_, k_, v_, q_out_, k_cache_, v_cache_, kpe_, kpe_cache_, slot_mapping_, positions_;
    const Named rope_table_, q_norm_weight_, k_norm_weight_, k_scale_, v_scale_, q_scale_;
    const Tensor no_tensor_{};
    const Named nothing_{"", no_tensor_};
    const BatchTensors batch_;
    const std::int64_t max_q_len_, max_kv_len_;
    bool in_a_row_ = true;
    std::int64_t outer_ = kAny, inner_ = kAny;
    BoundShape bound_;
};

}  // namespace

BoundShape check_tensors(const Problem& problem, const Operands& operands) {
    return AppendChecker(problem, operands.as<AppendTensors>(), operands.batch).check();
}

void check_workspace(const Problem& problem, void* data, std::int64_t bytes, const Operands& operands) {
    AppendChecker(problem, operands.as<AppendTensors>(), operands.batch)
        .refuse_shared({"workspace.data", workspace_tensor(data, bytes)});
}

}  // namespace attnsmith::ops::append
