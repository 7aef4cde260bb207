// Op top_k, against a sort on the CPU: every column, bit for bit.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "catalogue.hpp"
#include "check/judge.hpp"
#include "check/random.hpp"
#include "cuda_driver.hpp"

namespace attnsmith::gpu_tests {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr std::int32_t kPoison = 0x55555555;

// What scores are drawn from.
enum class Scores : std::uint8_t { normal, few, equal, specials, ascending };
enum class Bounds : std::uint8_t { none, ends, both, hostile };

struct TopKCase {
    std::int64_t rows = 1, columns = 1, k = 1;
    Scores scores = Scores::normal;
    Bounds bounds = Bounds::none;
    DType index_dtype = DType::int32;
    std::int64_t pad = 0;  // elements between rows, larger than any score
    bool in_graph = false;

    std::string name() const {
        constexpr const char* kScores[] = {"normal", "few", "equal", "special", "ascending"};
        constexpr const char* kBounds[] = {"", ", ends", ", starts and ends", ", bounds beyond the columns"};
        return fmt::format("{} x {}, k {}, {} scores{}{}{}{}", rows, columns, k,
                           kScores[static_cast<int>(scores)], kBounds[static_cast<int>(bounds)],
                           index_dtype == DType::int64 ? ", int64" : "", pad > 0 ? ", padded rows" : "",
                           in_graph ? ", in a graph" : "");
    }
};

float draw(Scores scores, std::int64_t column, check::Random& random) {
    switch (scores) {
        case Scores::normal:
            return static_cast<float>(random.normal());
        case Scores::few:
            return static_cast<float>(random.integer(-2, 2)) * (random.integer(0, 1) == 0 ? 1.0F : -1.0F);
        case Scores::equal:
            return -1.5F;
        case Scores::specials: {
            constexpr float kSpecials[] = {kInfinity,
                                           -kInfinity,
                                           std::numeric_limits<float>::quiet_NaN(),
                                           -std::numeric_limits<float>::quiet_NaN(),
                                           0.0F,
                                           -0.0F,
                                           1e-42F,
                                           -1e-42F,
                                           std::numeric_limits<float>::max(),
                                           -std::numeric_limits<float>::max()};
            return kSpecials[random.integer(0, std::size(kSpecials) - 1)];
        }
        case Scores::ascending:
            return static_cast<float>(column);
    }
    return 0;
}

// Numbers before NaN, larger ones first, and of equal ones the lower column.
std::vector<std::int32_t> selected(const float* scores, std::int64_t first, std::int64_t end,
                                   std::int64_t k) {
    std::vector<std::int32_t> columns(static_cast<std::size_t>(std::max<std::int64_t>(0, end - first)));
    std::iota(columns.begin(), columns.end(), static_cast<std::int32_t>(first));
    std::ranges::stable_sort(columns, [&](std::int32_t a, std::int32_t b) {
        if (std::isnan(scores[a]) || std::isnan(scores[b]))
            return !std::isnan(scores[a]) && std::isnan(scores[b]);
        return scores[a] > scores[b];
    });
    columns.resize(std::min(columns.size(), static_cast<std::size_t>(k)));
    std::ranges::sort(columns);
    columns.resize(static_cast<std::size_t>(k), -1);
    return columns;
}

// A list of bounds as it is on the device.
Buffer uploaded(Runtime& runtime, const std::vector<std::int64_t>& values, DType dtype) {
    Buffer buffer = runtime.allocate(std::max<std::size_t>(1, values.size()) * 8);
    if (dtype == DType::int64) {
        buffer.upload(values.data(), values.size() * 8);
    } else {
        const std::vector<std::int32_t> narrow(values.begin(), values.end());
        buffer.upload(narrow.data(), narrow.size() * 4);
    }
    return buffer;
}

class TopKRun {
  public:
    TopKRun(const Context& context, const TopKCase& test)
        : runtime_(context.runtime),
          test_(test),
          random_(check::derive_seed(context.seed, test.name())),
          stride_(test.columns + test.pad),
          scores_(static_cast<std::size_t>(test.rows * stride_), kInfinity),
          poisoned_(static_cast<std::size_t>(test.rows * (test.k + test.pad)), kPoison) {}

