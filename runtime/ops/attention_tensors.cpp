#include "ops/operand_checks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "attnsmith/error.hpp"
#include "ops/attention_steps.hpp"
#include "problem/limits.hpp"
#include "problem/tensors/batch_tensors.hpp"
#include "problem/tensors/operands.hpp"
#include "problem/tensors/tensor_checks.hpp"

namespace attnsmith::ops {

using namespace problem;

namespace {

class Checker {
  public:
    // `given`: tensors whose addresses are not those that they were bound with, for messages.
    Checker(const Problem& problem, const AttentionTensors& tensors, const Batch& batch,
            const OperandAddresses& given = {})
        : spec_(problem.spec),
          group_size_(problem.group_size()),
          q_(operand(tensors, Operand::q, given)),
          k_(operand(tensors, Operand::k, given)),
          v_(operand(tensors, Operand::v, given)),
          q_pe_(operand(tensors, Operand::q_pe, given)),
          kpe_(operand(tensors, Operand::kpe, given)),
          o_(operand(tensors, Operand::o, given)),
          lse_(operand(tensors, Operand::lse, given)),
          sinks_(operand(tensors, Operand::sinks, given)),
          alibi_slopes_(operand(tensors, Operand::alibi_slopes, given)),
          k_scale_(operand(tensors, Operand::k_scale, given)),
          v_scale_(operand(tensors, Operand::v_scale, given)),
          batch_(problem.spec, batch),
          max_q_len_(batch.max_q_len),
          max_kv_len_(batch.max_kv_len) {}

    BoundShape check() {
        check_queries();
        check_keys();
        check_outputs();
        check_head_vector(sinks_, spec_.sink, "sink");
        check_head_vector(alibi_slopes_, spec_.alibi, "alibi");
        check_scale(k_scale_, k_);
        if (is_latent())
            refuse_extra(v_scale_, "op attention; of op mla k_scale is that of the latents as values, too");
        else
            check_scale(v_scale_, v_);
        check_bounds();
        check_overlaps();
        return bound_;
    }

    // `scratch` is memory that a launch writes to: no tensor's.
    void refuse_shared(const Named& scratch) const {
        refuse_shared_inputs(scratch);
        refuse_overlap(scratch, o_);
        refuse_overlap(scratch, lse_);
    }

    void check_overlaps() const {
        refuse_shared_inputs(o_);
        refuse_shared_inputs(lse_);
        refuse_overlap(lse_, o_);
    }

  private:
    static Named operand(const AttentionTensors& tensors, Operand which, const OperandAddresses& given) {
        return {.name = name_of(which),
                .tensor = tensor_of(tensors, which),
                .within = at(given, which) == nullptr ? std::string_view() : kWithinAddresses};
    }

    bool ragged_queries() const { return batch_.q_indptr.present(); }
    bool is_latent() const { return problem::is_latent(spec_); }

    Expected position_columns() const { return {spec_.head_dim_kpe, "head_dim_kpe"}; }
    Expected output_columns() const {
        return {value_dim(spec_), is_latent() ? "head_dim_ckv" : "head_dim_vo"};
    }
    void refuse_position(const Named& position) const {
        if (!is_latent()) refuse_extra(position, "op mla");
        if (spec_.head_dim_kpe == 0) refuse_extra(position, "a spec with head_dim_kpe");
    }

    void check_queries() {
        check_present(q_, "the queries");
        check_dtype(q_, spec_.dtype);
        if (ragged_queries()) {
            check_shape(q_, {{kAny, "query tokens"}, {spec_.q_heads, "q_heads"}, key_columns(spec_, q_pe_)});
            bound_.batch = batch_.batch_of(batch_.q_indptr);
            bound_.q_tokens = bound_.max_q_len = q_.extent(0);
            refuse_extra(batch_.q_lens, "a dense q; lengths of a ragged one are in q_indptr");
        } else {
            check_shape(
                q_,
                {{kAny, "batch"}, {kAny, "q_len"}, {spec_.q_heads, "q_heads"}, key_columns(spec_, q_pe_)});
            bound_.batch = q_.extent(0);
            bound_.q_tokens = q_.extent(0) * q_.extent(1);  // at most 2^60
            bound_.max_q_len = q_.extent(1);
            if (batch_.q_lens.present()) batch_.check_index(batch_.q_lens, {bound_.batch, "batch"});
        }
        check_operand(q_, spec_);
        check_query_positions();
        if (bound_.batch > kMaxBatch) {
            refuse(ragged_queries() ? batch_.q_indptr.at("shape", 0) : q_.at("shape", 0),
                   std::to_string(bound_.batch), fmt::format("a batch of at most {}", kMaxBatch));
        }
        if (bound_.q_tokens > kMaxLength) {
            refuse(q_.part("shape"), fmt::format("{} queries", bound_.q_tokens),
                   fmt::format("at most {} queries in all", kMaxLength));
        }
    }

