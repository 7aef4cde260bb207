#include "check/append.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>

#include "check/append_reference.hpp"
#include "check/elements.hpp"
#include "check/guarded_workspace.hpp"
#include "check/judge.hpp"
#include "check/random.hpp"
#include "check/small_floats.hpp"
#include "check/storage.hpp"

namespace attnsmith::check {
namespace {

using Extents = std::vector<std::int64_t>;

constexpr std::int64_t kScaleBlock = 128;  // columns that share a scale of kv_scale block128

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

// A tensor in an image that others may share. Strides count elements.
struct Block {
    std::shared_ptr<Image> image;
    DType dtype = DType::bf16;
    Extents shape, strides;
    std::int64_t first = 0;

    std::int64_t element(const Extents& index) const {
        return std::inner_product(index.begin(), index.end(), strides.begin(), first);
    }
    Tensor tensor(bool as_bytes = false) const {
        Tensor tensor;
        tensor.data = static_cast<std::byte*>(image->device.data()) + first * size_of(dtype);
        tensor.dtype = as_bytes && is_fp8(dtype) ? DType::uint8 : dtype;
        tensor.rank = static_cast<int>(shape.size());
        std::copy(shape.begin(), shape.end(), tensor.shape.begin());
        std::copy(strides.begin(), strides.end(), tensor.strides.begin());
        return tensor;
    }
    Block slice(std::int64_t begin, std::int64_t end) const {  // of the last axis
        Block part = *this;
        part.first += begin;
        part.shape.back() = end - begin;
        return part;
    }
    // A view of a block of bytes: what lies so many bytes behind the beginning of each row, as another type.
    // `last` is its last axis, and 0 for none.
    Block within_rows(std::int64_t bytes, DType type, std::int64_t last) const {
        Block part = *this;
        const std::int64_t size = size_of(type);
        part.dtype = type;
        part.first = (first + bytes) / size;
        for (std::int64_t& stride : part.strides) stride /= size;
        part.shape.back() = last, part.strides.back() = 1;
        if (last == 0) part.shape.pop_back(), part.strides.pop_back();
        return part;
    }
};

bool is_nan_of(DType dtype, std::uint16_t bits) { return std::isnan(decode(dtype, bits)); }

// One token: of which sequence, and where its keys go. Of none: sequence below 0.
struct Token {
    std::int64_t sequence = -1, in_sequence = 0, key = 0;
};

class AppendRun {
  public:
    AppendRun(Runtime& runtime, const AppendCase& test, const RunOptions& options, CaseResult& result)
        : runtime_(runtime),
          test_(test),
          spec_(test.spec),
          latent_(test.spec.head_dim_ckv != 0),
          result_(result),
          random_(derive_seed(options.seed, test.full_name())),
          launch_(options.launch) {}

    void run() {
        fill_in_spec();
        list_tokens();
        place_keys();
        make_inputs();
        make_outputs();
        make_vectors();
        make_batch();
        for (const std::shared_ptr<Image>& image : images_) image->upload();
        expect_all();
        launch_all();
    }

  private:
    void fail(const std::string& why) {
        if (result_.outcome == Outcome::failed) return;  // the first reason is the one to act on
        result_.outcome = Outcome::failed;
        result_.detail = why;
    }

    void fill_in_spec() {
        if (!latent_ && spec_.head_dim_vo == 0) spec_.head_dim_vo = spec_.head_dim_qk;
        if (spec_.kv_heads == 0) spec_.kv_heads = latent_ ? 1 : spec_.q_heads;
        const std::int64_t columns = latent_ ? spec_.head_dim_kpe : spec_.head_dim_qk;
        if (spec_.rope != Rope::none && spec_.rotary_dim == 0) spec_.rotary_dim = columns;
    }

    std::int64_t batch() const { return static_cast<std::int64_t>(test_.q_lens.size()); }
    std::int64_t longest_q() const { return *std::ranges::max_element(test_.q_lens); }
    std::int64_t longest_kv() const { return *std::ranges::max_element(test_.kv_lens); }
    bool is_paged() const { return spec_.kv == KvStorage::paged; }
    bool by_table() const { return spec_.slots == Slots::table; }
    DType kv_dtype() const { return spec_.kv_dtype.value_or(spec_.dtype); }
    bool computes_scales() const { return is_per_token(spec_.kv_scale); }
    bool has_blocks() const { return spec_.kv_scale == KvScale::block128; }
    DType position_dtype() const { return has_blocks() ? spec_.dtype : kv_dtype(); }
    DType q_dtype() const { return spec_.q_dtype.value_or(spec_.dtype); }
    std::int64_t query_columns() const { return latent_ ? spec_.head_dim_kpe : spec_.head_dim_qk; }

