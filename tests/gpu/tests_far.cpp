// Elements more than 2^31 and 2^32 from a tensor's first: pages, tokens, sequences and rows of the output.
// Only the rows in use are ever written, into buffers of which the rest is never touched.
#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <map>

#include "catalogue.hpp"
#include "check/kernel_choice.hpp"
#include "check/random.hpp"
#include "check/reference.hpp"
#include "check/small_floats.hpp"
#include "check/tolerance.hpp"

namespace attnsmith::gpu_tests {
namespace {

using check::Random;

constexpr std::int64_t kDim = 64;
constexpr std::int64_t kHeads = 2;
constexpr DType kType = DType::bf16;
constexpr std::int64_t kFar = std::int64_t{1} << 32;  // elements
constexpr int kOutOfMemory = 2;                       // CUDA_ERROR_OUT_OF_MEMORY

// A buffer of so many 16-bit elements, or a reason to skip.
Buffer far_buffer(Runtime& runtime, std::int64_t elements) {
    const auto bytes = static_cast<std::size_t>(elements) * 2;
    // Twice, so that the machine is not brought to its knees for a test.
    if (runtime.devices().at(0).memory_bytes < 2 * bytes)
        throw check::NotHere(fmt::format("needs {} GiB of device memory", 2 * bytes >> 30));
    try {
        return runtime.allocate(bytes);
    } catch (const DriverError& error) {
        if (error.driver_code() != kOutOfMemory) throw;
        throw check::NotHere(fmt::format("{} GiB of device memory are not free", bytes >> 30));
    }
}

// A tensor [.., .., heads, dim] or [tokens, heads, dim] in a buffer of just the size, rows of which are kept
// here, too. The first call for a row draws it and sends it to the device.
class FarTensor {
  public:
    FarTensor(Runtime& runtime, std::vector<std::int64_t> shape, std::vector<std::int64_t> strides,
              std::uint64_t seed)
        : random_(seed) {
        tensor_.dtype = kType;
        tensor_.rank = static_cast<int>(shape.size());
        std::int64_t end = 1;
        for (std::size_t axis = 0; axis < shape.size(); ++axis) {
            tensor_.shape[axis] = shape[axis];
            tensor_.strides[axis] = strides[axis];
            end += (shape[axis] - 1) * strides[axis];
        }
        buffer_ = far_buffer(runtime, end);
        tensor_.data = buffer_.data();
    }

    const Tensor& tensor() const { return tensor_; }

    const std::uint16_t* row(std::int64_t element) {
        const auto [at, fresh] = rows_.try_emplace(element, static_cast<std::size_t>(kDim));
        if (fresh) {
            for (std::uint16_t& x : at->second) x = check::encode(kType, random_.uniform(-2, 2));
            buffer_.upload(at->second.data(), kDim * 2, static_cast<std::size_t>(element) * 2);
        }
        return at->second.data();
    }

    void poison(std::int64_t element) {
        const std::vector<std::uint16_t> nan(static_cast<std::size_t>(kDim), 0xffff);
        buffer_.upload(nan.data(), kDim * 2, static_cast<std::size_t>(element) * 2);
    }

    std::vector<double> result(std::int64_t element) const {
        std::vector<std::uint16_t> bits(static_cast<std::size_t>(kDim));
        buffer_.download(bits.data(), kDim * 2, static_cast<std::size_t>(element) * 2);
        std::vector<double> values;
        for (const std::uint16_t x : bits) values.push_back(check::decode(kType, x));
        return values;
    }

