#include "bench/attention_inputs.hpp"

#include <algorithm>
#include <initializer_list>
#include <numeric>
#include <random>

#include "families/key_bounds.hpp"
#include "problem/ceil_div.hpp"

namespace attnsmith::bench {
namespace {

constexpr std::size_t kRotatedBytes = std::size_t{256} << 20;  // several times any L2
constexpr std::size_t kMostSets = 16;

std::int64_t visible_pairs(const problem::Problem& problem) {
    const auto& [spec, sizes] = problem;
    const abi::KeyBounds bounds = families::bounds_of(spec);
    const auto q_len = static_cast<std::int32_t>(sizes.q_len);
    const auto kv_len = static_cast<std::int32_t>(sizes.kv_len);
    std::int64_t pairs = 0;
    for (std::int32_t query = 0; query < q_len; ++query) {
        const abi::KeyInterval seen = bounds.seen_from(query + kv_len - q_len, kv_len);
        if (!seen.is_empty()) pairs += seen.end - seen.first;
    }
    return pairs * sizes.batch * spec.q_heads;
}

// Whether v is a tensor: with op mla the values are columns of the keys.
bool has_values(const AttentionSpec& spec) { return spec.op != Op::mla; }

// Columns of q and of k, in one tensor each.
std::int64_t key_columns(const AttentionSpec& spec) {
    return problem::key_dim(spec) + (has_values(spec) ? 0 : problem::value_dim(spec));
}

bool has_positions_apart(const AttentionSpec& spec) {
    return spec.op == Op::mla && spec.kv_scale == KvScale::block128 && spec.head_dim_kpe > 0;
}

// Those of k, which has the columns of the position unless they are apart.
std::int64_t stored_key_columns(const AttentionSpec& spec) {
    return key_columns(spec) - (has_positions_apart(spec) ? spec.head_dim_kpe : 0);
}

// Bytes of the keys and values of one head of one token, with their scales.
std::int64_t bytes_of_key(const AttentionSpec& spec) {
    const std::int64_t key = stored_key_columns(spec),
                       value = has_values(spec) ? problem::value_dim(spec) : 0;
    std::int64_t bytes = (key + value) * size_of(problem::kv_dtype(spec));
    if (has_positions_apart(spec)) bytes += spec.head_dim_kpe * size_of(spec.dtype);
    if (!is_per_token(spec.kv_scale)) return bytes;
    const auto scales = [&](std::int64_t columns) {
        if (columns == 0) return std::int64_t{0};
        return spec.kv_scale == KvScale::token_head ? 1 : problem::ceil_div(columns, problem::kScaleBlock);
    };
    return bytes + size_of(DType::fp32) * (scales(key) + scales(value));
}

// Values in -1 .. 1: zeros run faster than real data would. Long sequences take seconds to upload.
void fill_random(Buffer& buffer, DType dtype, std::mt19937& random, const std::stop_token& stop) {
    if (stop.stop_requested()) return;
    std::vector<std::uint16_t> block(std::min<std::size_t>(buffer.bytes(), std::size_t{8} << 20) / 2);
    for (std::uint16_t& value : block) {
        // Exponents just below 1 in fp16 and in bf16 alike, and of two e4m3 or e5m2 in each.
        value = is_fp8(dtype)
                    ? static_cast<std::uint16_t>((random() & 0x8787u) | 0x3030u)
                    : static_cast<std::uint16_t>((random() & 0x8000u) | 0x3800u | (random() & 0x07ffu));
    }
    for (std::size_t at = 0; at < buffer.bytes() && !stop.stop_requested(); at += block.size() * 2) {
        buffer.upload(block.data(), std::min(block.size() * 2, buffer.bytes() - at), at);
    }
}

}  // namespace

class AttentionInputs::Set {
  public:
    Set(Runtime& runtime, const problem::Problem& problem, std::mt19937& random, const std::stop_token& stop)
        : runtime_(runtime), stop_(stop) {
        const auto& [spec, sizes] = problem;
        const std::int64_t batch = sizes.batch;
        const DType stored = problem::kv_dtype(spec);
        tensors.q = tensor(spec.dtype, {batch, sizes.q_len, spec.q_heads, key_columns(spec)}, random);
        tensors.o = tensor(problem::output_dtype(spec),
                           {batch, sizes.q_len, spec.q_heads, problem::value_dim(spec)}, random);
        if (spec.lse) tensors.lse = tensor(DType::fp32, {batch, sizes.q_len, spec.q_heads}, random);
        if (spec.sink) tensors.sinks = zeros(DType::fp32, {spec.q_heads});
        if (spec.alibi) tensors.alibi_slopes = zeros(DType::fp32, {spec.q_heads});
        if (spec.kv_scale != KvScale::none && !is_per_token(spec.kv_scale)) {
            const std::int64_t scales = spec.kv_scale == KvScale::head ? spec.kv_heads : 1;
            tensors.k_scale = ones(scales);
            if (has_values(spec)) tensors.v_scale = ones(scales);
        }
        switch (spec.kv) {
            case KvStorage::dense:
                tensors.k =
                    tensor(stored, {batch, sizes.kv_len, spec.kv_heads, stored_key_columns(spec)}, random);
                if (has_values(spec))
                    tensors.v = tensor(stored, {batch, sizes.kv_len, spec.kv_heads, problem::value_dim(spec)},
                                       random);
                break;
            case KvStorage::ragged:
                tensors.k =
                    tensor(stored, {batch * sizes.kv_len, spec.kv_heads, stored_key_columns(spec)}, random);
                if (has_values(spec))
                    tensors.v = tensor(
                        stored, {batch * sizes.kv_len, spec.kv_heads, problem::value_dim(spec)}, random);
                this->batch.kv_indptr = steps(spec.index_dtype, batch + 1, sizes.kv_len);
                break;
            case KvStorage::paged:
                make_pages(problem, random);
                break;
        }
        if (has_positions_apart(spec)) separate_positions(spec, random);
        if (!is_per_token(spec.kv_scale)) return;
        tensors.k_scale = scales_of(spec, tensors.k);
        if (has_values(spec)) tensors.v_scale = scales_of(spec, tensors.v);
    }