    void list_tokens() {
        for (std::int64_t s = 0; s < batch(); ++s) {
            const std::int64_t q_len = test_.q_lens[at(s)];
            const std::int64_t rows = test_.in_a_row ? q_len : longest_q();
            for (std::int64_t i = 0; i < rows; ++i)
                tokens_.push_back({i < q_len ? s : -1, i, test_.kv_lens[at(s)] - q_len + i});
        }
        if (test_.in_a_row) tokens_.resize(tokens_.size() + at(test_.padding));
    }

    // Pages of a pool in no order, or a row of a dense cache for each sequence.
    void place_keys() {
        constexpr std::int64_t kSpare = 5;
        capacity_ = longest_kv() + 3;
        if (!is_paged()) return;
        std::int64_t needed = 0;
        for (const std::int64_t n : test_.kv_lens) needed += pages_of(n);
        pages_ = needed + kSpare;
        Extents pool(at(pages_));
        std::iota(pool.begin(), pool.end(), 0);
        random_.shuffle(pool);
        auto next = pool.begin();
        for (const std::int64_t n : test_.kv_lens) {
            page_lists_.emplace_back(next, next + pages_of(n));
            next += pages_of(n);
        }
    }
    std::int64_t pages_of(std::int64_t keys) const { return (keys + spec_.page_size - 1) / spec_.page_size; }
    std::int64_t slots_of_each() const { return is_paged() ? spec_.page_size : capacity_; }

    std::int64_t slot_of(const Token& token) const {
        if (token.sequence < 0) return -1;
        if (!is_paged()) return token.sequence * capacity_ + token.key;
        const std::int64_t page = page_lists_[at(token.sequence)][at(token.key / spec_.page_size)];
        return page * spec_.page_size + token.key % spec_.page_size;
    }

    // Rows of `shape`, padded at each axis, between guards of `fill`.
    Block make(const std::string& name, DType dtype, Extents shape, std::int64_t pad, std::int64_t base,
               std::byte fill) {
        Block block{nullptr, dtype, std::move(shape), {}, 0};
        block.strides.assign(block.shape.size(), 1);
        std::int64_t gap = pad;
        for (std::size_t axis = block.shape.size() - 1; axis-- > 0; gap += pad)
            block.strides[axis] = block.strides[axis + 1] * block.shape[axis + 1] + gap;
        const std::int64_t size = size_of(dtype), guard = static_cast<std::int64_t>(kGuardBytes);
        block.first = guard / size + base;
        const std::int64_t bytes = 2 * guard + (base + block.strides[0] * block.shape[0]) * size;
        block.image = std::make_shared<Image>(
            Image{name, std::vector<std::byte>(at(bytes), fill), runtime_.allocate(at(bytes))});
        images_.push_back(block.image);
        return block;
    }
    // Inputs have NaN in all gaps.
    Block make_input(const std::string& name, DType dtype, Extents shape, std::int64_t pad = 0,
                     std::int64_t base = 0) {
        return make(name, dtype, std::move(shape), pad, base, std::byte{0xff});
    }

    Extents rows_of(std::int64_t heads, std::int64_t columns) const {
        const auto tokens = static_cast<std::int64_t>(tokens_.size());
        Extents shape = test_.in_a_row ? Extents{tokens} : Extents{batch(), longest_q()};
        if (heads > 0) shape.push_back(heads);
        shape.push_back(columns);
        return shape;
    }

    Block make_rows(const std::string& name, std::int64_t heads, std::int64_t columns) {
        Block block = make_input(name, spec_.dtype, rows_of(heads, columns), test_.pad, test_.base);
        fill_rows(block);
        return block;
    }

    void fill_rows(const Block& block) {
        const std::int64_t heads = has_head_axis(block) ? block.shape[block.shape.size() - 2] : 1;
        for (std::int64_t t = 0; t < static_cast<std::int64_t>(tokens_.size()); ++t)
            for (std::int64_t h = 0; h < heads; ++h)
                for (std::int64_t d = 0; d < block.shape.back(); ++d)
                    store_at(block.image->host, row_element(block, t, h) + d,
                             encode(spec_.dtype, 2 * random_.normal()));
    }

    bool has_head_axis(const Block& block) const { return block.shape.size() == (test_.in_a_row ? 3 : 4); }

