// Continuous batching, as a serving engine does it: sequences join and leave at every step, chunks of prompts
// run beside decodes, pages go from one sequence to the next. All kernels are loaded before the first
// request, and a step is one CUDA graph with the attentions of all layers: what changes from step to step is
// memory on the device.
#include <algorithm>
#include <attnsmith/attnsmith.hpp>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <iostream>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "cuda_graph.hpp"

namespace as = attnsmith;

namespace {

constexpr std::int64_t kLayers = 3, kHeads = 8, kKvHeads = 2, kHeadDim = 64;
constexpr std::int64_t kTokenWidth = kKvHeads * kHeadDim, kRowWidth = kHeads * kHeadDim;  // elements
constexpr std::int64_t kSlots = 8;   // sequences that run at a time
constexpr std::int64_t kChunk = 64;  // tokens of a prompt that a step takes, at most
constexpr std::int64_t kPageSize = 16, kPagesEach = 32, kLongest = kPageSize * kPagesEach;
constexpr std::int64_t kPages = kSlots * kPagesEach / 2;  // fewer than all slots could want
constexpr int kRequests = 24;
constexpr std::uint16_t kOne = 0x3f80;  // 1.0 in bf16

struct Sequence {
    int id = 0;
    std::int64_t prompt = 0, end = 0;  // tokens to prefill, and at which it leaves
    std::int64_t keys = 0;             // in the cache
    std::int32_t slot = 0;             // its row of the page table
    std::vector<std::int32_t> pages{};

    std::int64_t queries() const { return keys < prompt ? std::min(kChunk, prompt - keys) : 1; }
};

// Stands for a model: all keys are alike, so that a query sees the mean of its sequence's values, which are
// the same small number. Whoever reads another sequence's page, or another layer's, finds another number.
std::uint16_t value_of(int id, std::int64_t layer) {
    const auto number = static_cast<float>(1 + (id + 31 * layer) % 100);
    return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(number) >> 16);  // in bf16
}

class Engine {
  public:
    Engine() {
        const std::vector<std::uint16_t> ones(kPages * kPageSize * kTokenWidth, kOne);
        for (std::int64_t i = 0; i < kLayers; ++i) {
            Layer& layer = layers_.emplace_back();
            layer.keys = runtime_.allocate(ones.size() * 2);
            layer.keys.upload(ones.data(), layer.keys.bytes());
            layer.values = runtime_.allocate(ones.size() * 2);
            layer.results = runtime_.allocate(kSlots * kChunk * kRowWidth * 2);
        }
        queries_.upload(std::vector<std::uint16_t>(kSlots * kChunk * kRowWidth, kOne).data(),
                        queries_.bytes());
        std::iota(free_pages_.begin(), free_pages_.end(), 0);
        std::iota(free_slots_.begin(), free_slots_.end(), 0);
        std::mt19937 random(7);
        for (int id = 0; id < kRequests; ++id) {
            const auto prompt = 1 + static_cast<std::int64_t>(random() % (kLongest / 2));
            const auto generated = 1 + static_cast<std::int64_t>(random() % (kLongest / 2));
            waiting_.push_back({.id = id, .prompt = prompt, .end = prompt + generated});
        }
    }

    void serve() {
        while (!waiting_.empty() || !running_.empty()) step();
        std::cout << "served " << kRequests << " sequences in " << steps_ << " steps with " << graphs_.size()
                  << " graphs; the results are " << (wrong_ == 0 ? "right\n" : "wrong\n");
        // The workspace is ours, and so is the status of all launches at its start.
        std::uint32_t word = 0;
        workspace_.download(&word, sizeof word);
        if (const auto status = as::CallStatus::from_word(word)) std::cout << as::to_string(status) << "\n";
    }

  private:
    struct Layer {
        as::Buffer keys{}, values{}, results{};
    };