    std::string run() {
        for (std::int64_t row = 0; row < test_.rows; ++row)
            for (std::int64_t column = 0; column < test_.columns; ++column)
                score(row, column) = draw(test_.scores, column, random_);
        draw_bounds();
        place();
        const Kernel kernel = runtime_.prepare({.op = Op::top_k, .index_dtype = test_.index_dtype}, {});
        const Call call = kernel.bind(tensors());
        for (int n = 0; n < 2; ++n)
            if (std::string why = launch(call); !why.empty()) return fmt::format("launch {}: {}", n + 1, why);
        return "";
    }

  private:
    float& score(std::int64_t row, std::int64_t column) {
        return scores_[static_cast<std::size_t>(row * stride_ + column)];
    }

    // Scores outside of a row's bounds are larger than any within.
    void draw_bounds() {
        if (test_.bounds == Bounds::none) return;
        for (std::int64_t row = 0; row < test_.rows; ++row) {
            std::int64_t first = test_.bounds == Bounds::ends ? 0 : random_.integer(0, test_.columns);
            std::int64_t end = random_.integer(first, test_.columns);
            for (std::int64_t column = 0; column < test_.columns; ++column)
                if (column < first || column >= end) score(row, column) = kInfinity;
            if (test_.bounds == Bounds::hostile) {
                if (row % 3 == 0) first = -1 - random_.integer(0, 1000);
                if (row % 3 == 1) end = test_.columns + 1 + random_.integer(0, 1 << 30);
                if (row % 3 == 2) end = first - 1 - random_.integer(0, 1 << 20);
            }
            starts_.push_back(first);
            ends_.push_back(end);
        }
    }

    void place() {
        scores_buffer_ = runtime_.allocate(std::max<std::size_t>(1, scores_.size()) * sizeof(float));
        if (!scores_.empty()) scores_buffer_->upload(scores_.data(), scores_.size() * sizeof(float));
        indices_buffer_ =
            runtime_.allocate(std::max<std::size_t>(1, poisoned_.size()) * sizeof(std::int32_t));
        starts_buffer_ = uploaded(runtime_, starts_, test_.index_dtype);
        ends_buffer_ = uploaded(runtime_, ends_, test_.index_dtype);
    }

    TopKTensors tensors() {
        TopKTensors tensors{
            .scores = Tensor::contiguous(scores_buffer_->data(), DType::fp32, {test_.rows, test_.columns}),
            .indices = Tensor::contiguous(indices_buffer_->data(), DType::int32, {test_.rows, test_.k})};
        tensors.scores.strides[0] = stride_;
        tensors.indices.strides[0] = test_.k + test_.pad;
        if (test_.bounds == Bounds::none) return tensors;
        tensors.row_ends = Tensor::contiguous(ends_buffer_->data(), test_.index_dtype, {test_.rows});
        if (test_.bounds != Bounds::ends)
            tensors.row_starts = Tensor::contiguous(starts_buffer_->data(), test_.index_dtype, {test_.rows});
        return tensors;
    }

    std::string launch(const Call& call) {
        if (!poisoned_.empty()) indices_buffer_->upload(poisoned_.data(), poisoned_.size() * 4);
        if (test_.in_graph) {
            const CurrentContext current;
            const TestStream stream;
            const CapturedGraph graph(stream, [&] { call.launch(stream.get()); });
            graph.launch(stream);
            stream.synchronize();
        } else {
            call.launch();
            runtime_.synchronize();
        }
        std::vector<std::int32_t> found(poisoned_.size());
        if (!found.empty()) indices_buffer_->download(found.data(), found.size() * 4);
        const bool clamped = test_.bounds == Bounds::hostile && test_.rows > 0;
        const CallStatus wanted{clamped ? kStatusKvLenClamped : 0};
        if (call.status() != wanted)
            return fmt::format("kv_len_clamped is {}, or another bit is set", call.status().kv_len_clamped());
        std::vector<float> after(scores_.size());
        if (!after.empty()) scores_buffer_->download(after.data(), after.size() * sizeof(float));
        const auto bits = [](float a, float b) { return std::bit_cast<int>(a) == std::bit_cast<int>(b); };
        if (!std::ranges::equal(after, scores_, bits)) return "the launch wrote into scores";
        return compare(found);
    }