  private:
    Random random_;
    Tensor tensor_;
    Buffer buffer_;
    std::map<std::int64_t, std::vector<std::uint16_t>> rows_;
};

// Element at which a token's head begins.
using Element = std::function<std::int64_t(std::int64_t sequence, std::int64_t token, std::int64_t head)>;

struct Problem {
    AttentionSpec spec;
    std::vector<check::SequenceLengths> sequences;
    FarTensor &q, &k, &v, &o;
    Element q_element, kv_element, o_element;
};

AttentionSpec spec_of(KvStorage kv) {
    AttentionSpec spec = attention(kType, kDim, kHeads, kHeads).spec;
    spec.mask = Mask::causal;
    spec.kv = kv;
    if (kv == KvStorage::paged) spec.page_size = 16;
    return spec;
}

std::string judge(Runtime& runtime, const Problem& problem, const Call& call,
                  const check::ReferenceInput& input) {
    const std::vector<check::QueryRow> rows = check::all_rows(problem.sequences);
    call.launch();
    runtime.synchronize();
    if (call.status()) return "the status is not clean";
    const check::Reference want = check::compute_reference(input, rows);
    std::vector<double> got;
    for (const check::QueryRow& row : rows)
        for (std::int64_t head = 0; head < kHeads; ++head)
            for (const double x : problem.o.result(problem.o_element(row.sequence, row.query, head)))
                got.push_back(x);
    const check::Comparison c = check::compare(check::output_tolerance(kType), got, want.out);
    if (c.bad == 0) return {};
    return fmt::format("{} of {} elements are wrong, first {}: got {}, want {}", c.bad, got.size(),
                       c.first_bad, got[static_cast<std::size_t>(c.first_bad)],
                       want.out[static_cast<std::size_t>(c.first_bad)]);
}

// With and without a KV split, with the kernel for few rows and the one for many.
std::string run(const Context& context, const Problem& problem, const Batch& batch) {
    check::ReferenceInput input;
    input.spec = problem.spec;
    input.sequences = problem.sequences;
    input.q = [&](auto s, auto t, auto h) { return problem.q.row(problem.q_element(s, t, h)); };
    input.k = [&](auto s, auto t, auto h) { return problem.k.row(problem.kv_element(s, t, h)); };
    input.v = [&](auto s, auto t, auto h) { return problem.v.row(problem.kv_element(s, t, h)); };
    // Everything is on the device before the first launch.
    for (std::size_t n = 0; n < problem.sequences.size(); ++n) {
        const auto s = static_cast<std::int64_t>(n);
        for (std::int64_t head = 0; head < kHeads; ++head) {
            for (std::int64_t t = 0; t < problem.sequences[n].q; ++t) input.q(s, t, head);
            for (std::int64_t t = 0; t < problem.sequences[n].kv; ++t)
                input.k(s, t, head), input.v(s, t, head);
        }
    }
    for (const check::KernelChoice& choice : check::kernel_choices(problem.spec)) {
        for (const std::int64_t chunk : {0, 128}) {
            for (const check::QueryRow& row : check::all_rows(problem.sequences))
                for (std::int64_t head = 0; head < kHeads; ++head)
                    problem.o.poison(problem.o_element(row.sequence, row.query, head));
            Case test;
            test.spec = problem.spec;
            test.sizes = PlanSizes{2, 64, 600};
            test.kernel = choice;
            test.kernel->chunk = check::chunk_of(choice, chunk);
            const Kernel kernel = check::prepare_case(context.runtime, test);
            const AttentionTensors tensors{.q = problem.q.tensor(),
                                           .k = problem.k.tensor(),
                                           .v = problem.v.tensor(),
                                           .o = problem.o.tensor()};
            const std::string what = judge(context.runtime, problem, kernel.bind(tensors, batch), input);
            if (!what.empty()) return fmt::format("{}: {}", to_string(*test.kernel), what);
        }
    }
    return {};
}

// Index arrays in one buffer, 256 bytes each.
class Indices {
  public:
    explicit Indices(Runtime& runtime) : buffer_(runtime.allocate(4096)) {}

    Tensor put(const std::vector<std::int32_t>& values, std::initializer_list<std::int64_t> shape) {
        const std::size_t offset = 512 * used_++;
        buffer_.upload(values.data(), values.size() * sizeof values[0], offset);
        return Tensor::contiguous(static_cast<std::byte*>(buffer_.data()) + offset, DType::int32, shape);
    }