    // Those of latent attention that are apart from q.
    void check_query_positions() {
        refuse_position(q_pe_);
        if (!q_pe_.present()) return;
        check_dtype(q_pe_, spec_.dtype);
        const Expected heads{spec_.q_heads, "q_heads"};
        if (ragged_queries())
            check_shape(q_pe_, {{q_.extent(0), "query tokens of q"}, heads, position_columns()});
        else
            check_shape(q_pe_,
                        {{q_.extent(0), "batch"}, {q_.extent(1), "q_len of q"}, heads, position_columns()});
        check_operand(q_pe_, spec_);
    }

    void check_keys() {
        check_present(k_, is_latent() ? "the latents" : "the keys");
        if (is_latent())
            refuse_extra(v_, "op attention; of op mla the values are the first head_dim_ckv columns of k");
        else
            check_present(v_, "the values");
        refuse_position(kpe_);
        switch (spec_.kv) {
            case KvStorage::dense:
                check_dense_keys();
                break;
            case KvStorage::ragged:
                check_ragged_keys();
                break;
            case KvStorage::paged:
                check_paged_keys();
                break;
        }
    }

    void check_dense_keys() {
        for (const Named* extra : {&batch_.kv_indptr, &batch_.page_table, &batch_.table_rows,
                                   &batch_.page_indptr, &batch_.page_indices, &batch_.last_page_len}) {
            refuse_other_storage(*extra);
        }
        check_key_shapes({bound_.batch, "batch"}, {kAny, "kv_len"});
        bound_.kv_tokens = bound_.max_kv_len = k_.extent(1);
        if (batch_.kv_lens.present()) batch_.check_index(batch_.kv_lens, {bound_.batch, "batch"});
    }

    void check_ragged_keys() {
        for (const Named* extra : {&batch_.kv_lens, &batch_.page_table, &batch_.table_rows,
                                   &batch_.page_indptr, &batch_.page_indices, &batch_.last_page_len}) {
            refuse_other_storage(*extra);
        }
        check_present(batch_.kv_indptr, "[batch + 1] offsets, which ragged KV needs");
        batch_.check_index(batch_.kv_indptr, {bound_.batch + 1, "batch + 1"});
        check_key_shapes({kAny, "KV tokens"}, {});
        bound_.kv_tokens = bound_.max_kv_len = k_.extent(0);
    }

    void check_paged_keys() {
        refuse_other_storage(batch_.kv_indptr);
        check_key_shapes({kAny, "pages"}, {spec_.page_size, "page_size"});
        bound_.pages = k_.extent(0);
        batch_.check_pages("[batch] lengths, which a page_table needs", bound_);
    }

    // k, then v with as many pages or tokens. `tokens` is unused for ragged KV, whose outer axis they are.
    void check_key_shapes(Expected outer, Expected tokens) {
        if (is_latent()) return check_latent_shapes(outer, tokens);
        check_key_shape(k_, outer, tokens, key_columns(spec_, kpe_));
        outer.extent = k_.extent(0);
        if (spec_.kv == KvStorage::dense) tokens.extent = k_.extent(1);
        check_key_shape(v_, outer, tokens, output_columns());
    }

    void check_latent_shapes(Expected outer, Expected tokens) {
        check_stored_dtype(k_, kv_dtype(spec_));
        check_latent_shape(k_, outer, tokens, stored_columns(spec_, kpe_));
        if (!kpe_.present()) return require_positions_apart();
        outer.extent = k_.extent(0);
        if (spec_.kv == KvStorage::dense) tokens.extent = k_.extent(1);
        check_stored_dtype(kpe_, position_dtype(spec_));
        check_latent_shape(kpe_, outer, tokens, position_columns());
    }

    // Where they are not stored as the latent is.
    void require_positions_apart() const {
        if (spec_.kv_scale != KvScale::block128 || spec_.head_dim_kpe == 0) return;
        check_present(kpe_,
                      fmt::format("{} [..., head_dim_kpe] of its own, such as a view of the rows that k "
                                  "is a view of: kv_scale block128 scales the latent alone",
                                  to_string(position_dtype(spec_))));
    }

    // With an axis of one KV head before the columns, or without.
    void check_latent_shape(const Named& named, const Expected& outer, const Expected& tokens,
                            const Expected& dim) const {
        const Expected head{1, "kv_heads"};
        const bool ragged = spec_.kv == KvStorage::ragged;
        if (named.tensor.rank == (ragged ? 3 : 4)) {
            if (ragged)
                check_shape(named, {outer, head, dim});
            else
                check_shape(named, {outer, tokens, head, dim});
        } else if (ragged) {
            check_shape(named, {outer, dim});
        } else {
            check_shape(named, {outer, tokens, dim});
        }
        check_operand(named, spec_);
    }

