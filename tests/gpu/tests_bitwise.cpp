// Consistency "bitwise": a row has the same bits alone, in any batch, in a prefill, in chunks of any size and
// step by step, from any storage, by any kernel that planning could choose, over any number of CTAs. What a
// prefill of one sequence gives is compared with everything else, bit by bit.
#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>

#include "catalogue.hpp"
#include "check/kernel_choice.hpp"
#include "check/random.hpp"
#include "check/small_floats.hpp"
#include "cuda_driver.hpp"

namespace attnsmith::gpu_tests {
namespace {

using check::Random;
using Bits = std::vector<std::uint16_t>;

// The last `queries` of the first `keys` tokens of the sequence; of another one, which is compared with
// nothing, where it is foreign.
struct Part {
    std::int64_t queries, keys;
    bool foreign = false;
};
using Parts = std::vector<Part>;

// How parts are stored and asked for; the mathematics is the spec's.
struct Manner {
    KvStorage kv = KvStorage::paged;
    std::int64_t page_size = 16;
    PageOrder order = PageOrder::NHD;
    DType index = DType::int32;
    bool lse = true;
    Mask mask = Mask::causal;
    std::optional<PlanSizes> sizes{};             // absent: those that are launched
    std::optional<check::KernelChoice> kernel{};  // absent: what planning chooses
    std::int64_t bound = 0;                       // of keys, where it is more than the longest
    int launches = 1;
    bool graph = false;
};

// Device memory with what it is filled with.
class Memory {
  public:
    explicit Memory(Runtime& runtime) : runtime_(runtime) {}

    template <typename T>
    void* put(const std::vector<T>& values) {
        Buffer& buffer =
            buffers_.emplace_back(runtime_.allocate(std::max<std::size_t>(values.size(), 8) * sizeof(T)));
        if (!values.empty()) buffer.upload(values.data(), values.size() * sizeof(T));
        return buffer.data();
    }
    template <typename T>
    std::vector<T> get(std::size_t buffer, std::size_t count) const {
        std::vector<T> values(count);
        if (count > 0) buffers_.at(buffer).download(values.data(), count * sizeof(T));
        return values;
    }
    std::size_t count() const { return buffers_.size(); }

    Tensor indices(DType dtype, const std::vector<std::int64_t>& values,
                   std::initializer_list<std::int64_t> shape) {
        if (dtype == DType::int64) return Tensor::contiguous(put(values), dtype, shape);
        return Tensor::contiguous(put(std::vector<std::int32_t>(values.begin(), values.end())), dtype, shape);
    }

  private:
    Runtime& runtime_;
    std::vector<Buffer> buffers_;
};

struct Rows {
    Bits o;                          // [row][q_heads][head_dim_vo]
    std::vector<std::uint32_t> lse;  // [row][q_heads]
};

// A sequence, and what a prefill of it gives.
class Sequence {
  public:
    Sequence(const Context& context, AttentionSpec spec, std::int64_t tokens)
        : runtime_(context.runtime), spec_(std::move(spec)), tokens_(tokens), random_(context.seed) {
        spec_.consistency = Consistency::bitwise;
        q_ = draw(spec_.dtype, spec_.q_heads * check::head_dim_qk(spec_));
        k_ = draw(check::kv_dtype(spec_), check::kv_heads(spec_) * check::head_dim_qk(spec_));
        if (has_values())
            v_ = draw(check::kv_dtype(spec_), check::kv_heads(spec_) * check::head_dim_vo(spec_));
        if (is_per_token(spec_.kv_scale)) {
            k_scales_ = draw_scales();
            if (has_values()) v_scales_ = draw_scales();
        }
        wanted_ = run({{tokens, tokens}}, {.kv = KvStorage::dense});
    }

    const AttentionSpec& spec() const { return spec_; }
    std::int64_t tokens() const { return tokens_; }
    bool is_by_wgmma() const {
        const auto plan = nlohmann::json::parse(runtime_.prepare(spec_, PlanSizes{}).plan_json());
        return plan["kernels"][0]["backend"] == "wgmma";
    }

