#include "families/attention_arguments.hpp"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <numbers>

#include "families/key_bounds.hpp"
#include "problem/ceil_div.hpp"

namespace attnsmith::families {
namespace {

struct TokenStrides {
    std::int64_t batch, token, head;
};

// [batch, token, head, ...], or [token, head, ...] of a ragged tensor, whose sequences lie one after the
// other.
TokenStrides token_strides(const Tensor& tensor, bool ragged) {
    if (ragged) return {0, tensor.strides[0], tensor.strides[1]};
    return {tensor.strides[0], tensor.strides[1], tensor.strides[2]};
}

TokenStrides key_strides(const Tensor& tensor, const AttentionSpec& spec) {
    if (spec.kv == KvStorage::paged && spec.page_order == PageOrder::HND) {
        return {tensor.strides[0], tensor.strides[2], tensor.strides[1]};
    }
    return token_strides(tensor, spec.kv == KvStorage::ragged);
}

// The strides of latents, which may have no axis of KV heads.
TokenStrides latent_strides(const Tensor& tensor, const AttentionSpec& spec) {
    if (spec.kv == KvStorage::ragged) return {0, tensor.strides[0], 0};
    return {tensor.strides[0], tensor.strides[1], 0};
}

void set_key_strides(abi::AttentionArguments& a, const TokenStrides& k) {
    a.k_batch_stride = k.batch, a.k_token_stride = k.token, a.k_head_stride = k.head;
}
void set_value_strides(abi::AttentionArguments& a, const TokenStrides& v) {
    a.v_batch_stride = v.batch, a.v_token_stride = v.token, a.v_head_stride = v.head;
}

// The columns of the position are those of the latents' tensor, and of q, unless they are apart.
void set_latent_strides(abi::AttentionArguments& a, const AttentionSpec& spec,
                        const AttentionTensors& tensors, bool ragged_q) {
    set_value_strides(a, latent_strides(tensors.k, spec));
    set_key_strides(a, latent_strides(tensors.kpe ? tensors.kpe : tensors.k, spec));
    const TokenStrides q_pe = token_strides(tensors.q_pe ? tensors.q_pe : tensors.q, ragged_q);
    a.q_pe_batch_stride = q_pe.batch, a.q_pe_token_stride = q_pe.token, a.q_pe_head_stride = q_pe.head;
}

// Those of scales that tokens have: the axes of keys, or of latents, and then perhaps blocks of columns.
void set_scale_strides(abi::AttentionArguments& a, const AttentionSpec& spec,
                       const AttentionTensors& tensors) {
    const bool latent = problem::is_latent(spec);
    const TokenStrides k =
        latent ? latent_strides(tensors.k_scale, spec) : key_strides(tensors.k_scale, spec);
    a.k_scale_batch_stride = k.batch, a.k_scale_token_stride = k.token, a.k_scale_head_stride = k.head;
    const auto last = static_cast<std::size_t>(tensors.k_scale.rank - 1);
    a.scale_block_stride = spec.kv_scale == KvScale::block128 ? tensors.k_scale.strides[last] : 0;
    if (latent) return;
    const TokenStrides v = key_strides(tensors.v_scale, spec);
    a.v_scale_batch_stride = v.batch, a.v_scale_token_stride = v.token, a.v_scale_head_stride = v.head;
}

void set_strides(abi::AttentionArguments& a, const AttentionSpec& spec, const AttentionTensors& tensors,
                 bool ragged_q) {
    const TokenStrides q = token_strides(tensors.q, ragged_q), o = token_strides(tensors.o, ragged_q);
    a.q_batch_stride = q.batch, a.q_token_stride = q.token, a.q_head_stride = q.head;
    a.o_batch_stride = o.batch, a.o_token_stride = o.token, a.o_head_stride = o.head;
    if (problem::is_latent(spec)) {
        set_latent_strides(a, spec, tensors, ragged_q);
    } else {
        set_key_strides(a, key_strides(tensors.k, spec));
        set_value_strides(a, key_strides(tensors.v, spec));
    }
    if (tensors.lse) {
        const TokenStrides lse = token_strides(tensors.lse, ragged_q);
        a.lse_batch_stride = lse.batch, a.lse_token_stride = lse.token, a.lse_head_stride = lse.head;
    }
}

void set_lengths(abi::AttentionArguments& a, const Batch& batch) {
    a.q_indptr = batch.q_indptr.data;
    a.q_lens = batch.q_lens.data;
    a.kv_indptr = batch.kv_indptr.data;
    a.kv_lens = batch.kv_lens.data;
    a.page_ids = batch.page_table ? batch.page_table.data : batch.page_indices.data;
    a.page_indptr = batch.page_indptr.data;
    a.last_page_len = batch.last_page_len.data;
    a.table_rows = batch.table_rows.data;
    a.page_row_stride = batch.page_table ? batch.page_table.strides[0] : 0;
}

abi::Divisor divisor(std::int64_t value) { return abi::divisor_of(static_cast<std::int32_t>(value)); }

}  // namespace

abi::AttentionArguments attention_arguments(const LaunchContext& context, const Binding& binding,
                                            const QueryTiles& tiles) {
    const AttentionSpec& spec = context.problem.spec;
    const problem::BoundShape& shape = context.shape;
    const auto& tensors = binding.operands.as<AttentionTensors>();
    const Batch& batch = binding.operands.batch;
    abi::AttentionArguments a{};
    a.q = tensors.q.data;
    const bool latent = problem::is_latent(spec);
    a.k = latent ? tensors.kpe.data : tensors.k.data;
    a.v = latent ? tensors.k.data : tensors.v.data;
    a.q_pe = tensors.q_pe.data;
    a.o = tensors.o.data;
    a.lse = static_cast<float*>(tensors.lse.data);
    a.sinks = static_cast<const float*>(tensors.sinks.data);
    a.alibi_slopes = static_cast<const float*>(tensors.alibi_slopes.data);
    a.k_scale = static_cast<const float*>(tensors.k_scale.data);
    a.v_scale = static_cast<const float*>(latent ? tensors.k_scale.data : tensors.v_scale.data);
    a.scale_stride = spec.kv_scale == KvScale::head ? 1 : 0;
    set_strides(a, spec, tensors, static_cast<bool>(batch.q_indptr));
    if (is_per_token(spec.kv_scale)) set_scale_strides(a, spec, tensors);
    set_lengths(a, batch);

    a.status = static_cast<std::uint32_t*>(binding.workspace);
    const auto region = [&](Region name) {
        return static_cast<float*>(context.workspace.address(binding.workspace, name));
    };
    a.partial_o = region(Region::partial_o);
    a.partial_ml = region(Region::partial_ml);

    a.pages = shape.pages;
    a.page_rows = shape.table_rows;
    a.page_list = shape.page_list;
    a.q_tokens = shape.q_tokens;
    a.kv_tokens = shape.kv_tokens;
    a.rows = context.partial.rows;
    a.batch = static_cast<std::int32_t>(shape.batch);
    a.q_heads = static_cast<std::int32_t>(spec.q_heads);
    a.kv_heads = static_cast<std::int32_t>(spec.kv_heads);
    a.group = divisor(context.problem.group_size());
    a.scale_group = a.group;
    a.max_q_len = static_cast<std::int32_t>(shape.max_q_len);
    a.max_kv_len = static_cast<std::int32_t>(shape.max_kv_len);
    a.page_size = divisor(spec.page_size);
    a.bounds = bounds_of(spec);
    a.tiles = static_cast<std::int32_t>(tiles.all);
    a.sequence_tiles = static_cast<std::int32_t>(tiles.of_each);
    a.splits = static_cast<std::int32_t>(context.split.chunks());
    if (a.splits > 1) a.chunk = static_cast<std::int32_t>(context.split.keys);
    const double scale = *spec.scale;
    a.scale_log2 =
        static_cast<float>((spec.softcap || spec.alibi ? 1.0 : scale) * std::numbers::log2e_v<double>);
    a.scale = static_cast<float>(scale);
    if (spec.softcap) {
        a.softcap = static_cast<float>(*spec.softcap);
        a.softcap_scale = static_cast<float>(scale / *spec.softcap);
    }
    return a;
}

std::span<const AddressSlot> attention_addresses(const AttentionSpec& spec) {
    using problem::Operand;
    using Arguments = abi::AttentionArguments;
    static constexpr AddressSlot kOfAttention[] = {{offsetof(Arguments, q), Operand::q},
                                                   {offsetof(Arguments, k), Operand::k},
                                                   {offsetof(Arguments, v), Operand::v},
                                                   {offsetof(Arguments, o), Operand::o},
                                                   {offsetof(Arguments, lse), Operand::lse},
                                                   {offsetof(Arguments, sinks), Operand::sinks},
                                                   {offsetof(Arguments, alibi_slopes), Operand::alibi_slopes},
                                                   {offsetof(Arguments, k_scale), Operand::k_scale},
                                                   {offsetof(Arguments, v_scale), Operand::v_scale}};
    static constexpr AddressSlot kOfMla[] = {{offsetof(Arguments, q), Operand::q},
                                             {offsetof(Arguments, v), Operand::k},
                                             {offsetof(Arguments, k), Operand::kpe},
                                             {offsetof(Arguments, q_pe), Operand::q_pe},
                                             {offsetof(Arguments, o), Operand::o},
                                             {offsetof(Arguments, lse), Operand::lse},
                                             // The latents are the values, too.
                                             {offsetof(Arguments, k_scale), Operand::k_scale},
                                             {offsetof(Arguments, v_scale), Operand::k_scale}};
    static_assert(problem::kOperands == 11 && std::size(kOfAttention) == 9 && std::size(kOfMla) == 8,
                  "an operand of an op has a slot here, or a launch cannot replace its address");
    if (problem::is_latent(spec)) return kOfMla;
    return kOfAttention;
}

void set_share(const LaunchContext& context, std::int64_t tile_kv, std::int64_t items,
               abi::AttentionArguments& arguments) {
    const Split& split = context.split;
    if (split.policy != SplitPolicy::shares) return;
    constexpr std::int64_t kMostUnits = (std::int64_t{1} << 31) - 1;
    arguments.least_share = static_cast<std::int32_t>(split.keys / tile_kv);
    arguments.share_places = static_cast<std::int32_t>(context.partial.share_places);
    arguments.share_rows = static_cast<std::int32_t>(context.partial.share_rows);
    // The lengths, the pages and the first keys of a tile come one after the other, while these keys would.
    constexpr std::int64_t kStartBytes = 64 << 10;
    const AttentionSpec& spec = context.problem.spec;
    const std::int64_t key_bytes =
        (problem::key_dim(spec) + problem::value_dim(spec)) * size_of(problem::kv_dtype(spec));
    // Where tiles are so many that no unit would be left for keys, the start counts for less.
    const std::int64_t of_tile = kMostUnits / std::max<std::int64_t>(1, items);
    const std::int64_t start = std::min(problem::ceil_div(kStartBytes, key_bytes * tile_kv), of_tile - 1);
    arguments.start_units = static_cast<std::int32_t>(start);
    arguments.most_units = static_cast<std::int32_t>(of_tile - start);
}

}  // namespace attnsmith::families