    void check_key_shape(const Named& named, Expected outer, Expected tokens, Expected dim) const {
        const Expected heads{spec_.kv_heads, "kv_heads"};
        check_stored_dtype(named, kv_dtype(spec_));
        if (spec_.kv == KvStorage::ragged)
            check_shape(named, {outer, heads, dim});
        else if (spec_.page_order == PageOrder::HND)
            check_shape(named, {outer, heads, tokens, dim});
        else
            check_shape(named, {outer, tokens, heads, dim});
        check_operand(named, spec_);
    }

    void check_outputs() {
        check_present(o_, "memory for the output");
        check_dtype(o_, output_dtype(spec_));
        const Expected heads{spec_.q_heads, "q_heads"};
        const Expected dim = output_columns();
        const Expected outer{q_.extent(0), ragged_queries() ? "query tokens of q" : "batch"};
        const Expected queries{q_.extent(1), "q_len of q"};
        if (ragged_queries())
            check_shape(o_, {outer, heads, dim});
        else
            check_shape(o_, {outer, queries, heads, dim});
        check_operand(o_, spec_);
        check_output_elements(o_);
        if (!spec_.lse) return refuse_extra(lse_, "a spec with lse");
        check_present(lse_, "memory for the log-sum-exp, which the spec asks for");
        check_dtype(lse_, DType::fp32);
        if (ragged_queries())
            check_shape(lse_, {outer, heads});
        else
            check_shape(lse_, {outer, queries, heads});
        check_memory(lse_, size_of(DType::fp32));
        check_output_elements(lse_);
    }

    void check_head_vector(const Named& named, bool wanted, std::string_view field) {
        if (named.present() != wanted) {
            if (wanted) check_present(named, fmt::format("fp32 [q_heads], since the spec has {}", field));
            refuse_extra(named, fmt::format("a spec with {}", field));
        }
        if (wanted) check_vector(named, DType::fp32, {spec_.q_heads, "q_heads"});
    }

    void check_scale(const Named& named, const Named& keys) const {
        if (spec_.kv_scale == KvScale::none) return refuse_extra(named, "a spec with kv_scale");
        if (is_per_token(spec_.kv_scale)) return check_token_scales(named, keys, spec_);
        check_kv_scale(named, spec_);
    }

    void check_bounds() {
        const bool fixed_q = !ragged_queries() && !batch_.q_lens.present();
        const bool fixed_kv = spec_.kv == KvStorage::dense && !batch_.kv_lens.present();
        clamp_bound("batch.max_q_len", max_q_len_, bound_.max_q_len, fixed_q ? "batch.q_lens" : nullptr);
        clamp_bound("batch.max_kv_len", max_kv_len_, bound_.max_kv_len, fixed_kv ? "batch.kv_lens" : nullptr);
        if (!ragged_queries()) bound_.q_tokens = bound_.batch * bound_.max_q_len;
        if (bound_.q_tokens > kMaxQueryRows / spec_.q_heads) {
            refuse(q_.part("shape"), fmt::format("{} queries", bound_.q_tokens),
                   fmt::format("at most {} with {} heads", kMaxQueryRows / spec_.q_heads, spec_.q_heads));
        }
        if (bound_.max_q_len * group_size_ <= kMaxPackedQueries) return;  // below 2^46
        refuse(max_q_len_ != 0 ? "batch.max_q_len" : q_.part("shape"),
               fmt::format("{} queries", bound_.max_q_len),
               fmt::format("at most {} with {} query heads to each KV head", kMaxPackedQueries / group_size_,
                           group_size_));
    }

    // `lengths` names the tensor without which every sequence is as long as the shape says.
    static void clamp_bound(const char* field, std::int64_t given, std::int64_t& bound, const char* lengths) {
        if (given < 0)
            refuse(field, std::to_string(given), "a length from 1, or 0 for what the tensors hold");
        if (lengths != nullptr && given > 0 && given < bound) {
            refuse(field, std::to_string(given),
                   fmt::format("0 or {}, which every sequence has by the tensors' shapes; for shorter ones "
                               "slice the tensors or give {}",
                               bound, lengths));
        }
        if (given > 0) bound = std::min(bound, given);
    }

    void refuse_shared_inputs(const Named& output) const {
        for (const Named* input :
             {&q_, &k_, &v_, &q_pe_, &kpe_, &sinks_, &alibi_slopes_, &k_scale_, &v_scale_})
            refuse_overlap(output, *input);
        for (const Named* input : batch_.all()) refuse_overlap(output, *input);
    }

    // Texts are made for what is refused only: a bind may come before each launch.
    void refuse_other_storage(const Named& named) const {
        if (named.present()) refuse_extra(named, other_storage(named));
    }