    // What differs between the parts' rows and the prefill's; empty: nothing.
    std::string difference(const Parts& parts, const Manner& manner) {
        const Rows found = run(parts, manner);
        const std::int64_t width = spec_.q_heads * check::head_dim_vo(spec_), heads = spec_.q_heads;
        std::int64_t row = 0;
        for (const Part& part : parts) {
            for (std::int64_t i = 0; i < part.queries; ++i, ++row) {
                const std::int64_t token = part.keys - part.queries + i;
                if (part.foreign || token < 0) continue;
                const auto same = [&](const auto& a, const auto& b, std::int64_t count) {
                    return std::equal(a.begin() + row * count, a.begin() + (row + 1) * count,
                                      b.begin() + token * count);
                };
                if (!same(found.o, wanted_.o, width))
                    return fmt::format("o of token {} of {} queries on {} keys", token, part.queries,
                                       part.keys);
                if (manner.lse && !same(found.lse, wanted_.lse, heads))
                    return fmt::format("lse of token {} of {} queries on {} keys", token, part.queries,
                                       part.keys);
            }
        }
        return {};
    }

  private:
    static constexpr DType kScales = DType::fp32;

    // Op mla has none: its values are columns of the keys.
    bool has_values() const { return spec_.op != Op::mla; }

    Bits draw(DType dtype, std::int64_t width) {
        Bits bits(static_cast<std::size_t>(tokens_ * width));
        for (std::uint16_t& x : bits) x = check::encode(dtype, random_.uniform(-2, 2));
        return bits;
    }

    // One of each head of each token, from 2^-6 to 2^2, as the upper halves of floats.
    Bits draw_scales() {
        Bits bits(static_cast<std::size_t>(tokens_ * check::kv_heads(spec_)));
        for (std::uint16_t& x : bits) x = check::encode(DType::bf16, std::exp2(random_.uniform(-6, 2)));
        return bits;
    }

    // Tokens first .. first + count - 1 of a tensor, or of the foreign sequence, which is NaN, infinite and
    // huge by turns. Its scales, which are of kScales, are numbers above 0 as any are.
    Bits slice(DType dtype, const Bits& of, const Part& part, std::int64_t first, std::int64_t count) const {
        const std::int64_t width = static_cast<std::int64_t>(of.size()) / tokens_;
        Bits bits(of.begin() + first * width, of.begin() + (first + count) * width);
        if (!part.foreign || dtype == kScales) return bits;
        const std::uint16_t strange[] = {0x7fff, check::encode(dtype, 1e30), 0xffff,
                                         check::encode(dtype, 3e4)};
        for (std::size_t i = 0; i < bits.size(); ++i) bits[i] = strange[i / 7 % 4];
        return bits;
    }

    Tensor put_keys(Memory& memory, DType dtype, const Bits& bits,
                    std::initializer_list<std::int64_t> shape) const;
    template <typename Store>
    void store_all(AttentionTensors& tensors, const Store& store) const;
    void store_scales(Memory& memory, AttentionTensors& tensors) const;
    Rows run(const Parts& parts, const Manner& manner);
    void store_queries(const Parts& parts, bool ragged, Memory& memory, AttentionTensors& tensors,
                       Batch& batch, const Manner& manner);
    void store_keys(const Parts& parts, Memory& memory, AttentionTensors& tensors, Batch& batch,
                    const Manner& manner);
    void store_pages(const Parts& parts, Memory& memory, AttentionTensors& tensors, Batch& batch,
                     const Manner& manner);