    AttentionTensors tensors;
    Batch batch;

  private:
    Tensor allocate(DType dtype, std::initializer_list<std::int64_t> shape) {
        std::int64_t elements =
            std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
        buffers_.push_back(runtime_.allocate(
            static_cast<std::size_t>(std::max<std::int64_t>(1, elements) * size_of(dtype))));
        return Tensor::contiguous(buffers_.back().data(), dtype, shape);
    }
    Tensor tensor(DType dtype, std::initializer_list<std::int64_t> shape, std::mt19937& random) {
        const Tensor made = allocate(dtype, shape);
        fill_random(buffers_.back(), dtype, random, stop_);
        return made;
    }
    Tensor zeros(DType dtype, std::initializer_list<std::int64_t> shape) {
        const Tensor made = allocate(dtype, shape);
        const std::vector<char> bytes(buffers_.back().bytes());
        buffers_.back().upload(bytes.data(), bytes.size());
        return made;
    }
    // As many as `keys` has heads of tokens, or blocks of these.
    Tensor scales_of(const AttentionSpec& spec, const Tensor& keys) {
        Tensor scales = keys;
        const auto last = static_cast<std::size_t>(keys.rank - 1);
        scales.shape[last] = problem::ceil_div(keys.shape[last], problem::kScaleBlock);
        if (spec.kv_scale == KvScale::token_head) scales.shape[last] = 1;
        std::int64_t count = 1;
        for (std::size_t axis = last + 1; axis-- > 0;) {
            scales.strides[axis] = count;
            count *= scales.shape[axis];
        }
        scales.data = ones(std::max<std::int64_t>(1, count)).data;
        scales.dtype = DType::fp32;
        return spec.kv_scale == KvScale::token_head ? scales.select(keys.rank - 1, 0) : scales;
    }
    // Latents with scales of blocks: k keeps the latent's columns, and those of the position get a tensor.
    void separate_positions(const AttentionSpec& spec, std::mt19937& random) {
        const auto& shape = tensors.k.shape;
        tensors.kpe = spec.kv == KvStorage::ragged
                          ? tensor(spec.dtype, {shape[0], shape[1], spec.head_dim_kpe}, random)
                          : tensor(spec.dtype, {shape[0], shape[1], shape[2], spec.head_dim_kpe}, random);
    }
    Tensor ones(std::int64_t count) {
        const Tensor made = allocate(DType::fp32, {count});
        const std::vector<float> values(static_cast<std::size_t>(count), 1.0f);
        buffers_.back().upload(values.data(), values.size() * sizeof(float));
        return made;
    }
    Tensor indices(DType dtype, const std::vector<std::int64_t>& values,
                   std::initializer_list<std::int64_t> shape) {
        const Tensor made = allocate(dtype, shape);
        if (dtype == DType::int64) {
            buffers_.back().upload(values.data(), values.size() * 8);
        } else {
            const std::vector<std::int32_t> narrow(values.begin(), values.end());
            buffers_.back().upload(narrow.data(), narrow.size() * 4);
        }
        return made;
    }
    Tensor steps(DType dtype, std::int64_t count, std::int64_t step) {
        std::vector<std::int64_t> values(static_cast<std::size_t>(count));
        for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::int64_t>(i) * step;
        return indices(dtype, values, {count});
    }

