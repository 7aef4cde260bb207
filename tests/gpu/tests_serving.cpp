// What a serving engine does: one Call for all layers, a set of kernels picked from at each step, graphs that
// outlive their Calls.
#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "catalogue.hpp"
#include "cuda_driver.hpp"

namespace attnsmith::gpu_tests {
namespace {

constexpr std::int64_t kHeads = 8, kKvHeads = 2, kDim = 128, kPageSize = 16;
constexpr std::int64_t kLatent = 512, kPosition = 64;

std::vector<std::uint16_t> random_bf16(std::int64_t count, std::uint64_t seed) {
    std::mt19937_64 random(seed);
    std::uniform_real_distribution<float> values(-1.0F, 1.0F);
    std::vector<std::uint16_t> list(static_cast<std::size_t>(count));
    for (std::uint16_t& element : list) {
        const float value = values(random);
        std::uint32_t bits;
        std::memcpy(&bits, &value, sizeof bits);
        element = static_cast<std::uint16_t>(bits >> 16);
    }
    return list;
}

float value_of(std::uint16_t bf16) {
    const std::uint32_t bits = std::uint32_t{bf16} << 16;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

// A batch of one layer whose sequences are all of one length.
struct Problem {
    std::string name;
    PlanSizes sizes;
    bool paged = false;
    bool latent = false;  // op mla
    bool apart = false;   // with the columns of the position in tensors of their own

    AttentionSpec spec() const {
        if (latent) {
            AttentionSpec spec{
                .op = Op::mla, .head_dim_ckv = kLatent, .head_dim_kpe = kPosition, .q_heads = kHeads};
            spec.mask = Mask::causal;
            spec.scale = 0.05;
            spec.kv = KvStorage::paged, spec.page_size = kPageSize;
            return spec;
        }
        AttentionSpec spec{.dtype = DType::bf16,
                           .head_dim_qk = kDim,
                           .q_heads = kHeads,
                           .kv_heads = kKvHeads,
                           .mask = Mask::causal};
        if (paged) spec.kv = KvStorage::paged, spec.page_size = kPageSize;
        return spec;
    }
    std::int64_t output_columns() const { return latent ? kLatent : kDim; }
    std::int64_t key_columns() const { return !latent ? kDim : apart ? kLatent : kLatent + kPosition; }
    std::int64_t pages() const { return (sizes.kv_len + kPageSize - 1) / kPageSize; }  // of a sequence
};

std::vector<Problem> problems() {
    return {{"dense prefill", {2, 300, 500}, false},
            {"dense prefill in chunks", {1, 128, 8192}, false},
            {"paged prefill", {3, 200, 333}, true},
            {"dense decode", {16, 1, 3000}, false},
            {"paged decode", {16, 1, 3000}, true},
            {"decode of latents", {16, 1, 3000}, true, true, false},
            {"prefill of latents apart", {2, 70, 333}, true, true, true}};
}

class Layer {
  public:
    Layer(const Runtime& runtime, const Problem& problem, std::uint64_t seed) : problem_(problem) {
        const auto& [batch, q_len, kv_len] = problem.sizes;
        const std::int64_t tokens = problem.paged ? problem.pages() * kPageSize : kv_len;
        const std::int64_t heads = problem.latent ? 1 : kKvHeads, columns = problem.output_columns();
        fill(runtime, q_, random_bf16(batch * q_len * kHeads * problem.key_columns(), seed));
        fill(runtime, k_, random_bf16(batch * tokens * heads * problem.key_columns(), seed + 1));
        fill(runtime, v_, random_bf16(batch * tokens * heads * columns, seed + 2));
        fill(runtime, q_pe_, random_bf16(batch * q_len * kHeads * kPosition, seed + 3));
        fill(runtime, o_, poison());
    }

    AttentionTensors tensors() const {
        const auto& [batch, q_len, kv_len] = problem_.sizes;
        if (problem_.latent) {
            const auto queries = [&](const Buffer& buffer, std::int64_t columns) {
                return Tensor::contiguous(buffer.data(), DType::bf16, {batch, q_len, kHeads, columns});
            };
            const auto pages = [&](const Buffer& buffer, std::int64_t columns) {
                return Tensor::contiguous(buffer.data(), DType::bf16,
                                          {batch * problem_.pages(), kPageSize, columns});
            };
            AttentionTensors tensors{.q = queries(q_, problem_.key_columns()),
                                     .k = pages(k_, problem_.key_columns()),
                                     .o = queries(o_, kLatent)};
            if (problem_.apart) tensors.q_pe = queries(q_pe_, kPosition), tensors.kpe = pages(v_, kPosition);
            return tensors;
        }
        const auto keys = [&](const Buffer& buffer) {
            if (problem_.paged)
                return Tensor::contiguous(buffer.data(), DType::bf16,
                                          {batch * problem_.pages(), kPageSize, kKvHeads, kDim});
            return Tensor::contiguous(buffer.data(), DType::bf16, {batch, kv_len, kKvHeads, kDim});
        };
        return {.q = Tensor::contiguous(q_.data(), DType::bf16, {batch, q_len, kHeads, kDim}),
                .k = keys(k_),
                .v = keys(v_),
                .o = Tensor::contiguous(o_.data(), DType::bf16, {batch, q_len, kHeads, kDim})};
    }
    TensorAddresses addresses() const {
        if (problem_.latent) {
            TensorAddresses at{.q = q_.data(), .k = k_.data(), .o = o_.data()};
            if (problem_.apart) at.q_pe = q_pe_.data(), at.kpe = v_.data();
            return at;
        }
        return {.q = q_.data(), .k = k_.data(), .v = v_.data(), .o = o_.data()};
    }

    void poison_output() { upload(o_, poison()); }
    std::vector<std::uint16_t> output() const {
        std::vector<std::uint16_t> o = poison();
        o_.download(o.data(), o.size() * sizeof o[0]);
        return o;
    }
    bool is_untouched() const { return output() == poison(); }

  private:
    static void upload(Buffer& buffer, const std::vector<std::uint16_t>& values) {
        buffer.upload(values.data(), values.size() * sizeof values[0]);
    }
    static void fill(const Runtime& runtime, Buffer& buffer, const std::vector<std::uint16_t>& values) {
        buffer = runtime.allocate(values.size() * sizeof values[0]);
        upload(buffer, values);
    }
    std::vector<std::uint16_t> poison() const {
        const auto& [batch, q_len, kv_len] = problem_.sizes;
        return std::vector<std::uint16_t>(
            static_cast<std::size_t>(batch * q_len * kHeads * problem_.output_columns()),
            std::uint16_t{0x7fd5});
    }

    Problem problem_;
    Buffer q_, k_, v_, o_, q_pe_;  // of latents v_ has the columns of the position
};

// Lengths and a page table of a problem, which all layers share.
class Lengths {
  public:
    Lengths(const Runtime& runtime, const Problem& problem) : problem_(problem) {
        if (!problem.paged) return;
        std::vector<std::int32_t> table(static_cast<std::size_t>(problem.sizes.batch * problem.pages()));
        for (std::size_t n = 0; n < table.size(); ++n)
            table[n] = static_cast<std::int32_t>(table.size() - 1 - n);
        const std::vector<std::int32_t> lens(static_cast<std::size_t>(problem.sizes.batch),
                                             static_cast<std::int32_t>(problem.sizes.kv_len));
        fill(runtime, table_, table);
        fill(runtime, lens_, lens);
    }

    Batch batch() const {
        if (!problem_.paged) return {};
        Batch batch;
        batch.page_table =
            Tensor::contiguous(table_.data(), DType::int32, {problem_.sizes.batch, problem_.pages()});
        batch.kv_lens = Tensor::contiguous(lens_.data(), DType::int32, {problem_.sizes.batch});
        batch.max_kv_len = problem_.sizes.kv_len;
        return batch;
    }

  private:
    static void fill(const Runtime& runtime, Buffer& buffer, const std::vector<std::int32_t>& values) {
        buffer = runtime.allocate(values.size() * sizeof values[0]);
        buffer.upload(values.data(), values.size() * sizeof values[0]);
    }

    Problem problem_;
    Buffer table_, lens_;
};

// What a Call of its own gives for each layer.
std::vector<std::vector<std::uint16_t>> expected_of(const Runtime& runtime, const Kernel& kernel,
                                                    std::vector<Layer>& layers, const Batch& batch) {
    std::vector<std::vector<std::uint16_t>> expected;
    for (Layer& layer : layers) {
        const Call call = kernel.bind(layer.tensors(), batch);
        call.launch();
        runtime.synchronize();
        expected.push_back(layer.output());
        layer.poison_output();
    }
    return expected;
}

std::vector<Layer> layers_of(const Runtime& runtime, const Problem& problem, std::uint64_t seed) {
    std::vector<Layer> layers;
    for (std::uint64_t n = 0; n < 3; ++n) layers.emplace_back(runtime, problem, seed + 10 * n);
    return layers;
}

std::string one_call_for_all_layers(const Context& context, const Problem& problem) {
    const CurrentContext current;
    const TestStream stream;
    Runtime& runtime = context.runtime;
    const Kernel kernel = runtime.prepare(problem.spec(), problem.sizes);
    const Lengths lengths(runtime, problem);
    std::vector<Layer> layers = layers_of(runtime, problem, context.seed);
    const auto expected = expected_of(runtime, kernel, layers, lengths.batch());
    if (expected[0] == expected[1]) return "two layers with other keys give the same";
    const Call call = kernel.bind(layers[0].tensors(), lengths.batch());

    call.launch_at(layers[1].addresses(), stream.get());
    stream.synchronize();
    if (layers[1].output() != expected[1]) return "the bits of a layer launched by its addresses differ";
    if (!layers[0].is_untouched()) return "the output that was bound is written";
    call.launch_at({.o = layers[1].addresses().o}, stream.get());
    stream.synchronize();
    if (layers[1].output() != expected[0]) return "with another o alone the bits differ";
    call.launch(stream.get());
    stream.synchronize();
    if (layers[0].output() != expected[0]) return "a launch as bound differs after one by addresses";

    const CapturedGraph graph(stream, [&] {
        for (const Layer& layer : layers) call.launch_at(layer.addresses(), stream.get());
    });
    for (int replay = 0; replay < 2; ++replay) {
        for (Layer& layer : layers) layer.poison_output();
        graph.launch(stream);
        stream.synchronize();
        for (std::size_t n = 0; n < layers.size(); ++n)
            if (layers[n].output() != expected[n]) return fmt::format("layer {} of a graph differs", n);
    }
    return {};
}

// On a thread that never had a context, and by the default stream.
std::string addresses_without_a_context(const Context& context) {
    const Problem problem = problems().front();
    Runtime& runtime = context.runtime;
    const Kernel kernel = runtime.prepare(problem.spec(), problem.sizes);
    const Lengths lengths(runtime, problem);
    std::vector<Layer> layers = layers_of(runtime, problem, context.seed);
    const auto expected = expected_of(runtime, kernel, layers, lengths.batch());
    const Call call = kernel.bind(layers[0].tensors(), lengths.batch());
    call.launch_at(layers[2].addresses());
    runtime.synchronize();
    return layers[2].output() == expected[2] ? "" : "the bits differ";
}

std::string graph_outlives_its_call(const Context& context, const Problem& problem) {
    const CurrentContext current;
    const TestStream stream;
    RuntimeOptions options;
    options.use_cache = false;
    Runtime runtime(options);
    const Lengths lengths(runtime, problem);
    Layer layer(runtime, problem, context.seed);
    std::shared_ptr<const void> kept;
    std::unique_ptr<CapturedGraph> graph;
    std::vector<std::uint16_t> expected;
    {
        const Kernel kernel = runtime.prepare(problem.spec(), problem.sizes);
        const Call call = kernel.bind(layer.tensors(), lengths.batch());
        call.launch(stream.get());
        stream.synchronize();
        expected = layer.output();
        graph = std::make_unique<CapturedGraph>(stream, [&] { call.launch(stream.get()); });
        kept = call.keep_alive();
    }
    // What is allocated now would lie where the workspace was, had it been freed.
    std::vector<Buffer> others;
    for (int n = 0; n < 8; ++n) {
        others.push_back(runtime.allocate(std::size_t{8} << 20));
        const std::vector<char> ones(std::size_t{8} << 20, 1);
        others.back().upload(ones.data(), ones.size());
    }
    for (int replay = 0; replay < 3; ++replay) {
        layer.poison_output();
        graph->launch(stream);
        stream.synchronize();
        if (layer.output() != expected) return "the bits differ behind the call's end";
    }
    graph.reset();
    kept.reset();
    return {};
}

std::string name_of(const std::string& plan) {
    return nlohmann::json::parse(plan)["kernels"][0]["name"].get<std::string>();
}

// The set's kernels at sizes of all kinds, in one workspace, against those that were prepared for each.
std::string set_serves_all(const Context& context, bool paged) {
    Runtime& runtime = context.runtime;
    const std::vector<PlanSizes> steps = {{16, 1, 3000}, {1, 1, 8192}, {64, 1, 17},    {1, 128, 8192},
                                          {2, 300, 500}, {8, 4, 1000}, {1, 1024, 1024}};
    const KernelSet set = runtime.prepare_set(Problem{"", {}, paged}.spec());
    const std::size_t bytes = set.workspace_bytes({64, 1024, 8192});
    Buffer memory = runtime.allocate(bytes);
    const std::vector<char> zeros(kWorkspaceZeroedBytes, 0);
    memory.upload(zeros.data(), zeros.size());
    for (const PlanSizes& sizes : steps) {
        const Problem problem{"", sizes, paged};
        const std::string at = fmt::format("{} x {} x {}", sizes.batch, sizes.q_len, sizes.kv_len);
        const Kernel& picked = set.pick(sizes);
        const Kernel prepared = runtime.prepare(problem.spec(), sizes);
        if (name_of(picked.plan_json()) != name_of(prepared.plan_json()))
            return fmt::format("{}: picked {}, prepared {}", at, name_of(picked.plan_json()),
                               name_of(prepared.plan_json()));
        const Lengths lengths(runtime, problem);
        Layer layer(runtime, problem, context.seed);
        prepared.bind(layer.tensors(), lengths.batch()).launch();
        runtime.synchronize();
        const std::vector<std::uint16_t> expected = layer.output();
        layer.poison_output();
        const Call call = picked.bind(layer.tensors(), lengths.batch(), {memory.data(), memory.bytes()});
        call.launch();
        runtime.synchronize();
        if (const CallStatus status = call.status()) return at + ": the status says that something is wrong";
        const std::vector<std::uint16_t> given = layer.output();
        for (std::size_t n = 0; n < given.size(); ++n) {
            const float difference = std::abs(value_of(given[n]) - value_of(expected[n]));
            if (!(difference <= 0.01F))
                return fmt::format("{}: element {} is {}, not {}", at, n, value_of(given[n]),
                                   value_of(expected[n]));
        }
    }
    return {};
}

}  // namespace

void add_serving(Catalogue& catalogue) {
    for (const Problem& problem : problems()) {
        add(catalogue, "serving", problem.name + ", one call for all layers",
            [problem](const Context& context) { return one_call_for_all_layers(context, problem); });
        add(catalogue, "serving", problem.name + ", a graph outlives its call",
            [problem](const Context& context) { return graph_outlives_its_call(context, problem); });
    }
    add(catalogue, "serving", "addresses without a context", addresses_without_a_context);
    add(catalogue, "serving", "a set of kernels, dense",
        [](const Context& context) { return set_serves_all(context, false); });
    add(catalogue, "serving", "a set of kernels, paged",
        [](const Context& context) { return set_serves_all(context, true); });
}

}  // namespace attnsmith::gpu_tests