    Runtime& runtime_;
    AttentionSpec spec_;
    std::int64_t tokens_;
    Random random_;
    Bits q_, k_, v_;
    Bits k_scales_, v_scales_;  // where each token has some
    Rows wanted_;
};

std::int64_t longest(const Parts& parts, std::int64_t Part::*field) {
    std::int64_t most = 0;
    for (const Part& part : parts) most = std::max(most, part.*field);
    return most;
}

// The first token of each part, and the end.
std::vector<std::int64_t> starts(const Parts& parts, std::int64_t Part::*field) {
    std::vector<std::int64_t> starts = {0};
    for (const Part& part : parts) starts.push_back(starts.back() + part.*field);
    return starts;
}

void append(Bits& to, const Bits& more) { to.insert(to.end(), more.begin(), more.end()); }

// Ragged, or padded to the longest with NaN.
void Sequence::store_queries(const Parts& parts, bool ragged, Memory& memory, AttentionTensors& tensors,
                             Batch& batch, const Manner& manner) {
    const std::int64_t most = longest(parts, &Part::queries),
                       width = spec_.q_heads * check::head_dim_qk(spec_);
    const auto count = static_cast<std::int64_t>(parts.size());
    Bits bits;
    std::vector<std::int64_t> lengths;
    for (const Part& part : parts) {
        append(bits, slice(spec_.dtype, q_, part, std::max<std::int64_t>(0, part.keys - part.queries),
                           part.queries));
        if (!ragged)
            bits.resize(bits.size() + static_cast<std::size_t>((most - part.queries) * width), 0xffff);
        lengths.push_back(part.queries);
    }
    const std::int64_t rows = ragged ? starts(parts, &Part::queries).back() : count * most;
    void* const o =
        memory.put(Bits(static_cast<std::size_t>(rows * spec_.q_heads * check::head_dim_vo(spec_)), 0xffff));
    void* const lse =
        memory.put(std::vector<std::uint32_t>(static_cast<std::size_t>(rows * spec_.q_heads), ~0u));
    void* const q = memory.put(bits);
    if (ragged) {
        tensors.q = Tensor::contiguous(q, spec_.dtype, {rows, spec_.q_heads, check::head_dim_qk(spec_)});
        tensors.o = Tensor::contiguous(o, spec_.dtype, {rows, spec_.q_heads, check::head_dim_vo(spec_)});
        if (manner.lse) tensors.lse = Tensor::contiguous(lse, DType::fp32, {rows, spec_.q_heads});
        batch.q_indptr = memory.indices(manner.index, starts(parts, &Part::queries), {count + 1});
    } else {
        tensors.q =
            Tensor::contiguous(q, spec_.dtype, {count, most, spec_.q_heads, check::head_dim_qk(spec_)});
        tensors.o =
            Tensor::contiguous(o, spec_.dtype, {count, most, spec_.q_heads, check::head_dim_vo(spec_)});
        if (manner.lse) tensors.lse = Tensor::contiguous(lse, DType::fp32, {count, most, spec_.q_heads});
        batch.q_lens = memory.indices(manner.index, lengths, {count});
    }
    batch.max_q_len = most;
}

// Keys, values or scales of tokens: of 8 bits they are the lower halves of `bits`, those of 0xffff NaN as
// well.
Tensor Sequence::put_keys(Memory& memory, DType dtype, const Bits& bits,
                          std::initializer_list<std::int64_t> shape) const {
    if (dtype == kScales) {
        std::vector<float> scales;
        for (const std::uint16_t x : bits)
            scales.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(x) << 16));
        return Tensor::contiguous(memory.put(scales), DType::fp32, shape)
            .select(static_cast<int>(shape.size()) - 1, 0);
    }
    void* const data =
        is_fp8(dtype) ? memory.put(std::vector<std::uint8_t>(bits.begin(), bits.end())) : memory.put(bits);
    return Tensor::contiguous(data, dtype, shape);
}

void Sequence::store_scales(Memory& memory, AttentionTensors& tensors) const {
    if (spec_.kv_scale == KvScale::none || is_per_token(spec_.kv_scale)) return;
    const std::int64_t count = spec_.kv_scale == KvScale::head ? check::kv_heads(spec_) : 1;
    std::vector<float> of_keys, of_values;
    for (std::int64_t head = 0; head < count; ++head) {
        of_keys.push_back(0.3F + static_cast<float>(head));
        of_values.push_back(1.7F / static_cast<float>(head + 1));
    }
    tensors.k_scale = Tensor::contiguous(memory.put(of_keys), DType::fp32, {count});
    tensors.v_scale = Tensor::contiguous(memory.put(of_values), DType::fp32, {count});
}

// store(dtype, numbers, columns of each head) is a tensor of what each token has.
template <typename Store>
void Sequence::store_all(AttentionTensors& tensors, const Store& store) const {
    const DType dtype = check::kv_dtype(spec_);
    tensors.k = store(dtype, k_, check::head_dim_qk(spec_));
    if (has_values()) tensors.v = store(dtype, v_, check::head_dim_vo(spec_));
    if (!k_scales_.empty()) tensors.k_scale = store(kScales, k_scales_, 1);
    if (!v_scales_.empty()) tensors.v_scale = store(kScales, v_scales_, 1);
}