  private:
    Buffer buffer_;
    std::size_t used_ = 0;
};

constexpr std::int64_t kRow = kHeads * kDim;

Element ragged_rows(const std::vector<std::int64_t>& first, std::int64_t stride) {
    return [=](std::int64_t s, std::int64_t t, std::int64_t h) {
        return (first[static_cast<std::size_t>(s)] + t) * stride + h * kDim;
    };
}

// Two sequences, of 50 and 1 queries, near.
struct NearQueries {
    NearQueries(Runtime& runtime, std::uint64_t seed)
        : q(runtime, {51, kHeads, kDim}, {kRow, kDim, 1}, seed),
          o(runtime, {51, kHeads, kDim}, {kRow, kDim, 1}, 0) {}
    FarTensor q, o;
    Element element = ragged_rows({0, 50}, kRow);
};

// Page ids about 2^31 and 2^32 elements from the first; `page_stride` of two heads and 16 slots, or far more.
std::string far_pages(const Context& context, std::int64_t page_stride) {
    const std::int64_t pages = kFar / page_stride + 40;
    FarTensor kv(context.runtime, {pages, 16, kHeads, kDim}, {page_stride, kRow, kDim, 1}, context.seed);
    NearQueries near(context.runtime, context.seed + 1);
    const std::int64_t half = pages / 2;
    // 130 and 300 keys: 9 and 19 pages.
    std::vector<std::int32_t> table;
    for (std::int64_t s = 0; s < 2; ++s)
        for (std::int64_t n = 0; n < 19; ++n) {
            const std::int64_t from = n % 3 == 0 ? 0 : n % 3 == 1 ? half : pages - 40;
            table.push_back(static_cast<std::int32_t>(from + 2 * n + s));
        }
    Indices indices(context.runtime);
    const Batch batch{.q_indptr = indices.put({0, 50, 51}, {3}),
                      .kv_lens = indices.put({130, 300}, {2}),
                      .page_table = indices.put(table, {2, 19})};
    const Element element = [&](std::int64_t s, std::int64_t t, std::int64_t h) {
        const std::int64_t page = table[static_cast<std::size_t>(s * 19 + t / 16)];
        return page * page_stride + t % 16 * kRow + h * kDim;
    };
    return run(context,
               {spec_of(KvStorage::paged),
                {{50, 130}, {1, 300}},
                near.q,
                kv,
                kv,
                near.o,
                near.element,
                element,
                near.element},
               batch);
}

std::string far_keys(const Context& context) {
    const std::int64_t stride = kFar / 400 / 8 * 8;  // 430 tokens, the last beyond 2^32
    FarTensor kv(context.runtime, {430, kHeads, kDim}, {stride, kDim, 1}, context.seed);
    NearQueries near(context.runtime, context.seed + 1);
    Indices indices(context.runtime);
    const Batch batch{.q_indptr = indices.put({0, 50, 51}, {3}),
                      .kv_indptr = indices.put({0, 130, 430}, {3})};
    return run(context,
               {spec_of(KvStorage::ragged),
                {{50, 130}, {1, 300}},
                near.q,
                kv,
                kv,
                near.o,
                near.element,
                ragged_rows({0, 130}, stride),
                near.element},
               batch);
}

std::string far_sequences(const Context& context) {
    const std::int64_t stride = kFar / 2 + 4096;  // 3 sequences
    FarTensor kv(context.runtime, {3, 300, kHeads, kDim}, {stride, kRow, kDim, 1}, context.seed);
    FarTensor q(context.runtime, {3, 20, kHeads, kDim}, {20 * kRow, kRow, kDim, 1}, context.seed + 1);
    FarTensor o(context.runtime, {3, 20, kHeads, kDim}, {20 * kRow, kRow, kDim, 1}, 0);
    const auto rows = [](std::int64_t batch_stride) -> Element {
        return [=](std::int64_t s, std::int64_t t, std::int64_t h) {
            return s * batch_stride + t * kRow + h * kDim;
        };
    };
    return run(context,
               {spec_of(KvStorage::dense),
                {{20, 300}, {20, 300}, {20, 300}},
                q,
                kv,
                kv,
                o,
                rows(20 * kRow),
                rows(stride),
                rows(20 * kRow)},
               {});
}

std::string far_queries(const Context& context) {
    const std::int64_t stride = kFar / 48 / 8 * 8;  // 51 tokens, the last beyond 2^32
    FarTensor q(context.runtime, {51, kHeads, kDim}, {stride, kDim, 1}, context.seed);
    FarTensor o(context.runtime, {51, kHeads, kDim}, {stride, kDim, 1}, 0);
    FarTensor kv(context.runtime, {430, kHeads, kDim}, {kRow, kDim, 1}, context.seed + 1);
    Indices indices(context.runtime);
    const Batch batch{.q_indptr = indices.put({0, 50, 51}, {3}),
                      .kv_indptr = indices.put({0, 130, 430}, {3})};
    const Element element = ragged_rows({0, 50}, stride);
    return run(context,
               {spec_of(KvStorage::ragged),
                {{50, 130}, {1, 300}},
                q,
                kv,
                kv,
                o,
                element,
                ragged_rows({0, 130}, kRow),
                element},
               batch);
}

}  // namespace

void add_far(Catalogue& catalogue) {
    add(catalogue, "far", "many pages", [](const Context& context) { return far_pages(context, 16 * kRow); });
    add(catalogue, "far", "pages far apart",
        [](const Context& context) { return far_pages(context, std::int64_t{1} << 25); });
    add(catalogue, "far", "tokens of keys far apart", far_keys);
    add(catalogue, "far", "sequences of keys far apart", far_sequences);
    add(catalogue, "far", "tokens of queries and output far apart", far_queries);
}

}  // namespace attnsmith::gpu_tests