    std::int64_t row_element(const Block& block, std::int64_t token, std::int64_t head) const {
        Extents index = test_.in_a_row ? Extents{token} : Extents{token / longest_q(), token % longest_q()};
        if (has_head_axis(block)) index.push_back(head);
        index.push_back(0);
        return block.element(index);
    }

    void make_inputs() {
        make_random_inputs();
        for (const AppendCase::Value& given : test_.values)
            for (const Block* block : {&k_, &v_}) {
                if (!block->image) continue;
                const std::int64_t row = row_element(*block, given.token, given.head);
                for (std::int64_t d = 0; d < block->shape.back(); ++d)
                    if (given.column < 0 || given.column == d)
                        store_at(block->image->host, row + d, encode(spec_.dtype, given.value));
            }
    }

    void make_random_inputs() {
        if (test_.fused) return make_fused();
        if (test_.has_q) q_ = make_rows("q", spec_.q_heads, query_columns());
        if (!test_.has_k) return;
        if (!latent_) {
            k_ = make_rows("k", spec_.kv_heads, spec_.head_dim_qk);
            v_ = make_rows("v", spec_.kv_heads, spec_.head_dim_vo);
            return;
        }
        const std::int64_t ckv = spec_.head_dim_ckv, kpe = spec_.head_dim_kpe;
        const std::int64_t heads = test_.latent_heads ? 1 : 0;
        latent_is_apart_ = test_.latents_apart && kpe > 0;
        k_ = make_rows("k", heads, latent_is_apart_ ? ckv : ckv + kpe);
        if (kpe == 0) return;
        kpe_ = latent_is_apart_ ? make_rows("kpe", heads, kpe) : k_.slice(ckv, ckv + kpe);
    }

    // A token's q heads, then its k heads, then its v heads.
    void make_fused() {
        const std::int64_t heads = spec_.q_heads + 2 * spec_.kv_heads;
        const Block all = make_rows("qkv", heads, spec_.head_dim_qk);
        const std::size_t axis = all.shape.size() - 2;
        const auto part = [&](std::int64_t first, std::int64_t count) {
            Block block = all;
            block.first += first * all.strides[axis];
            block.shape[axis] = count;
            return block;
        };
        q_ = part(0, spec_.q_heads);
        k_ = part(spec_.q_heads, spec_.kv_heads);
        v_ = part(spec_.q_heads + spec_.kv_heads, spec_.kv_heads);
    }

    Block make_cache(const std::string& name, DType dtype, std::int64_t columns) {
        constexpr std::byte kKept{0xa5};
        const std::int64_t outer = is_paged() ? pages_ : batch(), inner = slots_of_each();
        const std::int64_t heads = spec_.kv_heads;
        Extents shape = latent_ && !test_.latent_heads ? Extents{outer, inner, columns}
                        : heads_first()                ? Extents{outer, heads, inner, columns}
                                                       : Extents{outer, inner, heads, columns};
        return make(name, dtype, std::move(shape), test_.pad * (is_fp8(dtype) ? 2 : 1), test_.base, kKept);
    }

    // Scales of a cache's tokens, in a tensor of their own in which they lie apart, or within the rows.
    Block make_scales(const std::string& name, const Block& cache, std::int64_t columns) {
        constexpr std::byte kKept{0x3c};
        constexpr std::int64_t kApart = 3, kPad = 5;
        Extents shape = cache.shape;
        shape.back() = has_blocks() ? (columns + kScaleBlock - 1) / kScaleBlock : kApart;
        if (has_blocks()) shape.push_back(kApart);
        Block block = make(name, DType::fp32, std::move(shape), kPad, 0, kKept);
        block.shape.pop_back(), block.strides.pop_back();
        return block;
    }

    // Rows of a cache with their scales behind them, and behind these what has no scale.
    Block make_scaled_cache(const std::string& name, Block& scales, std::int64_t columns,
                            Block* tail = nullptr, std::int64_t tail_columns = 0) {
        if (!test_.inline_scales) {
            const Block cache = make_cache(name, kv_dtype(), columns);
            if (computes_scales()) scales = make_scales(name + "'s scales", cache, columns);
            return cache;
        }
        const std::int64_t blocks = has_blocks() ? (columns + kScaleBlock - 1) / kScaleBlock : 0;
        const std::int64_t scale_bytes = 4 * std::max<std::int64_t>(1, blocks);
        const std::int64_t bytes = columns + scale_bytes + tail_columns * size_of(position_dtype());
        constexpr std::int64_t kAligned = 16;
        const Block rows = make_cache(name, kv_dtype(), (bytes + kAligned - 1) / kAligned * kAligned);
        scales = rows.within_rows(columns, DType::fp32, blocks);
        if (tail != nullptr) *tail = rows.within_rows(columns + scale_bytes, position_dtype(), tail_columns);
        return rows.slice(0, columns);
    }
    bool heads_first() const { return is_paged() && spec_.page_order == PageOrder::HND; }