// Ragged, or padded to the longest with NaN.
void Sequence::store_keys(const Parts& parts, Memory& memory, AttentionTensors& tensors, Batch& batch,
                          const Manner& manner) {
    const bool ragged = manner.kv == KvStorage::ragged;
    const std::int64_t most = std::max(longest(parts, &Part::keys), manner.bound);
    const auto count = static_cast<std::int64_t>(parts.size());
    const auto store = [&](DType dtype, const Bits& of, std::int64_t dim) {
        Bits bits;
        for (const Part& part : parts) {
            append(bits, slice(dtype, of, part, 0, part.keys));
            if (!ragged)
                bits.resize(
                    bits.size() + static_cast<std::size_t>((most - part.keys) * check::kv_heads(spec_) * dim),
                    0xffff);
        }
        return ragged ? put_keys(memory, dtype, bits,
                                 {starts(parts, &Part::keys).back(), check::kv_heads(spec_), dim})
                      : put_keys(memory, dtype, bits, {count, most, check::kv_heads(spec_), dim});
    };
    store_all(tensors, store);
    std::vector<std::int64_t> lengths;
    for (const Part& part : parts) lengths.push_back(part.keys);
    if (ragged)
        batch.kv_indptr = memory.indices(manner.index, starts(parts, &Part::keys), {count + 1});
    else
        batch.kv_lens = memory.indices(manner.index, lengths, {count});
}

// Pages in any order, which all parts share, as they begin alike; foreign ones have pages of their own.
void Sequence::store_pages(const Parts& parts, Memory& memory, AttentionTensors& tensors, Batch& batch,
                           const Manner& manner) {
    const std::int64_t size = manner.page_size, own = (tokens_ + size - 1) / size, pages = 2 * own;
    const std::int64_t columns = std::max(own, (manner.bound + size - 1) / size);
    std::vector<std::int64_t> order(static_cast<std::size_t>(pages));
    std::iota(order.begin(), order.end(), 0);
    random_.shuffle(order);
    const bool heads_first = manner.order == PageOrder::HND && has_values();
    const auto store = [&](DType dtype, const Bits& of, std::int64_t dim) {
        Bits bits(static_cast<std::size_t>(pages * size * check::kv_heads(spec_) * dim), 0xffff);
        const Bits foreign = slice(dtype, of, {0, tokens_, true}, 0, tokens_);
        for (std::int64_t page = 0; page < pages; ++page) {
            for (std::int64_t slot = 0; slot < size; ++slot) {
                const std::int64_t token = page % own * size + slot;
                if (token >= tokens_) continue;
                for (std::int64_t head = 0; head < check::kv_heads(spec_); ++head) {
                    const std::int64_t at =
                        order[static_cast<std::size_t>(page)] * size * check::kv_heads(spec_) +
                        (heads_first ? head * size + slot : slot * check::kv_heads(spec_) + head);
                    std::copy_n(
                        (page < own ? of : foreign).begin() + (token * check::kv_heads(spec_) + head) * dim,
                        dim, bits.begin() + at * dim);
                }
            }
        }
        return heads_first ? put_keys(memory, dtype, bits, {pages, check::kv_heads(spec_), size, dim})
                           : put_keys(memory, dtype, bits, {pages, size, check::kv_heads(spec_), dim});
    };
    store_all(tensors, store);
    std::vector<std::int64_t> table, lengths;
    for (const Part& part : parts) {
        for (std::int64_t page = 0; page < columns; ++page)
            table.push_back(page * size < part.keys
                                ? order[static_cast<std::size_t>(page + (part.foreign ? own : 0))]
                                : 1 << 30);  // behind the last page: never read
        lengths.push_back(part.keys);
    }
    const auto count = static_cast<std::int64_t>(parts.size());
    batch.page_table = memory.indices(manner.index, table, {count, columns});
    batch.kv_lens = memory.indices(manner.index, lengths, {count});
}