    std::string compare(const std::vector<std::int32_t>& found) {
        for (std::int64_t row = 0; row < test_.rows; ++row) {
            const auto at = static_cast<std::size_t>(row);
            const std::int64_t start = starts_.empty() ? 0 : starts_[at];
            const std::int64_t end = ends_.empty() ? test_.columns : ends_[at];
            const std::int64_t first =
                test_.bounds == Bounds::ends ? 0 : std::clamp<std::int64_t>(start, 0, test_.columns);
            std::vector<std::int32_t> wanted = selected(test_.columns > 0 ? &score(row, 0) : nullptr, first,
                                                        std::clamp(end, first, test_.columns), test_.k);
            wanted.resize(static_cast<std::size_t>(test_.k + test_.pad), kPoison);
            const auto got = found.begin() + row * (test_.k + test_.pad);
            const auto [w, g] = std::ranges::mismatch(wanted.begin(), wanted.end(), got, found.end());
            if (w != wanted.end())
                return fmt::format("indices[{}, {}]: got {}, want {}", row, w - wanted.begin(), *g, *w);
        }
        return "";
    }

    Runtime& runtime_;
    const TopKCase test_;
    check::Random random_;
    const std::int64_t stride_;
    std::vector<float> scores_;
    const std::vector<std::int32_t> poisoned_;
    std::vector<std::int64_t> starts_, ends_;
    std::optional<Buffer> scores_buffer_, indices_buffer_, starts_buffer_, ends_buffer_;
};

void add_case(Catalogue& catalogue, const TopKCase& test) {
    add(catalogue, "top_k", test.name(),
        [test](const Context& context) { return TopKRun(context, test).run(); });
    catalogue.back().ahead = [dtype = test.index_dtype](Runtime& runtime) {
        (void)runtime.prepare({.op = Op::top_k, .index_dtype = dtype}, {});
    };
    catalogue.back().runs_alone = test.in_graph;
}

std::string what_a_call_says(const Context& context) {
    Runtime& runtime = context.runtime;
    const Kernel kernel = runtime.prepare({.op = Op::top_k}, {});
    if (kernel.workspace_bytes({1, 8, 8}) != kWorkspaceZeroedBytes) return "it wants another workspace";
    const Buffer memory = runtime.allocate(std::size_t{1} << 16);
    const auto at = [&](std::int64_t place, DType dtype, std::initializer_list<std::int64_t> shape) {
        return Tensor::contiguous(static_cast<std::byte*>(memory.data()) + place * 8192, dtype, shape);
    };
    const TopKTensors none{.scores = at(0, DType::fp32, {0, 64}), .indices = at(1, DType::int32, {0, 8})};
    const Call call = kernel.bind(none);
    call.launch();
    if (call.describe() != "nothing to launch") return "0 rows: " + call.describe();
    const std::string other = refusal("op", [&] { static_cast<void>(kernel.bind(AttentionTensors{}, {})); });
    if (!other.empty()) return other;
    TopKTensors over{.scores = at(0, DType::fp32, {4, 64}), .indices = at(0, DType::int32, {4, 8})};
    return refusal("indices", [&] { static_cast<void>(kernel.bind(over)); });
}

}  // namespace

void add_top_k(Catalogue& catalogue) {
    for (const std::int64_t columns : {0, 1, 31, 255, 256, 257, 1000, 4096, 70001})
        for (const std::int64_t k : {0, 1, 7, 256, 2048})
            add_case(catalogue, {.rows = 5, .columns = columns, .k = k});
    for (const Scores scores : {Scores::few, Scores::equal, Scores::specials, Scores::ascending})
        for (const std::int64_t k : {1, 64, 2048})
            for (const Bounds bounds : {Bounds::none, Bounds::both})
                add_case(catalogue,
                         {.rows = 7, .columns = 3001, .k = k, .scores = scores, .bounds = bounds, .pad = 3});
    for (const DType index : {DType::int32, DType::int64})
        for (const Bounds bounds : {Bounds::ends, Bounds::both, Bounds::hostile})
            for (const bool in_graph : {false, true})
                add_case(catalogue, {.rows = 33,
                                     .columns = 2500,
                                     .k = 512,
                                     .bounds = bounds,
                                     .index_dtype = index,
                                     .pad = 1,
                                     .in_graph = in_graph});
    add_case(catalogue, {.rows = 3000, .columns = 600, .k = 128, .bounds = Bounds::both});
    add(catalogue, "top_k", "workspace, description, tensors that are refused", what_a_call_says);
}

}  // namespace attnsmith::gpu_tests