    // Pages in shuffled order, as a cache that has been in use has them.
    void make_pages(const problem::Problem& problem, std::mt19937& random) {
        const AttentionSpec& spec = problem.spec;
        const PlanSizes& sizes = problem.sizes;
        const DType stored = problem::kv_dtype(spec);
        const std::int64_t columns =
            std::max<std::int64_t>(1, problem::ceil_div(sizes.kv_len, spec.page_size));
        const std::int64_t pages = columns * sizes.batch;
        const auto cache = [&](std::int64_t head_dim) {
            return spec.page_order == PageOrder::NHD
                       ? tensor(stored, {pages, spec.page_size, spec.kv_heads, head_dim}, random)
                       : tensor(stored, {pages, spec.kv_heads, spec.page_size, head_dim}, random);
        };
        tensors.k = cache(stored_key_columns(spec));
        if (has_values(spec)) tensors.v = cache(problem::value_dim(spec));
        std::vector<std::int64_t> ids(static_cast<std::size_t>(pages));
        std::iota(ids.begin(), ids.end(), 0);
        std::shuffle(ids.begin(), ids.end(), random);
        batch.page_table = indices(spec.index_dtype, ids, {sizes.batch, columns});
        batch.kv_lens = indices(
            spec.index_dtype, std::vector<std::int64_t>(static_cast<std::size_t>(sizes.batch), sizes.kv_len),
            {sizes.batch});
        batch.max_kv_len = sizes.kv_len;
    }

    Runtime& runtime_;
    const std::stop_token stop_;
    std::vector<Buffer> buffers_;
};

AttentionInputs::AttentionInputs(Runtime& runtime, const problem::Problem& problem,
                                 const std::stop_token& stop) {
    std::mt19937 random(1);
    const auto bytes = static_cast<std::size_t>(attention_bytes(problem));
    const std::size_t sets = std::clamp<std::size_t>(kRotatedBytes / (bytes + 1) + 1, 2, kMostSets);
    for (std::size_t i = 0; i < sets && !stop.stop_requested(); ++i)
        sets_.push_back(std::make_unique<Set>(runtime, problem, random, stop));
}

AttentionInputs::~AttentionInputs() = default;

std::vector<Call> AttentionInputs::bind(const Kernel& kernel) const {
    std::vector<Call> calls;
    for (const auto& set : sets_) calls.push_back(kernel.bind(set->tensors, set->batch));
    return calls;
}

double attention_flops(const problem::Problem& problem) {
    return 2.0 * static_cast<double>(key_columns(problem.spec) + problem::value_dim(problem.spec)) *
           static_cast<double>(visible_pairs(problem));
}

double attention_bytes(const problem::Problem& problem) {
    const auto& [spec, sizes] = problem;
    const std::int64_t of_query = key_columns(spec) + problem::value_dim(spec);
    const std::int64_t bytes = sizes.q_len * spec.q_heads * of_query * size_of(spec.dtype) +
                               sizes.kv_len * spec.kv_heads * bytes_of_key(spec);
    return static_cast<double>(bytes) * static_cast<double>(sizes.batch);
}

}  // namespace attnsmith::bench