Rows Sequence::run(const Parts& parts, const Manner& manner) {
    Case test;
    test.spec = spec_;
    test.spec.kv = manner.kv;
    test.spec.index_dtype = manner.index;
    test.spec.lse = manner.lse;
    test.spec.mask = manner.mask;
    if (manner.kv == KvStorage::paged) test.spec.page_size = manner.page_size;
    if (manner.kv == KvStorage::paged && has_values()) test.spec.page_order = manner.order;
    const bool ragged = manner.kv != KvStorage::dense;
    const std::int64_t bound = std::max(longest(parts, &Part::keys), manner.bound);
    test.sizes = manner.sizes.value_or(PlanSizes{static_cast<std::int64_t>(parts.size()),
                                                 std::max<std::int64_t>(1, longest(parts, &Part::queries)),
                                                 std::max<std::int64_t>(1, bound)});
    test.kernel = manner.kernel;
    const Kernel kernel = check::prepare_case(runtime_, test);

    Memory memory(runtime_);
    AttentionTensors tensors;
    Batch batch;
    store_queries(parts, ragged, memory, tensors, batch, manner);
    if (manner.kv == KvStorage::paged)
        store_pages(parts, memory, tensors, batch, manner);
    else
        store_keys(parts, memory, tensors, batch, manner);
    batch.max_kv_len = bound;
    std::vector<float> sinks, slopes;
    for (std::int64_t head = 0; head < spec_.q_heads; ++head) {
        sinks.push_back(static_cast<float>(head) * 0.25F - 1.0F);
        slopes.push_back(0.5F / static_cast<float>(head + 1));
    }
    if (spec_.sink) tensors.sinks = Tensor::contiguous(memory.put(sinks), DType::fp32, {spec_.q_heads});
    if (spec_.alibi)
        tensors.alibi_slopes = Tensor::contiguous(memory.put(slopes), DType::fp32, {spec_.q_heads});

    store_scales(memory, tensors);

    const Call call = kernel.bind(tensors, batch);
    if (manner.graph) {
        const CurrentContext current;
        const TestStream stream;
        const CapturedGraph graph(stream, [&] { call.launch(stream.get()); });
        for (int n = 0; n < manner.launches; ++n) graph.launch(stream);
        stream.synchronize();
    } else {
        for (int n = 0; n < manner.launches; ++n) call.launch();
    }
    runtime_.synchronize();
    if (call.status()) throw std::runtime_error("the status is not clean");

    // The first two buffers are o's and the lse's. Rows of a dense q are packed as a ragged one's are.
    const std::int64_t most = longest(parts, &Part::queries), heads = spec_.q_heads,
                       width = heads * check::head_dim_vo(spec_);
    const std::int64_t stored =
        ragged ? starts(parts, &Part::queries).back() : static_cast<std::int64_t>(parts.size()) * most;
    const Bits o = memory.get<std::uint16_t>(0, static_cast<std::size_t>(stored * width));
    const auto lse = memory.get<std::uint32_t>(1, static_cast<std::size_t>(stored * heads));
    if (ragged) return {o, lse};
    Rows rows;
    for (std::size_t i = 0; i < parts.size(); ++i) {
        const std::int64_t first = static_cast<std::int64_t>(i) * most, end = first + parts[i].queries;
        rows.o.insert(rows.o.end(), o.begin() + first * width, o.begin() + end * width);
        rows.lse.insert(rows.lse.end(), lse.begin() + first * heads, lse.begin() + end * heads);
    }
    return rows;
}

// The first tokens, some in the middle, those around powers of two, where cuts become longer, and the last.
std::vector<std::int64_t> some_lengths(std::int64_t tokens) {
    std::vector<std::int64_t> lengths;
    for (const std::int64_t at :
         {1,    2,    16,   31,   32,   33,    64,    255,   256,   257,   300,   512,  513,
          1000, 1024, 1025, 4096, 4100, 16383, 16384, 16385, 16390, 32768, 32769, 40000})
        if (at <= tokens) lengths.push_back(at);
    for (const std::int64_t at : {tokens / 3, tokens / 2, tokens - 1, tokens}) lengths.push_back(at);
    return lengths;
}

Parts in_parts_of(std::int64_t queries, std::int64_t tokens) {
    Parts parts;
    for (const std::int64_t keys : some_lengths(tokens))
        if (keys >= queries) parts.push_back({queries, keys});
    return parts;
}

Parts in_order(std::int64_t queries, std::int64_t tokens) {
    Parts parts;
    for (std::int64_t keys = 0; keys < tokens;) {
        const std::int64_t count = std::min(queries, tokens - keys);
        parts.push_back({count, keys += count});
    }
    return parts;
}