    void step() {
        admit();
        // Any order will do: table_rows says whose pages each row of the batch has.
        std::ranges::stable_sort(running_, std::greater<>(), &Sequence::queries);
        const std::int64_t max_q_len = running_.front().queries() > 1 ? kChunk : 1;
        std::vector<std::int32_t> starts{0}, lengths, rows;
        for (Sequence& sequence : running_) {
            starts.push_back(starts.back() + static_cast<std::int32_t>(sequence.queries()));
            append_values(sequence);
            lengths.push_back(static_cast<std::int32_t>(sequence.keys));
            rows.push_back(sequence.slot);
        }
        const std::int64_t longest = std::ranges::max(lengths);
        // The batch that was bound has kSlots sequences; those that are not there have no queries and no
        // keys.
        starts.resize(kSlots + 1, starts.back());
        lengths.resize(kSlots), rows.resize(kSlots);
        starts_.upload(starts.data(), starts_.bytes());
        lengths_.upload(lengths.data(), lengths_.bytes());
        rows_.upload(rows.data(), rows_.bytes());

        graph_for(max_q_len, longest).launch(stream_);
        runtime_.synchronize(stream_.get());  // what is uploaded for the next step must not come sooner
        check(starts);
        retire();
        ++steps_;
    }

    // The graph of the kernel that is best for a step, captured when it is first wanted.
    const cuda::Graph& graph_for(std::int64_t max_q_len, std::int64_t longest) {
        // Rounded, so that sizes come again: pick() remembers those.
        const std::int64_t kv_len = std::min(kLongest, (longest + 127) / 128 * 128);
        const as::Kernel& kernel =
            set_.pick({.batch = std::ssize(running_), .q_len = max_q_len, .kv_len = kv_len});
        std::optional<cuda::Graph>& graph = graphs_[{&kernel, max_q_len}];  // the kernel stays where it is
        if (!graph) capture(kernel, max_q_len, graph);
        return *graph;
    }

    // Binds to bounds, which hold for all steps: decodes have theirs, since smaller ones make faster
    // launches.
    void capture(const as::Kernel& kernel, std::int64_t max_q_len, std::optional<cuda::Graph>& graph) {
        const std::int64_t tokens = kSlots * max_q_len;
        const auto tensor = [](const as::Buffer& buffer, std::initializer_list<std::int64_t> shape) {
            return as::Tensor::contiguous(buffer.data(), as::DType::bf16, shape);
        };
        const auto indices = [](const as::Buffer& buffer, std::initializer_list<std::int64_t> shape) {
            return as::Tensor::contiguous(buffer.data(), as::DType::int32, shape);
        };
        const Layer& first = layers_.front();
        const as::Call call = kernel.bind({.q = tensor(queries_, {tokens, kHeads, kHeadDim}),
                                           .k = tensor(first.keys, {kPages, kPageSize, kKvHeads, kHeadDim}),
                                           .v = tensor(first.values, {kPages, kPageSize, kKvHeads, kHeadDim}),
                                           .o = tensor(first.results, {tokens, kHeads, kHeadDim})},
                                          {.q_indptr = indices(starts_, {kSlots + 1}),
                                           .kv_lens = indices(lengths_, {kSlots}),
                                           .page_table = indices(table_, {kSlots, kPagesEach}),
                                           .table_rows = indices(rows_, {kSlots}),
                                           .max_q_len = max_q_len,
                                           .max_kv_len = kLongest},
                                          // One for all graphs: they run one after the other.
                                          workspace_.workspace());
        // One Call serves all layers, which differ by addresses alone. It may go when it is captured: the
        // graph keeps the code that it launches.
        graph.emplace(stream_, call.keep_alive(), [&] {
            for (const Layer& layer : layers_)  // an engine's projections and MLPs come between
                call.launch_at({.k = layer.keys.data(), .v = layer.values.data(), .o = layer.results.data()},
                               stream_.get());
        });
    }

