#include "check/placement.hpp"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <utility>
#include <vector>

#include "problem/ceil_div.hpp"

namespace attnsmith::check {
namespace {

// Axes of a tensor before its memory order is chosen.
struct Extents {
    std::int64_t outer = 0;  // batch or pages; unused when ragged
    std::int64_t token = 0;
    std::int64_t head = 0;   // the tensor's own
    std::int64_t slots = 0;  // heads that the buffer holds for each token
    std::int64_t dim = 0;
};

// Gives strides to the axes named in `order` (innermost last; the element axis is not named).
void stack(Place& place, const Extents& extents, const std::vector<int>& order, std::int64_t pad) {
    const bool ragged = place.rank == 3;
    std::int64_t size = extents.dim;
    std::int64_t factor = 1;
    for (auto axis = order.rbegin(); axis != order.rend(); ++axis, factor += 2) {
        const auto a = static_cast<std::size_t>(*axis);
        const bool is_head = *axis == place.rank - 2;
        place.strides[a] = size + factor * pad;
        size = place.strides[a] * std::max<std::int64_t>(1, is_head ? extents.slots : place.shape[a]);
    }
    place.strides[ragged ? 2 : 3] = 1;
}

std::vector<int> dense_order(MemoryOrder order) {
    switch (order) {
        case MemoryOrder::bshd:
            return {0, 1, 2};
        case MemoryOrder::bhsd:
            return {0, 2, 1};
        case MemoryOrder::sbhd:
            return {1, 0, 2};
    }
    throw std::logic_error("no such memory order");
}

Place dense_place(DType dtype, const Extents& e, MemoryOrder order, std::int64_t pad, std::int64_t base) {
    Place place{dtype, 4, {e.outer, e.token, e.head, e.dim}, {}, 0};
    place.first = static_cast<std::int64_t>(kGuardBytes) / size_of(dtype) + base;
    stack(place, e, dense_order(order), pad);
    return place;
}

Place ragged_place(DType dtype, const Extents& e, MemoryOrder order, std::int64_t pad, std::int64_t base) {
    Place place{dtype, 3, {e.token, e.head, e.dim}, {}, 0};
    place.first = static_cast<std::int64_t>(kGuardBytes) / size_of(dtype) + base;
    stack(place, e, order == MemoryOrder::bhsd ? std::vector<int>{1, 0} : std::vector<int>{0, 1}, pad);
    return place;
}

Place paged_place(DType dtype, const Extents& e, PageOrder order, std::int64_t pad, std::int64_t base) {
    const bool nhd = order == PageOrder::NHD;
    Place place{dtype, 4, {e.outer, nhd ? e.token : e.head, nhd ? e.head : e.token, e.dim}, {}, 0};
    place.first = static_cast<std::int64_t>(kGuardBytes) / size_of(dtype) + base;
    // Both orders are row-major in their own axes; only the meaning of the two in the middle differs.
    std::int64_t size = e.dim;
    for (std::size_t axis : {2u, 1u, 0u}) {
        place.strides[axis] = size + static_cast<std::int64_t>(5 - 2 * axis) * pad;
        size = place.strides[axis] * place.shape[axis];
    }
    place.strides[3] = 1;
    return place;
}

Place query_place(const Case& test, const Capacity& capacity, std::int64_t dim, bool output) {
    const Layout& layout = test.layout;
    const std::int64_t heads = test.spec.q_heads;
    const bool packed = layout.packed_qkv && !output;
    const std::int64_t slots = packed ? heads + 2 * kv_heads(test.spec) : heads;
    const MemoryOrder order = output ? layout.o_order : layout.order;
    const std::int64_t pad = output ? layout.o_pad : layout.pad;
    const DType dtype = output ? output_dtype(test.spec) : test.spec.dtype;
    if (test.q_storage == QStorage::dense)
        return dense_place(dtype, {capacity.batch, capacity.q_rows, heads, slots, dim}, order, pad,
                           layout.base);
    return ragged_place(dtype, {0, capacity.q_tokens, heads, slots, dim}, order, pad, layout.base);
}

bool has_blocks(const AttentionSpec& spec) { return spec.kv_scale == KvScale::block128; }

// Bytes from a head's columns to those of the next, with what lies behind them.
std::int64_t row_bytes(const Case& test, std::int64_t dim) {
    const AttentionSpec& spec = test.spec;
    std::int64_t bytes = dim + static_cast<std::int64_t>(sizeof(float)) * scales_of(spec, dim);
    if (spec.op == Op::mla && has_blocks(spec)) bytes += size_of(spec.dtype) * spec.head_dim_kpe;
    return problem::ceil_div(bytes, spec.alignment) * spec.alignment;
}

Place kv_place(const Case& test, const Capacity& capacity, std::int64_t dim) {
    const Layout& layout = test.layout;
    const std::int64_t heads = kv_heads(test.spec);
    const std::int64_t slots = layout.one_kv_tensor ? 2 * heads : heads;
    const DType dtype = kv_dtype(test.spec);
    // As many bytes as elements of 16 bits would be, which alignment counts.
    const std::int64_t unit = is_fp8(dtype) ? 2 : 1, pad = unit * layout.pad, base = unit * layout.base;
    if (test.spec.kv == KvStorage::paged)
        return paged_place(dtype, {capacity.pages, test.spec.page_size, heads, heads, dim},
                           test.spec.page_order, pad, base);
    if (test.spec.kv == KvStorage::dense)
        return dense_place(dtype, {capacity.batch, capacity.kv_rows, heads, slots, dim}, layout.order, pad,
                           base);
    return ragged_place(dtype, {0, capacity.kv_tokens, heads, slots, dim}, layout.order, pad, base);
}

Place kv_place_of_rows(const Case& test, const Capacity& capacity, std::int64_t dim) {
    if (!test.layout.inline_scales) return kv_place(test, capacity, dim);
    Place place = kv_place(test, capacity, row_bytes(test, dim));
    place.shape[static_cast<std::size_t>(place.rank - 1)] = dim;
    return place;
}

// `offset` bytes behind the first column of each row of `keys`, which are of 8 bits.
Place place_behind(const Place& keys, std::int64_t offset, DType dtype, std::int64_t columns) {
    Place place = keys;
    const std::int64_t size = size_of(dtype);
    const auto last = static_cast<std::size_t>(place.rank - 1);
    place.dtype = dtype;
    place.first = (keys.first + offset) / size;
    for (std::size_t axis = 0; axis < last; ++axis) place.strides[axis] = keys.strides[axis] / size;
    place.shape[last] = columns, place.strides[last] = 1;
    return place;
}

// The axes of `keys`, with as many scales for its last.
Place own_scales(const Case& test, const Place& keys, std::int64_t scales) {
    Place place{
        DType::fp32, keys.rank, keys.shape, {}, static_cast<std::int64_t>(kGuardBytes / sizeof(float))};
    const auto last = static_cast<std::size_t>(place.rank - 1);
    place.shape[last] = scales, place.strides[last] = 1;
    std::vector<std::size_t> order;  // innermost first
    for (std::size_t axis = last; axis-- > 0;) order.push_back(axis);
    if (test.layout.scales_transposed) std::swap(order[0], order[1]);
    std::int64_t size = scales, factor = 1;
    for (const std::size_t axis : order) {
        place.strides[axis] = size + factor * test.layout.scale_pad;
        size = place.strides[axis] * std::max<std::int64_t>(1, place.shape[axis]);
        factor += 2;
    }
    return place;
}

Place scale_place(const Case& test, const Place& keys) {
    const std::int64_t dim = keys.shape[static_cast<std::size_t>(keys.rank - 1)];
    const std::int64_t scales = scales_of(test.spec, dim);
    Place place = test.layout.inline_scales ? place_behind(keys, dim, DType::fp32, scales)
                                            : own_scales(test, keys, scales);
    if (!has_blocks(test.spec)) --place.rank;
    return place;
}

void place_scales(Placement& placement, const Case& test) {
    if (scales_of(test.spec, 1) == 0) return;
    placement.scales_inline = test.layout.inline_scales;
    placement.k_scale = scale_place(test, placement.k);
    placement.v_scale = test.spec.op == Op::mla ? placement.k_scale : scale_place(test, placement.v);
}

// k and v become slices of q's buffer, behind its heads.
void pack_qkv(Placement& placement, const Case& test) {
    const Place q = placement.q;
    const auto head_axis = static_cast<std::size_t>(q.rank - 2);
    placement.k = placement.v = q;
    placement.k.shape[head_axis] = placement.v.shape[head_axis] = kv_heads(test.spec);
    placement.k.first = q.first + test.spec.q_heads * q.strides[head_axis];
    placement.v.first = placement.k.first + kv_heads(test.spec) * q.strides[head_axis];
    placement.k_in_q = placement.v_in_k = true;
}

// v becomes the second half of each of k's pages, or the second half of its heads.
void join_kv(Placement& placement, const Case& test) {
    Place& k = placement.k;
    Place& v = placement.v = k;
    const bool paged = test.spec.kv == KvStorage::paged;
    const std::int64_t half = k.strides[0];
    if (paged) k.strides[0] = v.strides[0] = 2 * half;
    v.first += paged ? half : kv_heads(test.spec) * k.strides[static_cast<std::size_t>(k.rank - 2)];
    placement.v_in_k = true;
}

// Columns of k are those of v: the first, or behind those of the position where these are apart. These are
// tensors of their own then, with other strides.
void place_values_in_keys(Placement& placement, const Case& test, const Capacity& capacity) {
    placement.v = placement.k;
    placement.v.shape[static_cast<std::size_t>(placement.v.rank - 1)] = test.spec.head_dim_ckv;
    placement.v_in_k = true;
    const std::int64_t columns = test.spec.head_dim_kpe;
    const bool of_blocks = has_blocks(test.spec);
    placement.is_q_pe_apart = test.layout.latents_apart && columns > 0;
    placement.is_kpe_apart = (test.layout.latents_apart || of_blocks) && columns > 0;
    Case other = test;
    other.layout.pad += 24;
    other.layout.order = test.layout.order == MemoryOrder::bhsd ? MemoryOrder::bshd : MemoryOrder::bhsd;
    if (placement.is_q_pe_apart) placement.q_pe = query_place(other, capacity, columns, false);
    if (!placement.is_kpe_apart) return;
    if (!of_blocks) {
        placement.v.first += columns;
        placement.kpe = kv_place(other, capacity, columns);
        return;
    }
    const std::int64_t latent = test.spec.head_dim_ckv;
    placement.kpe_in_k = test.layout.inline_scales;
    other.spec.kv_dtype = test.spec.dtype;
    placement.kpe =
        placement.kpe_in_k
            ? place_behind(placement.k,
                           latent + static_cast<std::int64_t>(sizeof(float)) * scales_of(test.spec, latent),
                           test.spec.dtype, columns)
            : kv_place(other, capacity, columns);
}

Place lse_place(const Case& test, const Place& o) {
    Place place{DType::fp32, o.rank - 1, {}, {}, static_cast<std::int64_t>(kGuardBytes / sizeof(float))};
    std::copy_n(o.shape.begin(), place.rank, place.shape.begin());
    const auto head = static_cast<std::size_t>(place.rank - 1);
    const std::size_t inner = test.layout.lse_heads_first ? head - 1 : head;
    const std::size_t middle = test.layout.lse_heads_first ? head : head - 1;
    place.strides[inner] = 1;
    place.strides[middle] = std::max<std::int64_t>(1, place.shape[inner]) + test.layout.lse_pad;
    if (place.rank == 3)
        place.strides[0] = place.strides[middle] * std::max<std::int64_t>(1, place.shape[middle]);
    return place;
}

}  // namespace

std::int64_t scales_of(const AttentionSpec& spec, std::int64_t columns) {
    constexpr std::int64_t kBlock = 128;
    if (spec.kv_scale == KvScale::token_head) return 1;
    return has_blocks(spec) ? problem::ceil_div(columns, kBlock) : 0;
}

std::int64_t stored_key_dim(const AttentionSpec& spec) {
    return spec.op == Op::mla && has_blocks(spec) ? spec.head_dim_ckv : head_dim_qk(spec);
}

Capacity capacity_of(const Case& test) {
    Capacity c;
    c.batch = static_cast<std::int64_t>(test.steps.at(0).q_lens.size());
    const std::int64_t page = std::max<std::int64_t>(1, test.spec.page_size);
    for (const Step& step : test.steps) {
        if (step.q_lens.size() != step.kv_lens.size() ||
            static_cast<std::int64_t>(step.q_lens.size()) != c.batch)
            throw std::logic_error(test.full_name() + ": steps differ in batch");
        std::int64_t entries = 0;
        for (const std::int64_t n : step.kv_lens) entries += problem::ceil_div(n, page);
        c.page_entries = std::max(c.page_entries, entries);
        c.longest_q = std::max(c.longest_q, *std::max_element(step.q_lens.begin(), step.q_lens.end()));
        c.longest_kv = std::max(c.longest_kv, *std::max_element(step.kv_lens.begin(), step.kv_lens.end()));
        c.q_tokens =
            std::max(c.q_tokens, std::accumulate(step.q_lens.begin(), step.q_lens.end(), test.first_token));
        c.kv_tokens = std::max(c.kv_tokens,
                               std::accumulate(step.kv_lens.begin(), step.kv_lens.end(), test.first_token));
    }
    c.q_rows = c.longest_q + test.slack;
    c.kv_rows = c.longest_kv + test.slack;
    c.q_tokens += test.slack;
    c.kv_tokens += test.slack;
    c.columns = problem::ceil_div(c.longest_kv, page) + test.slack;
    c.page_entries += test.slack;
    c.pages = c.page_entries + 3;
    return c;
}

std::int64_t Place::at(std::int64_t a, std::int64_t b, std::int64_t c) const {
    return first + a * strides[0] + b * strides[1] + c * strides[2];
}

std::int64_t Place::at(std::int64_t a, std::int64_t b) const {
    return first + a * strides[0] + b * strides[1];
}

std::int64_t Place::end() const {
    std::int64_t last = first;
    for (std::size_t axis = 0; axis < static_cast<std::size_t>(rank); ++axis) {
        if (shape[axis] == 0) return first;
        last += (shape[axis] - 1) * strides[axis];
    }
    return last + 1;
}

std::size_t Place::image_bytes() const {
    return static_cast<std::size_t>(end() * size_of(dtype)) + kGuardBytes;
}

Tensor Place::tensor(void* image) const {
    Tensor result;
    result.data = static_cast<std::byte*>(image) + first * size_of(dtype);
    result.dtype = dtype;
    result.rank = rank;
    result.shape = shape;
    result.strides = strides;
    return result;
}

namespace {

void broadcast(Place& place, const std::vector<int>& axes) {
    for (const int axis : axes) place.strides.at(static_cast<std::size_t>(axis)) = 0;
}

}  // namespace

Placement place_tensors(const Case& test, const Capacity& capacity) {
    Placement placement;
    placement.q = query_place(test, capacity, head_dim_qk(test.spec), false);
    placement.o = query_place(test, capacity, head_dim_vo(test.spec), true);
    placement.lse = lse_place(test, placement.o);
    placement.k = kv_place_of_rows(test, capacity, stored_key_dim(test.spec));
    placement.v = kv_place_of_rows(test, capacity, head_dim_vo(test.spec));
    if (test.spec.op == Op::mla)
        place_values_in_keys(placement, test, capacity);
    else if (test.layout.packed_qkv)
        pack_qkv(placement, test);
    else if (test.layout.one_kv_tensor)
        join_kv(placement, test);
    broadcast(placement.q, test.layout.q_broadcast);
    broadcast(placement.k, test.layout.kv_broadcast);
    broadcast(placement.v, test.layout.kv_broadcast);
    place_scales(placement, test);
    return placement;
}

}  // namespace attnsmith::check