// Decodes, chunks, a prefill, empty ones and foreign ones, in any order.
Parts mixed(std::int64_t count, std::int64_t tokens, std::uint64_t seed) {
    Random random(seed);
    Parts parts;
    for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t keys = random.integer(1, tokens);
        const std::int64_t queries = i % 5 == 1 ? std::min<std::int64_t>(keys, random.integer(2, 70)) : 1;
        parts.push_back({queries, keys});
        if (i % 7 == 3) parts.push_back({i % 2, 0});
        if (i % 6 == 2) parts.push_back({1, keys, true});
    }
    random.shuffle(parts);
    return parts;
}

// Each part in a launch of its own.
std::string one_by_one(Sequence& sequence, const Parts& parts, const Manner& manner) {
    for (const Part& part : parts)
        if (std::string what = sequence.difference({part}, manner); !what.empty()) return what;
    return {};
}

struct Variant {
    std::string name;
    std::function<std::string(Sequence&)> difference;
    bool full_mask = false, captures = false;
};

std::vector<Variant> variants() {
    std::vector<Variant> list;
    const auto add = [&](std::string name, std::function<std::string(Sequence&)> difference) {
        list.push_back({std::move(name), std::move(difference)});
    };
    add("steps, one by one", [](Sequence& s) { return one_by_one(s, in_parts_of(1, s.tokens()), {}); });
    add("steps of 1 to 16 queries", [](Sequence& s) {
        for (const std::int64_t queries : {1, 2, 3, 5, 8, 16})
            if (auto what = s.difference(in_parts_of(queries, s.tokens()), {}); !what.empty()) return what;
        return std::string();
    });
    add("chunks", [](Sequence& s) {
        for (const std::int64_t queries : {7, 64, 256})
            if (auto what = s.difference(in_order(queries, std::min<std::int64_t>(s.tokens(), 3000)),
                                         {.kv = KvStorage::paged});
                !what.empty())
                return what;
        return one_by_one(s, in_parts_of(256, s.tokens()), {.kv = KvStorage::ragged});
    });
    for (const std::int64_t count : {64, 256})
        add(fmt::format("a batch of {}", count), [count](Sequence& s) {
            for (const std::uint64_t seed : {1, 2})
                if (auto what = s.difference(mixed(count, s.tokens(), seed), {}); !what.empty()) return what;
            return std::string();
        });
    add("storage", [](Sequence& s) {
        const Parts parts = mixed(12, s.tokens(), 3);
        for (const Manner& manner :
             {Manner{.kv = KvStorage::dense}, Manner{.kv = KvStorage::ragged, .index = DType::int64},
              Manner{.page_size = 1}, Manner{.page_size = 8, .order = PageOrder::HND},
              Manner{.page_size = 64, .index = DType::int64}, Manner{.page_size = 7, .lse = false},
              Manner{.kv = KvStorage::dense, .lse = false}})
            if (auto what = s.difference(parts, manner); !what.empty())
                return fmt::format("{} pages of {}: {}", static_cast<int>(manner.kv), manner.page_size, what);
        return std::string();
    });
    add("planned and bound for other sizes", [](Sequence& s) {
        const Parts parts = mixed(20, s.tokens(), 4);
        for (const PlanSizes& sizes : {PlanSizes{1, 1, 1}, PlanSizes{1, 1, 1 << 20}, PlanSizes{512, 1, 4096},
                                       PlanSizes{1, 4096, 4096}})
            for (const std::int64_t bound : {0, 1 << 17})
                if (auto what = s.difference(parts, {.sizes = sizes, .bound = bound}); !what.empty())
                    return fmt::format("batch {} kv_len {}: {}", sizes.batch, sizes.kv_len, what);
        return std::string();
    });
    add("every kernel, over 1 to 264 CTAs", [](Sequence& s) {
        const Parts parts = mixed(9, s.tokens(), 5);
        AttentionSpec spec = s.spec();
        spec.kv = KvStorage::paged;
        spec.page_size = 16;
        int tried = 0;
        for (check::KernelChoice choice : check::kernel_choices(spec)) {
            if (choice.wgmma != s.is_by_wgmma()) continue;  // another SM's instruction
            for (const int ctas : {0, 1, 7, 66, 114, 132, 264}) {
                choice.chunk = ctas > 0 ? check::chunk_of(choice, 256) : 0;
                choice.ctas = ctas;
                try {
                    if (auto what = s.difference(parts, {.kernel = choice}); !what.empty())
                        return fmt::format("{}: {}", to_string(choice), what);
                    ++tried;
                } catch (const check::NotHere&) {
                }
            }
        }
        return tried > 7 ? std::string() : "no kernels were tried";
    });
    add("graph replays",
        [](Sequence& s) { return s.difference(mixed(20, s.tokens(), 6), {.launches = 20, .graph = true}); });
    list.back().captures = true;
    add("steps that say that their mask is full",
        [](Sequence& s) { return s.difference(in_parts_of(1, s.tokens()), {.mask = Mask::full}); });
    list.back().full_mask = true;
    return list;
}

