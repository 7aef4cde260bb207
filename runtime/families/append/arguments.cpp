// From a spec to a kernel's constants, and from checked tensors to its arguments.
#include <algorithm>

#include "families/append/kernel.hpp"
#include "problem/ceil_div.hpp"
#include "problem/limits.hpp"
#include "problem/request/problem.hpp"
#include "problem/request/request_fields.hpp"

namespace attnsmith::families::append {
namespace {

int significand_of(DType dtype) { return dtype == DType::e4m3 ? 3 : dtype == DType::e5m2 ? 2 : 0; }

// Heads in pieces: each of so many steps, in which a warp has some rows at a time.
struct Pieces {
    int steps = 1;
    std::int64_t count = 0;
};

// `rows`: that a warp has at once, when there are enough of them.
Pieces pieces_of(std::int64_t heads, int at_once, int rows) {
    const std::int64_t most = problem::ceil_div(heads, std::int64_t{at_once});
    const int taken = static_cast<int>(std::clamp<std::int64_t>(rows / at_once, 1, most));
    return {taken, problem::ceil_div(heads, std::int64_t{at_once} * taken)};
}

struct Division {
    Pieces q, k, v;
    std::int64_t count() const { return q.count + k.count + v.count; }
};

// Whatever of them is bound: planning counts all, a launch those that there are.
Division divide(const Kernel& kernel, const AttentionSpec& spec, int rows) {
    Division division;
    const int rotated = kernel.rope == kHalf ? kernel.rotary_dim : 0;
    if (kernel.columns_q > 0)
        division.q = pieces_of(spec.q_heads, rows_at_a_time(kernel.columns_q, rotated), rows);
    if (kernel.columns_k > 0 && !kernel.joint_scale)  // else v's warps have k's rows, too
        division.k = pieces_of(spec.kv_heads, rows_at_a_time(kernel.columns_k, rotated), rows);
    division.v = pieces_of(spec.kv_heads, rows_at_a_time(kernel.columns_v, 0), rows);
    return division;
}

// As many rows a warp as leave each SM enough warps, since a token's place and angles are then found for more
// of them: those that it holds at a time, and twice that where warps go on to further rows, or the last of
// them would leave it idle for long.
Division divide(const Kernel& kernel, const LaunchContext& context) {
    constexpr std::int64_t kWarpsPerSm = 32;
    constexpr int kRowsAtOnce = 8;
    const std::int64_t sms = std::max(1, context.device.sm_count);
    for (const int rows : {32, 16, 8, 4}) {
        const Division division = divide(kernel, context.problem.spec, rows);
        const std::int64_t enough = kWarpsPerSm * (rows > kRowsAtOnce ? 2 : 1);
        if (division.count() * context.shape.q_tokens >= enough * sms) return division;
    }
    return divide(kernel, context.problem.spec, 1);
}

// Tiles of all tokens, each of which is compared with itself and with those behind it to half of the circle.
struct SlotTiles {
    std::int64_t count, pairs;
};

SlotTiles slot_tiles(std::int64_t tokens) {
    const std::int64_t count = problem::ceil_div(tokens, std::int64_t{abi::kSlotTile});
    return {count, count / 2 + 1};
}

struct Strides {
    std::int64_t sequence, token, head;
};

// [token, (head,) column] in a row, or [sequence, token, (head,) column].
Strides input_strides(const Tensor& tensor, bool in_a_row, bool has_heads) {
    const std::size_t token = in_a_row ? 0 : 1;
    return {in_a_row ? 0 : tensor.strides[0], tensor.strides[token],
            has_heads ? tensor.strides[token + 1] : 0};
}

Strides cache_strides(const Tensor& tensor, const AttentionSpec& spec) {
    if (problem::is_latent(spec)) return {tensor.strides[0], tensor.strides[1], 0};
    if (spec.kv == KvStorage::paged && spec.page_order == PageOrder::HND)
        return {tensor.strides[0], tensor.strides[2], tensor.strides[1]};
    return {tensor.strides[0], tensor.strides[1], tensor.strides[2]};
}

const void* column_of(const Tensor& tensor, std::int64_t column) {
    return static_cast<const char*>(tensor.data) + column * size_of(tensor.dtype);
}

abi::AppendRows rows_of(const Strides& source, const Strides& target, std::int64_t heads,
                        const Pieces& pieces) {
    abi::AppendRows rows{};
    rows.source_sequence_stride = source.sequence, rows.source_token_stride = source.token;
    rows.source_head_stride = source.head;
    rows.target_sequence_stride = target.sequence, rows.target_token_stride = target.token;
    rows.target_head_stride = target.head;
    rows.heads = static_cast<std::int32_t>(heads);
    rows.steps = pieces.steps;
    rows.pieces = static_cast<std::int32_t>(pieces.count);
    return rows;
}

void set_weight(abi::AppendRows& rows, const Tensor& weight) {
    rows.weight = weight.data;
    rows.weight_is_fp32 = weight.dtype == DType::fp32;
}

// A scale is one number, or has an axis of heads, or has the axes of the cache and perhaps one of blocks.
void set_scale(abi::AppendRows& rows, const Tensor& scale, const AttentionSpec& spec) {
    rows.scale = static_cast<float*>(scale.data);
    if (!is_per_token(spec.kv_scale)) {
        rows.scale_stride = spec.kv_scale == KvScale::head ? 1 : 0;
        return;
    }
    const Strides strides = cache_strides(scale, spec);
    rows.scale_sequence_stride = strides.sequence, rows.scale_token_stride = strides.token;
    rows.scale_head_stride = strides.head;
    if (spec.kv_scale == KvScale::block128)
        rows.scale_block_stride = scale.strides[static_cast<std::size_t>(scale.rank - 1)];
}

// Whether tokens are all in a row, as check_operands() has found.
bool are_in_a_row(const Binding& binding, const AttentionSpec& spec) {
    const auto& tensors = binding.operands.as<AppendTensors>();
    const Batch& batch = binding.operands.batch;
    if (spec.slots == Slots::table) return static_cast<bool>(batch.q_indptr);
    if (tensors.q) return tensors.q.rank != 4;
    if (!problem::is_latent(spec)) return tensors.k.rank != 4;
    return tensors.k.rank == 2 || (tensors.k.rank == 3 && tensors.k.shape[1] == 1);
}

void set_queries(abi::AppendArguments& a, const AppendTensors& tensors, const AttentionSpec& spec,
                 bool in_a_row, const Pieces& pieces) {
    a.q = rows_of(input_strides(tensors.q, in_a_row, true), input_strides(tensors.q_out, in_a_row, true),
                  spec.q_heads, pieces);
    a.q.source = tensors.q.data;
    a.q.target = tensors.q_out.data;
    set_weight(a.q, tensors.q_norm_weight);
    a.q.scale = static_cast<float*>(tensors.q_scale.data);
}

void set_heads(abi::AppendArguments& a, const AppendTensors& tensors, const AttentionSpec& spec,
               bool in_a_row, const Division& division) {
    a.k = rows_of(input_strides(tensors.k, in_a_row, true), cache_strides(tensors.k_cache, spec),
                  spec.kv_heads, division.k);
    a.k.source = tensors.k.data, a.k.target = tensors.k_cache.data;
    set_weight(a.k, tensors.k_norm_weight);
    set_scale(a.k, tensors.k_scale, spec);
    a.v = rows_of(input_strides(tensors.v, in_a_row, true), cache_strides(tensors.v_cache, spec),
                  spec.kv_heads, division.v);
    a.v.source = tensors.v.data, a.v.target = tensors.v_cache.data;
    set_scale(a.v, tensors.v_scale, spec);
}

void set_latents(abi::AppendArguments& a, const AppendTensors& tensors, const AttentionSpec& spec,
                 bool in_a_row, const Division& division) {
    a.v = rows_of(input_strides(tensors.k, in_a_row, false), cache_strides(tensors.k_cache, spec), 1,
                  division.v);
    a.v.source = tensors.k.data, a.v.target = tensors.k_cache.data;
    set_weight(a.v, tensors.k_norm_weight);
    set_scale(a.v, tensors.k_scale, spec);
    if (spec.head_dim_kpe == 0) return;
    const Tensor& from = tensors.kpe ? tensors.kpe : tensors.k;
    const Tensor& to = tensors.kpe_cache ? tensors.kpe_cache : tensors.k_cache;
    a.k = rows_of(input_strides(from, in_a_row, false), cache_strides(to, spec), 1, division.k);
    a.k.source = column_of(from, tensors.kpe ? 0 : spec.head_dim_ckv);
    a.k.target = const_cast<void*>(column_of(to, tensors.kpe_cache ? 0 : spec.head_dim_ckv));
    if (problem::position_dtype(spec) == problem::kv_dtype(spec)) set_scale(a.k, tensors.k_scale, spec);
}

void set_lengths(abi::AttentionArguments& a, const LaunchContext& context, const Binding& binding) {
    const Batch& batch = binding.operands.batch;
    const problem::BoundShape& shape = context.shape;
    a.q_indptr = batch.q_indptr.data;
    a.q_lens = batch.q_lens.data;
    a.kv_lens = batch.kv_lens.data;
    a.page_ids = batch.page_table ? batch.page_table.data : batch.page_indices.data;
    a.page_indptr = batch.page_indptr.data;
    a.last_page_len = batch.last_page_len.data;
    a.table_rows = batch.table_rows.data;
    a.page_row_stride = batch.page_table ? batch.page_table.strides[0] : 0;
    a.status = static_cast<std::uint32_t*>(binding.workspace);
    a.page_rows = shape.table_rows;
    a.pages = shape.pages;
    a.page_list = shape.page_list;
    a.q_tokens = shape.q_tokens;
    a.kv_tokens = shape.kv_tokens;
    a.batch = static_cast<std::int32_t>(shape.batch);
    a.max_q_len = static_cast<std::int32_t>(shape.max_q_len);
    a.max_kv_len = static_cast<std::int32_t>(shape.max_kv_len);
    a.page_size = abi::divisor_of(static_cast<std::int32_t>(context.problem.spec.page_size));
}

void set_places(abi::AppendArguments& a, const LaunchContext& context, const AppendTensors& tensors) {
    const AttentionSpec& spec = context.problem.spec;
    a.slot_mapping = tensors.slot_mapping.data;
    a.slots_are_64 = tensors.slot_mapping.dtype == DType::int64;
    a.positions = tensors.positions.data;
    a.positions_are_64 = tensors.positions.dtype == DType::int64;
    a.rope_table = tensors.rope_table.data;
    a.rope_is_fp32 = tensors.rope_table.dtype == DType::fp32;
    a.rope_row_stride = tensors.rope_table.strides[0];
    a.rope_positions =
        spec.rope_table == RopeTable::frequencies ? problem::kMaxLength : tensors.rope_table.shape[0];
    a.rope_factor = static_cast<float>(spec.rope_factor.value_or(1.0));
    a.eps = static_cast<float>(spec.norm_eps.value_or(0.0));
    a.has_cache = tensors.k_cache ? 1 : 0;
    if (!tensors.k_cache) return;
    const bool paged = spec.kv == KvStorage::paged;
    const std::int64_t of_each = paged ? spec.page_size : tensors.k_cache.shape[1];
    a.slots = tensors.k_cache.shape[0] * of_each;
    a.slots_of_each = abi::divisor_of(static_cast<std::int32_t>(of_each));
    if (!spec.check_slots) return;
    const SlotTiles compared = slot_tiles(context.shape.q_tokens);
    a.slot_tiles = static_cast<std::int32_t>(compared.count);
    a.slot_pairs = abi::divisor_of(static_cast<std::int32_t>(compared.pairs));
}

}  // namespace

Kernel kernel_of(const AttentionSpec& spec) {
    const bool latent = problem::is_latent(spec);
    const std::int64_t columns = latent ? spec.head_dim_kpe : spec.head_dim_qk;
    const std::int64_t value_columns = latent ? spec.head_dim_ckv : spec.head_dim_vo;
    const bool of_tokens = is_per_token(spec.kv_scale);
    const bool of_blocks = spec.kv_scale == KvScale::block128;
    // Heads of at most 128 columns have one block.
    const auto scale_columns = [&](std::int64_t of_row) {
        return static_cast<int>(of_blocks ? std::min(of_row, problem::kScaleBlock) : of_row);
    };
    return {.element = spec.dtype,
            .index = spec.index_dtype,
            .columns_q = static_cast<int>(columns),
            .columns_k = static_cast<int>(columns),
            .columns_v = static_cast<int>(value_columns),
            .q_significand = significand_of(spec.q_dtype.value_or(spec.dtype)),
            .k_significand = significand_of(latent ? problem::position_dtype(spec) : problem::kv_dtype(spec)),
            .v_significand = significand_of(problem::kv_dtype(spec)),
            .k_scale_columns = of_tokens && !latent ? scale_columns(columns) : 0,
            .v_scale_columns = of_tokens ? scale_columns(value_columns) : 0,
            .joint_scale = spec.kv_scale == KvScale::token_head && latent && columns > 0,
            .paged = spec.kv == KvStorage::paged,
            .by_table = spec.slots == Slots::table,
            .rope = spec.rope == Rope::half          ? kHalf
                    : spec.rope == Rope::interleaved ? kInterleaved
                                                     : 0,
            .rotary_dim = static_cast<int>(spec.rotary_dim),
            .frequencies = spec.rope_table == RopeTable::frequencies,
            .norm_q = spec.q_norm,
            .norm_k = spec.k_norm && !latent,
            .norm_v = latent ? spec.k_norm : spec.v_norm,
            .weighted_v = latent,
            .check_slots = spec.check_slots,
            .alignment = spec.alignment};
}

int rows_at_a_time(int columns, int rotated_by_halves) {
    constexpr int kWarp = 32;
    return kWarp / abi::append_lanes(columns, abi::append_has_halves(columns, rotated_by_halves));
}

std::int64_t items(const KernelConfig& config, const LaunchContext& context) {
    const auto kernel = config.as<Kernel>();
    const SlotTiles compared =
        kernel.check_slots ? slot_tiles(context.shape.q_tokens) : SlotTiles{.count = 0, .pairs = 0};
    return divide(kernel, context).count() * context.shape.q_tokens + compared.count * compared.pairs;
}

abi::AppendArguments append_arguments(const KernelConfig& config, const LaunchContext& context,
                                      const Binding& binding) {
    const AttentionSpec& spec = context.problem.spec;
    const AppendTensors& tensors = binding.operands.as<AppendTensors>();
    const bool in_a_row = are_in_a_row(binding, spec);
    const Division division = divide(config.as<Kernel>(), context);
    abi::AppendArguments a{};
    set_lengths(a.batch, context, binding);
    if (tensors.q) set_queries(a, tensors, spec, in_a_row, division.q);
    if (tensors.k && problem::is_latent(spec))
        set_latents(a, tensors, spec, in_a_row, division);
    else if (tensors.k)
        set_heads(a, tensors, spec, in_a_row, division);
    set_places(a, context, tensors);
    const Tensor& first = tensors.q ? tensors.q : tensors.k;
    a.q_len = abi::divisor_of(in_a_row ? 0 : static_cast<std::int32_t>(first.shape[1]));
    const std::int32_t pieces = a.q.pieces + a.k.pieces + a.v.pieces;
    a.pieces = abi::divisor_of(pieces);
    a.items = static_cast<std::int32_t>(pieces * context.shape.q_tokens);
    return a;
}

}  // namespace attnsmith::families::append