    std::int64_t cache_element(const Block& cache, std::int64_t outer, std::int64_t inner,
                               std::int64_t head) const {
        if (cache.shape.size() == 3) return cache.element({outer, inner, 0});
        return heads_first() ? cache.element({outer, head, inner, 0})
                             : cache.element({outer, inner, head, 0});
    }

    void make_outputs() {
        constexpr std::byte kKept{0x5a};
        if (test_.has_q)
            q_out_ = test_.in_place ? q_
                                    : make("q_out", q_dtype(), rows_of(spec_.q_heads, query_columns()),
                                           test_.pad * (is_fp8(q_dtype()) ? 2 : 1), test_.base, kKept);
        if (!test_.has_k) return;
        const std::int64_t ckv = spec_.head_dim_ckv, kpe = spec_.head_dim_kpe;
        if (latent_) {
            cache_is_apart_ = (test_.caches_apart || has_blocks()) && kpe > 0;
            const bool one_row = test_.inline_scales && cache_is_apart_;
            k_cache_ = make_scaled_cache("k_cache", k_scale_, cache_is_apart_ ? ckv : ckv + kpe,
                                         one_row ? &kpe_cache_ : nullptr, one_row ? kpe : 0);
            if (kpe > 0 && !one_row)
                kpe_cache_ = cache_is_apart_ ? make_cache("kpe_cache", position_dtype(), kpe)
                                             : k_cache_.slice(ckv, ckv + kpe);
        } else if (test_.one_cache) {
            const Block both = make_cache("cache", kv_dtype(), spec_.head_dim_qk + spec_.head_dim_vo);
            k_cache_ = both.slice(0, spec_.head_dim_qk);
            v_cache_ = both.slice(spec_.head_dim_qk, spec_.head_dim_qk + spec_.head_dim_vo);
        } else {
            k_cache_ = make_scaled_cache("k_cache", k_scale_, spec_.head_dim_qk);
            v_cache_ = make_scaled_cache("v_cache", v_scale_, spec_.head_dim_vo);
        }
    }

    template <class Draw>
    Block make_floats(const std::string& name, DType dtype, Extents shape, const Draw& draw) {
        Block block = make_input(name, dtype, std::move(shape));
        const std::int64_t count =
            std::accumulate(block.shape.begin(), block.shape.end(), std::int64_t{1}, std::multiplies<>());
        for (std::int64_t i = 0; i < count; ++i) {
            if (dtype == DType::fp32)
                store_at(block.image->host, block.first + i, static_cast<float>(draw()));
            else
                store_at(block.image->host, block.first + i, encode(dtype, draw()));
        }
        return block;
    }

    void make_vectors() {
        const auto weight = [&] { return 1 + 0.2 * random_.normal(); };
        const DType weights = test_.weights_in_fp32 ? DType::fp32 : spec_.dtype;
        if (spec_.q_norm && test_.has_q)
            q_weight_ = make_floats("q_norm_weight", weights, {spec_.head_dim_qk}, weight);
        if (spec_.k_norm && test_.has_k)
            k_weight_ = make_floats("k_norm_weight", weights,
                                    {latent_ ? spec_.head_dim_ckv : spec_.head_dim_qk}, weight);
        make_rope_table();
        if (spec_.kv_scale != KvScale::none && !computes_scales() && test_.has_k) {
            const std::int64_t scales = spec_.kv_scale == KvScale::head ? spec_.kv_heads : 1;
            const auto scale = [&] { return 0.01 + 0.05 * random_.uniform(); };
            k_scale_ = make_floats("k_scale", DType::fp32, {scales}, scale);
            if (test_.k_scale) store_at(k_scale_.image->host, k_scale_.first, *test_.k_scale);
            if (!latent_) v_scale_ = make_floats("v_scale", DType::fp32, {scales}, scale);
        }
        if (is_fp8(q_dtype()) && test_.has_q)
            q_scale_ = make_floats("q_scale", DType::fp32, {1}, [] { return 0.03; });
    }