struct Kind {
    std::string name;
    AttentionSpec spec;
    std::int64_t tokens = 2100;
};

std::vector<Kind> kinds() {
    const auto causal_of = [](DType dtype, std::int64_t qk, std::int64_t vo, std::int64_t heads,
                              std::int64_t kv_heads) {
        return causal(attention(dtype, qk, vo, heads, kv_heads)).spec;
    };
    std::vector<Kind> list;
    for (const std::int64_t dim : {64, 80, 96, 128, 256})
        list.push_back({fmt::format("bf16 {}", dim), causal_of(DType::bf16, dim, dim, 8, 2)});
    list.push_back({"f16 128", causal_of(DType::fp16, 128, 128, 4, 1)});
    list.push_back({"bf16 512", causal_of(DType::bf16, 512, 512, 8, 2)});
    list.push_back({"f16 320/264", causal_of(DType::fp16, 320, 264, 4, 4)});
    list.push_back({"f16 192/128", causal_of(DType::fp16, 192, 128, 4, 4)});
    list.push_back({"bf16 64, 71 heads to one", causal_of(DType::bf16, 64, 64, 71, 1), 600});
    list.push_back({"bf16 128, cuts that become longer", causal_of(DType::bf16, 128, 128, 4, 1), 40001});
    for (const std::int64_t heads : {16, 128}) {
        AttentionSpec latent{.op = Op::mla, .head_dim_ckv = 512, .head_dim_kpe = 64, .q_heads = heads};
        latent.mask = Mask::causal;
        latent.scale = 0.05;
        list.push_back({fmt::format("bf16 latents, {} heads", heads), latent, heads == 16 ? 2100 : 700});
    }
    AttentionSpec narrow{
        .op = Op::mla, .dtype = DType::fp16, .head_dim_ckv = 448, .head_dim_kpe = 24, .q_heads = 20};
    narrow.mask = Mask::causal;
    narrow.scale = 0.05;
    list.push_back({"f16 latents of 448 and 24, 20 heads", narrow, 1500});
    list.push_back({"f16 448/512, cuts that become longer", causal_of(DType::fp16, 448, 512, 2, 1), 17001});
    AttentionSpec spec = causal_of(DType::bf16, 128, 128, 8, 2);
    spec.window_left = 300;
    list.push_back({"bf16 128 window", spec});
    spec = causal_of(DType::bf16, 64, 64, 8, 2);
    spec.attention_chunk = 700;
    spec.softcap = 20.0;
    list.push_back({"bf16 64 chunks of tokens, softcap", spec});
    spec = causal_of(DType::fp16, 128, 128, 8, 2);
    spec.sink = spec.alibi = true;
    list.push_back({"f16 128 sink, alibi", spec});
    // Keys and values of 8 bits.
    const auto add_fp8 = [&](DType dtype, DType stored, KvScale scale, std::int64_t qk, std::int64_t vo,
                             std::int64_t tokens) {
        AttentionSpec fp8 = causal_of(dtype, qk, vo, 8, 2);
        fp8.kv_dtype = stored;
        fp8.kv_scale = scale;
        list.push_back({fmt::format("{} {}/{}, {}{}", word(dtype), qk, vo, to_string(stored),
                                    is_per_token(scale) ? ", scales of tokens" : ""),
                        fp8, tokens});
    };
    add_fp8(DType::bf16, DType::e4m3, KvScale::head, 128, 128, 2100);
    add_fp8(DType::fp16, DType::e5m2, KvScale::tensor, 64, 64, 2100);
    add_fp8(DType::fp16, DType::e4m3, KvScale::none, 192, 128, 2100);
    add_fp8(DType::bf16, DType::e5m2, KvScale::head, 256, 256, 1500);
    add_fp8(DType::bf16, DType::e4m3, KvScale::head, 512, 512, 1500);
    add_fp8(DType::bf16, DType::e4m3, KvScale::token_head, 128, 128, 2100);
    add_fp8(DType::fp16, DType::e5m2, KvScale::token_head, 64, 64, 2100);
    AttentionSpec scaled{
        .op = Op::mla, .dtype = DType::bf16, .head_dim_ckv = 512, .head_dim_kpe = 64, .q_heads = 16};
    scaled.mask = Mask::causal, scaled.scale = 0.05;
    scaled.kv_dtype = DType::e4m3, scaled.kv_scale = KvScale::token_head;
    list.push_back({"bf16 latents of e4m3, scales of tokens", scaled, 1500});
    return list;
}