    // Sequences join while there are slots, and pages for all that they may become.
    void admit() {
        while (!waiting_.empty() && !free_slots_.empty()) {
            Sequence& sequence = waiting_.front();
            const std::int64_t pages = (sequence.end + kPageSize - 1) / kPageSize;
            if (pages > std::ssize(free_pages_)) return;
            sequence.pages.assign(free_pages_.end() - pages, free_pages_.end());
            free_pages_.resize(free_pages_.size() - sequence.pages.size());
            sequence.slot = free_slots_.back();
            free_slots_.pop_back();
            table_.upload(sequence.pages.data(), sequence.pages.size() * 4,
                          static_cast<std::size_t>(sequence.slot * kPagesEach) * 4);
            running_.push_back(std::move(sequence));
            waiting_.pop_front();
        }
    }

    // What a model does before its attention: the step's tokens go into the cache, and the length is theirs
    // too.
    void append_values(Sequence& sequence) {
        for (std::int64_t left = sequence.queries(); left > 0; --left, ++sequence.keys) {
            const std::int64_t page = sequence.pages[static_cast<std::size_t>(sequence.keys / kPageSize)];
            const std::int64_t token = page * kPageSize + sequence.keys % kPageSize;
            for (std::int64_t i = 0; i < kLayers; ++i) {
                const std::vector<std::uint16_t> values(kTokenWidth, value_of(sequence.id, i));
                layers_[static_cast<std::size_t>(i)].values.upload(
                    values.data(), kTokenWidth * 2, static_cast<std::size_t>(token * kTokenWidth) * 2);
            }
        }
    }

    void check(const std::vector<std::int32_t>& starts) {
        std::vector<std::uint16_t> rows(static_cast<std::size_t>(starts.back() * kRowWidth));
        for (std::int64_t i = 0; i < kLayers; ++i) {
            layers_[static_cast<std::size_t>(i)].results.download(rows.data(), rows.size() * 2);
            for (std::size_t b = 0; b < running_.size(); ++b) {
                const std::uint16_t wanted = value_of(running_[b].id, i);
                wrong_ += std::any_of(rows.begin() + starts[b] * kRowWidth,
                                      rows.begin() + starts[b + 1] * kRowWidth,
                                      [&](std::uint16_t value) { return value != wanted; });
            }
        }
    }

    // Sequences leave; their pages and slots are the next ones'.
    void retire() {
        std::erase_if(running_, [&](const Sequence& sequence) {
            if (sequence.keys < sequence.end) return false;
            free_pages_.insert(free_pages_.end(), sequence.pages.begin(), sequence.pages.end());
            free_slots_.push_back(sequence.slot);
            return true;
        });
    }

    as::Runtime runtime_;
    // Every kernel that any step can want, compiled or from the cache: no request waits for one later.
    const as::KernelSet set_ = runtime_.prepare_set({.head_dim_qk = kHeadDim,
                                                     .q_heads = kHeads,
                                                     .kv_heads = kKvHeads,
                                                     .mask = as::Mask::causal,
                                                     .kv = as::KvStorage::paged,
                                                     .page_size = kPageSize});
    const cuda::Stream stream_{set_.device()};
    as::Buffer workspace_ = runtime_.allocate_workspace(
        set_.workspace_bytes({.batch = kSlots, .q_tokens = kSlots * kChunk, .max_kv_len = kLongest}));
    as::Buffer queries_ = runtime_.allocate(kSlots * kChunk * kRowWidth * 2);
    as::Buffer starts_ = runtime_.allocate((kSlots + 1) * 4), lengths_ = runtime_.allocate(kSlots * 4);
    as::Buffer rows_ = runtime_.allocate(kSlots * 4), table_ = runtime_.allocate(kSlots * kPagesEach * 4);
    std::vector<Layer> layers_{};
    std::map<std::pair<const as::Kernel*, std::int64_t>, std::optional<cuda::Graph>> graphs_{};

    std::deque<Sequence> waiting_{};
    std::vector<Sequence> running_{};
    std::vector<std::int32_t> free_pages_ = std::vector<std::int32_t>(kPages);
    std::vector<std::int32_t> free_slots_ = std::vector<std::int32_t>(kSlots);
    int steps_ = 0, wrong_ = 0;
};

}  // namespace

int main() {
    try {
        Engine().serve();
    } catch (const std::exception& error) {
        std::cerr << error.what() << "\n";
        return 1;
    }
}