    void make_rope_table() {
        if (spec_.rope == Rope::none) return;
        rope_positions_ = test_.rope_positions > 0 ? test_.rope_positions : longest_kv() + 1;
        if (spec_.rope_table == RopeTable::frequencies) {
            std::int64_t i = 0;
            const double half = static_cast<double>(spec_.rotary_dim / 2);
            rope_table_ = make_floats("rope_table", DType::fp32, {spec_.rotary_dim / 2},
                                      [&] { return std::pow(10000.0, -static_cast<double>(i++) / half); });
            return;
        }
        rope_table_ =
            make_floats("rope_table", test_.table_in_fp32 ? DType::fp32 : spec_.dtype,
                        {rope_positions_, spec_.rotary_dim}, [&] { return random_.uniform(-1, 1); });
    }

    Block make_indices(const std::string& name, const Extents& values, bool wide, Extents shape = {}) {
        const DType dtype = wide ? DType::int64 : spec_.index_dtype;
        if (shape.empty()) shape = {static_cast<std::int64_t>(values.size())};
        Block block = make_input(name, dtype, std::move(shape));
        for (std::size_t i = 0; i < values.size(); ++i) {
            const std::int64_t element = block.first + static_cast<std::int64_t>(i);
            if (dtype == DType::int64)
                store_at(block.image->host, element, values[i]);
            else
                store_at(block.image->host, element, static_cast<std::int32_t>(values[i]));
        }
        return block;
    }

    void make_batch() {
        for (const Token& token : tokens_) {
            slots_.push_back(slot_of(token));
            positions_.push_back(test_.own_positions
                                     ? random_.integer(0, std::max<std::int64_t>(1, rope_positions_) - 1)
                                     : std::max<std::int64_t>(0, token.key));
        }
        for (const auto& [token, slot] : test_.slots) slots_[at(token)] = slot;
        for (const auto& [token, other] : test_.twins) slots_[at(token)] = slots_[at(other)];
        for (const auto& [token, position] : test_.positions) positions_[at(token)] = position;
        if (!by_table()) slot_mapping_ = make_indices("slot_mapping", slots_, test_.wide_indices);
        if (spec_.rope != Rope::none && (!by_table() || test_.own_positions))
            position_tensor_ = make_indices("positions", positions_, test_.wide_indices);
        if (by_table()) make_lengths();
    }

    void make_lengths() {
        IndexArrays arrays = list_lengths();
        if (test_.spoil) test_.spoil(arrays);
        if (test_.in_a_row) batch_.q_indptr = keep(make_indices("q_indptr", arrays.q_indptr, false));
        if (!test_.in_a_row) batch_.q_lens = keep(make_indices("q_lens", arrays.q_lens, false));
        if (!is_paged()) {
            batch_.kv_lens = keep(make_indices("kv_lens", arrays.kv_lens, false));
        } else if (test_.page_list == PageList::padded) {
            batch_.kv_lens = keep(make_indices("kv_lens", arrays.kv_lens, false));
            const auto rows = static_cast<std::int64_t>(arrays.page_table.size()) / arrays.columns;
            batch_.page_table =
                keep(make_indices("page_table", arrays.page_table, false, {rows, arrays.columns}));
            if (test_.table_rows)
                batch_.table_rows = keep(make_indices("table_rows", arrays.table_rows, false));
        } else {
            batch_.page_indptr = keep(make_indices("page_indptr", arrays.page_indptr, false));
            batch_.page_indices = keep(make_indices("page_indices", arrays.page_indices, false));
            batch_.last_page_len = keep(make_indices("last_page_len", arrays.last_page_len, false));
        }
    }

    static Tensor keep(const Block& block) { return block.tensor(); }

    IndexArrays list_lengths() {
        IndexArrays arrays;
        arrays.pages = pages_;
        arrays.q_lens = test_.q_lens;
        arrays.kv_lens = test_.kv_lens;
        arrays.q_indptr = {0};
        for (const std::int64_t n : test_.q_lens) arrays.q_indptr.push_back(arrays.q_indptr.back() + n);
        if (!is_paged()) return arrays;
        constexpr std::int64_t kGarbage = 1 << 30;
        arrays.columns = std::max<std::int64_t>(1, pages_of(longest_kv()));
        arrays.page_indptr = {0};
        for (std::int64_t s = 0; s < batch(); ++s) {
            // The last sequence's row comes first.
            const std::int64_t row = test_.table_rows ? batch() - 1 - s : s;
            arrays.table_rows.push_back(row);
            Extents list = page_lists_[at(row)];
            const std::int64_t keys = test_.kv_lens[at(s)];
            arrays.page_indices.insert(arrays.page_indices.end(), page_lists_[at(s)].begin(),
                                       page_lists_[at(s)].end());
            arrays.page_indptr.push_back(static_cast<std::int64_t>(arrays.page_indices.size()));
            arrays.last_page_len.push_back(keys == 0 ? 0 : (keys - 1) % spec_.page_size + 1);
            list.resize(at(arrays.columns), kGarbage);
            arrays.page_table.insert(arrays.page_table.end(), list.begin(), list.end());
        }
        return arrays;
    }