bool sees_all(const AttentionSpec& spec) { return !spec.window_left && !spec.attention_chunk; }

// Compiles whatever the kind's cases may launch.
void prepare_all(Runtime& runtime, const Kind& kind) {
    for (const KvStorage kv : {KvStorage::dense, KvStorage::paged}) {
        for (const DType index : {DType::int32, DType::int64}) {
            Case test;
            test.spec = kind.spec;
            test.spec.consistency = Consistency::bitwise;
            test.spec.kv = kv;
            test.spec.index_dtype = index;
            if (kv == KvStorage::paged) test.spec.page_size = 16;
            test.sizes = PlanSizes{};
            for (const check::KernelChoice& choice : check::kernel_choices(test.spec)) {
                test.kernel = choice;
                try {
                    check::prepare_case(runtime, test);
                } catch (const check::NotHere&) {
                }
            }
        }
    }
}

// Against fp64: every kernel, whole and divided, with what changes logits and what hides keys.
void add_right_results(Catalogue& catalogue) {
    int n = 0;
    for (const auto& [qk, vo] :
         {std::pair{8, 8}, {64, 64}, {72, 40}, {128, 128}, {192, 128}, {256, 256}, {264, 512}, {512, 512}}) {
        for (const DType dtype : {DType::bf16, DType::fp16}) {
            Case base = attention(dtype, qk, vo, n % 3 == 0 ? 2 : n % 3 == 1 ? 6 : 16, 2);
            base.spec.consistency = Consistency::bitwise;
            base.spec.lse = true;
            base.spec.sink = n % 2 == 0;
            base.spec.alibi = n % 5 == 1;
            if (n % 5 == 2) base.spec.softcap = 20.0;
            if (n % 4 == 3) base.spec.window_left = 45;
            if (n % 6 == 4) base.spec.attention_chunk = 100;
            if (n % 4 == 1) base.spec.o_dtype = DType::fp32;
            const std::string name = fmt::format("{} {}/{}", word(dtype), qk, vo);
            const auto lengths = [](Case test) {
                return with_lengths(std::move(test), {70, 150, 33, 40, 0, 1, 129},
                                    {700, 260, 33, 0, 40, 1500, 17});
            };
            add_over_kernels(catalogue, "bitwise", name + " ragged",
                             lengths(ragged(n % 3 ? causal(base) : base)), Splitting::both);
            add_over_kernels(catalogue, "bitwise", name + " paged",
                             lengths(paged(causal(base), n % 3 ? 16 : 7)), Splitting::both);
            ++n;
        }
    }
    for (auto [name, test] : hostile_cases()) {
        test.spec.consistency = Consistency::bitwise;
        add_over_kernels(catalogue, "bitwise", "clamp " + name, test, Splitting::alternate);
    }
}

}  // namespace

void add_bitwise(Catalogue& catalogue) {
    add_right_results(catalogue);
    for (const Kind& kind : kinds()) {
        for (const Variant& variant : variants()) {
            if (variant.full_mask && !sees_all(kind.spec)) continue;
            add(catalogue, "bitwise", fmt::format("{}: {}", kind.name, variant.name),
                [kind, variant](const Context& context) {
                    Sequence sequence(context, kind.spec, kind.tokens);
                    return variant.difference(sequence);
                });
            catalogue.back().ahead = [kind](Runtime& runtime) { prepare_all(runtime, kind); };
            catalogue.back().runs_alone = variant.captures;
        }
    }
}

}  // namespace attnsmith::gpu_tests