    std::string other_storage(const Named& named) const {
        const bool is_indptr = &named == &batch_.kv_indptr;
        const bool is_lens = &named == &batch_.kv_lens;
        return fmt::format("{} KV, and the spec's kv is {}",
                           is_indptr ? "ragged"
                           : is_lens ? "dense or paged"
                                     : "paged",
                           to_string(spec_.kv));
    }

    const AttentionSpec& spec_;
    const std::int64_t group_size_;
    const Named q_, k_, v_, q_pe_, kpe_, o_, lse_, sinks_, alibi_slopes_, k_scale_, v_scale_;
    const BatchTensors batch_;
    const std::int64_t max_q_len_, max_kv_len_;
    BoundShape bound_;
};

}  // namespace

BoundShape check_attention(const Problem& problem, const Operands& operands) {
    return Checker(problem, operands.as<AttentionTensors>(), operands.batch).check();
}

void check_attention_workspace(const Problem& problem, void* data, std::int64_t bytes,
                               const Operands& operands) {
    Checker(problem, operands.as<AttentionTensors>(), operands.batch)
        .refuse_shared({"workspace.data", workspace_tensor(data, bytes)});
}

InvalidRequest attention_too_large(const TooLarge& launch) {
    return {"batch", fmt::format("bounds that need {} CTAs", launch.items),
            fmt::format("sequences and lengths that need at most {} CTAs; divide the batch", launch.most)};
}

OperandChecks::OperandChecks(const Problem& problem, const AttentionTensors& tensors, const Batch& batch,
                             void* workspace, std::int64_t workspace_bytes)
    : problem_(problem),
      tensors_(tensors),
      batch_(batch),
      workspace_(workspace_tensor(workspace, workspace_bytes)) {
    for (std::size_t i = 0; i < kOperands; ++i) {
        const auto which = static_cast<Operand>(i);
        const Tensor& tensor = tensor_of(tensors, which);
        bases_[i] = {.is_bound = Named{"", tensor}.present(),
                     .alignment = is_vector(which) ? size_of(tensor.dtype)
                                                   : operand_alignment(problem.spec, tensor.dtype),
                     .bytes = bytes_of(tensor)};
        bound_[i] = tensor.data;
    }
    const Tensor* const fixed[] = {
        &workspace_,       &batch.q_indptr,   &batch.q_lens,      &batch.kv_indptr,    &batch.kv_lens,
        &batch.page_table, &batch.table_rows, &batch.page_indptr, &batch.page_indices, &batch.last_page_len};
    static_assert(kOperands + std::size(fixed) == kRanges);
    for (std::size_t i = 0; i < std::size(fixed); ++i)
        ranges_[kWorkspace + i] = Range::of(fixed[i]->data, bytes_of(*fixed[i]));
}

OperandAddresses OperandChecks::check(const OperandAddresses& given) const {
    OperandAddresses addresses = bound_;
    for (std::size_t i = 0; i < kOperands; ++i) {
        if (given[i] == nullptr) continue;
        check_base(static_cast<Operand>(i), given[i]);
        addresses[i] = given[i];
    }
    if (!are_ranges_apart(addresses)) check_elements(addresses, given);
    return addresses;
}

void OperandChecks::check_base(Operand which, const void* address) const {
    const Base& base = at(bases_, which);
    const auto field = [&] { return fmt::format("{}{}", kWithinAddresses, name_of(which)); };
    if (!base.is_bound)
        refuse(field(), "an address", fmt::format("null: the call was bound without {}", name_of(which)));
    if (base.bytes == 0) return;  // without elements any will do, as to bind()
    if (auto accepted = base_refusal(address, base.bytes, base.alignment))
        refuse(field(), fmt::format("{}", fmt::ptr(address)), *std::move(accepted));
}

// Outputs, and the workspace, lie wholly before or behind all else: what needs no look at strides.
bool OperandChecks::are_ranges_apart(const OperandAddresses& addresses) const {
    std::array<Range, kRanges> ranges = ranges_;
    for (std::size_t i = 0; i < kOperands; ++i) ranges[i] = Range::of(addresses[i], bases_[i].bytes);
    for (const Range& written : {at(ranges, Operand::o), at(ranges, Operand::lse), ranges[kWorkspace]}) {
        int met = 0;  // itself, unless it is empty
        for (const Range& other : ranges) met += int{written.meets(other)};
        if (met > 1) return false;
    }
    return true;
}

void OperandChecks::check_elements(const OperandAddresses& addresses, const OperandAddresses& given) const {
    AttentionTensors tensors = tensors_;
    for (std::size_t i = 0; i < kOperands; ++i)
        tensor_of(tensors, static_cast<Operand>(i)).data = const_cast<void*>(addresses[i]);
    const Checker checker(problem_, tensors, batch_, given);
    checker.check_overlaps();
    checker.refuse_shared({"workspace.data", workspace_});
}

}  // namespace attnsmith::ops