    AppendTensors tensors() const {
        AppendTensors tensors;
        const auto set = [&](Tensor& tensor, const Block& block) {
            if (block.image) tensor = block.tensor(test_.bytes);
        };
        set(tensors.q, q_), set(tensors.k, k_), set(tensors.v, v_), set(tensors.q_out, q_out_);
        set(tensors.k_cache, k_cache_), set(tensors.v_cache, v_cache_);
        if (latent_is_apart_) set(tensors.kpe, kpe_);
        if (cache_is_apart_) set(tensors.kpe_cache, kpe_cache_);
        set(tensors.slot_mapping, slot_mapping_), set(tensors.positions, position_tensor_);
        set(tensors.rope_table, rope_table_);
        set(tensors.q_norm_weight, q_weight_), set(tensors.k_norm_weight, k_weight_);
        set(tensors.k_scale, k_scale_), set(tensors.v_scale, v_scale_), set(tensors.q_scale, q_scale_);
        return tensors;
    }

    static std::vector<float> floats_of(const Block& block, std::int64_t first, std::int64_t count) {
        std::vector<float> values;
        for (std::int64_t i = first; i < first + count; ++i)
            values.push_back(
                block.dtype == DType::fp32
                    ? load_at<float>(block.image->host, i)
                    : static_cast<float>(decode(block.dtype, load_at<std::uint16_t>(block.image->host, i))));
        return values;
    }
    static std::vector<float> weights_of(const Block& block) {
        return block.image ? floats_of(block, block.first, block.shape[0]) : std::vector<float>();
    }
    static std::optional<float> scale_of(const Block& block, std::int64_t head) {
        if (!block.image) return std::nullopt;
        return load_at<float>(block.image->host, block.first + std::min(head, block.shape[0] - 1));
    }

    std::vector<float> angles(std::int64_t position) const {
        if (spec_.rope_table == RopeTable::frequencies)
            return angles_of(position, weights_of(rope_table_),
                             static_cast<float>(spec_.rope_factor.value_or(1)));
        return floats_of(rope_table_, rope_table_.first + position * spec_.rotary_dim, spec_.rotary_dim);
    }

    std::vector<float> finished(std::vector<float> row, bool norm, const Block& weights, bool rope,
                                std::int64_t position) const {
        if (norm)
            row = normalised(row, weights_of(weights), static_cast<float>(spec_.norm_eps.value_or(1e-6)));
        if (rope && spec_.rope != Rope::none) row = rotated(row, spec_.rope, angles(position));
        return row;
    }

    // The image that a block lies in, as the launch is to leave it.
    std::vector<std::byte>& expected(const Block& block) {
        const auto found = std::ranges::find(images_, block.image);
        return (*expecting_)[at(found - images_.begin())];
    }

    void expect_row(const Block& block, std::int64_t element, const std::vector<float>& row,
                    std::optional<float> scale) {
        std::vector<std::byte>& bytes = expected(block);
        for (std::size_t i = 0; i < row.size(); ++i) {
            const std::uint16_t bits = stored(block.dtype, row[i], scale);
            const std::int64_t to = element + static_cast<std::int64_t>(i);
            if (is_fp8(block.dtype))
                store_at(bytes, to, static_cast<std::uint8_t>(bits));
            else
                store_at(bytes, to, bits);
        }
    }

    // A row of a cache, times one over scales: given ones, or computed ones that are stored as well.
    void expect_cached(const Block& cache, std::int64_t outer, std::int64_t inner, std::int64_t head,
                       const std::vector<float>& row, const Block& scales) {
        const std::int64_t element = cache_element(cache, outer, inner, head);
        if (!computes_scales()) return expect_row(cache, element, row, scale_of(scales, head));
        const auto columns = static_cast<std::int64_t>(row.size());
        const std::int64_t of_each = has_blocks() ? std::min(columns, kScaleBlock) : columns;
        for (std::int64_t first = 0; first < columns; first += of_each) {
            const std::vector<float> block(row.begin() + first,
                                           row.begin() + std::min(columns, first + of_each));
            const float scale = computed_scale(cache.dtype, block);
            expect_scale(scales, outer, inner, head, first / of_each, scale);
            expect_row(cache, element + first, block, scale);
        }
    }

    void expect_scale(const Block& scales, std::int64_t outer, std::int64_t inner, std::int64_t head,
                      std::int64_t block, float scale) {
        Extents index = latent_ && !test_.latent_heads ? Extents{outer, inner}
                        : heads_first()                ? Extents{outer, head, inner}
                                                       : Extents{outer, inner, head};
        if (has_blocks()) index.push_back(block);
        store_at(expected(scales), scales.element(index), scale);
    }

    // Latents and positions may share a scale.
    void expect_latent(std::int64_t outer, std::int64_t inner, const std::vector<float>& latent,
                       const std::vector<float>& position) {
        const bool is_joint = spec_.kv_scale == KvScale::token_head;
        if (!is_joint) expect_cached(k_cache_, outer, inner, 0, latent, k_scale_);
        std::optional<float> scale = computes_scales() ? std::nullopt : scale_of(k_scale_, 0);
        if (is_joint) {
            std::vector<float> both = latent;
            both.insert(both.end(), position.begin(), position.end());
            scale = computed_scale(k_cache_.dtype, both);
            expect_scale(k_scale_, outer, inner, 0, 0, *scale);
            expect_row(k_cache_, cache_element(k_cache_, outer, inner, 0), latent, scale);
        }
        if (!position.empty())
            expect_row(kpe_cache_, cache_element(kpe_cache_, outer, inner, 0), position, scale);
    }

    bool is_written(std::int64_t t) const {
        const Token& token = tokens_[at(t)];
        if (std::ranges::find(test_.unwritten, token.sequence) != test_.unwritten.end()) return false;
        if (by_table() ? token.sequence < 0 || token.key < 0 : slots_[at(t)] < 0) return false;
        const std::int64_t slots = (is_paged() ? pages_ : batch()) * slots_of_each();
        if (test_.has_k && !by_table() && slots_[at(t)] >= slots) return false;
        const std::int64_t last =
            spec_.rope_table == RopeTable::frequencies ? std::int64_t{1} << 30 : rope_positions_;
        return spec_.rope == Rope::none || (positions_[at(t)] >= 0 && positions_[at(t)] < last);
    }

    void expect_all() {
        for (const std::shared_ptr<Image>& image : images_) expected_.push_back(image->host);
        reversed_ = expected_;
        const auto tokens = static_cast<std::int64_t>(tokens_.size());
        for (std::int64_t t = 0; t < tokens; ++t)
            if (is_written(t)) expect_token(t);
        if (!test_.status.slot_written_twice()) return void(reversed_ = expected_);
        expecting_ = &reversed_;
        for (std::int64_t t = tokens; t-- > 0;)
            if (is_written(t)) expect_token(t);
    }

    void expect_token(std::int64_t t) {
        const std::int64_t position = positions_[at(t)];
        const auto input = [&](const Block& block, std::int64_t head, std::int64_t columns) {
            return floats_of(block, row_element(block, t, head), columns);
        };
        for (std::int64_t h = 0; test_.has_q && h < spec_.q_heads; ++h)
            expect_row(q_out_, row_element(q_out_, t, h),
                       finished(input(q_, h, query_columns()), spec_.q_norm, q_weight_, true, position),
                       scale_of(q_scale_, 0));
        if (!test_.has_k) return;
        const std::int64_t slot = slots_[at(t)], outer = slot / slots_of_each(),
                           inner = slot % slots_of_each();
        if (latent_) {
            std::vector<float> kpe;
            if (spec_.head_dim_kpe > 0)
                kpe = finished(input(kpe_, 0, spec_.head_dim_kpe), false, {}, true, position);
            return expect_latent(
                outer, inner,
                finished(input(k_, 0, spec_.head_dim_ckv), spec_.k_norm, k_weight_, false, position), kpe);
        }
        for (std::int64_t h = 0; h < spec_.kv_heads; ++h) {
            expect_cached(k_cache_, outer, inner, h,
                          finished(input(k_, h, spec_.head_dim_qk), spec_.k_norm, k_weight_, true, position),
                          k_scale_);
            expect_cached(v_cache_, outer, inner, h,
                          finished(input(v_, h, spec_.head_dim_vo), spec_.v_norm, {}, false, position),
                          v_scale_);
        }
    }

    void launch_all() {
        const PlanSizes sizes{batch(), std::max<std::int64_t>(1, longest_q()),
                              std::max<std::int64_t>(1, longest_kv())};
        const Kernel kernel = runtime_.prepare(test_.spec, sizes);
        result_.backend = "cuda_core";
        const auto tokens = static_cast<std::int64_t>(tokens_.size());
        const GuardedWorkspace workspace(runtime_, kernel.workspace_bytes({batch(), tokens, longest_kv()}));
        const Call call = kernel.bind(tensors(), batch_, workspace.workspace());
        for (int n = 0; n < test_.launches && result_.passed(); ++n) {
            for (const std::shared_ptr<Image>& image : images_) image->upload();
            if (launch_) {
                launch_(runtime_, call);
            } else {
                call.launch();
                runtime_.synchronize();
            }
            for (std::size_t i = 0; i < images_.size(); ++i)
                compare(*images_[i], expected_[i], reversed_[i], n);
        }
        check_status(call.status());
        if (!workspace.guards_intact()) fail("the launch wrote outside of the workspace");
    }

    // Every byte, whatever it is of; a NaN may be any.
    void compare(const Image& image, const std::vector<std::byte>& want,
                 const std::vector<std::byte>& or_want, int launch) {
        const std::vector<std::byte> got = image.download();
        if (got == want) return;
        const DType dtype = dtype_of(image);
        const std::int64_t size = size_of(dtype);
        for (std::int64_t i = 0; (i + 1) * size <= static_cast<std::int64_t>(got.size()); ++i) {
            if (std::memcmp(got.data() + i * size, want.data() + i * size, at(size)) == 0) continue;
            if (std::memcmp(got.data() + i * size, or_want.data() + i * size, at(size)) == 0) continue;
            const auto bits = [&](const std::vector<std::byte>& bytes) {
                return size == 1   ? load_at<std::uint8_t>(bytes, i)
                       : size == 2 ? load_at<std::uint16_t>(bytes, i)
                                   : load_at<std::uint32_t>(bytes, i);
            };
            const auto is_nan = [&](const std::vector<std::byte>& bytes) {
                return is_nan_of(dtype, static_cast<std::uint16_t>(bits(bytes)));
            };
            if (size <= 2 && is_nan(got) && is_nan(want)) continue;
            return fail(fmt::format("launch {}: {} differs at element {} of its memory: {:#x}, want {:#x}",
                                    launch + 1, image.name, i, bits(got), bits(want)));
        }
    }

    DType dtype_of(const Image& image) const {
        for (const Block* block : {&q_out_, &k_cache_, &v_cache_, &kpe_cache_})
            if (block->image && block->image->name == image.name) return block->dtype;
        return DType::int32;
    }

    void check_status(const CallStatus& got) {
        if (got != test_.status)
            fail(fmt::format("the status is {}, want {}", check::describe(got),
                             check::describe(test_.status)));
    }

    Runtime& runtime_;
    const AppendCase& test_;
    AttentionSpec spec_;  // with what it leaves out
    const bool latent_;
    CaseResult& result_;
    Random random_;
    std::function<void(const Runtime&, const Call&)> launch_;

    std::vector<Token> tokens_;
    std::int64_t capacity_ = 0, pages_ = 0, rope_positions_ = 0;
    std::vector<Extents> page_lists_;
    std::vector<std::shared_ptr<Image>> images_;
    // What each image is to hold where, of two tokens with one slot, the later one is written last, and where
    // the earlier one is.
    std::vector<std::vector<std::byte>> expected_, reversed_;
    std::vector<std::vector<std::byte>>* expecting_ = &expected_;
    Block q_, k_, v_, kpe_, q_out_, k_cache_, v_cache_, kpe_cache_;
    Block slot_mapping_, position_tensor_, rope_table_, q_weight_, k_weight_, k_scale_, v_scale_, q_scale_;
    bool latent_is_apart_ = false, cache_is_apart_ = false;
    Extents slots_, positions_;
    Batch batch_;
};

}  // namespace

std::string AppendCase::describe() const {
    return fmt::format("{}; q_lens {}, kv_lens {}", to_json(AttentionRequest{spec, {}, {}}),
                       fmt::join(q_lens, " "), fmt::join(kv_lens, " "));
}

CaseResult run_append(Runtime& runtime, const AppendCase& test, const RunOptions& options) {
    CaseResult result = judge(test.group, test.name,
                              [&](CaseResult& filled) { AppendRun(runtime, test, options, filled).run(); });
    if (result.outcome == Outcome::failed) result.detail += "\n    " + test.describe();
    return result;
}

}  // namespace attnsmith::check
