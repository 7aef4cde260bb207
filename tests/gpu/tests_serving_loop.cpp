// A serving engine's loop: sequences join and leave, their pages are used again, prefills in chunks run
// beside decodes, and batch rows come in another order at every step. All of it by graphs that were captured
// once: what changes from step to step is memory on the device.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>

#include "catalogue.hpp"
#include "check/random.hpp"
#include "check/small_floats.hpp"
#include "check/tolerance.hpp"
#include "cuda_driver.hpp"

namespace attnsmith::gpu_tests {
namespace {

using check::Random;

constexpr std::int64_t kSlots = 32, kHeads = 8, kKvHeads = 2, kDim = 64;
constexpr std::int64_t kPageSize = 16, kPagesEach = 48, kLongest = kPageSize * kPagesEach;
constexpr std::int64_t kPages = kSlots * kPagesEach / 2;  // less than all slots could want
constexpr std::int64_t kChunk = 64, kTokens = 256;        // queries of one sequence, and of a step
constexpr std::int64_t kKeyWidth = kKvHeads * kDim, kQueryWidth = kHeads * kDim;
constexpr int kSteps = 1000;
constexpr DType kType = DType::bf16;
using Bits = std::vector<std::uint16_t>;

struct Sequence {
    std::int64_t prompt = 0, end = 0;  // tokens to prefill, and at which it leaves; 0: the slot is free
    std::int64_t keys = 0;             // in the cache
    std::vector<std::int64_t> pages{};
};

// Queries of a slot in a step, which see the keys that are there then.
struct Turn {
    std::size_t slot;
    std::int64_t queries;
};

class Loop {
  public:
    explicit Loop(const Context& context)
        : runtime_(context.runtime), random_(context.seed), slots_(static_cast<std::size_t>(kSlots)) {
        free_pages_.resize(static_cast<std::size_t>(kPages));
        std::iota(free_pages_.begin(), free_pages_.end(), 0);
        random_.shuffle(free_pages_);
        k_.assign(static_cast<std::size_t>(kPages * kPageSize * kKeyWidth), kNan);
        v_ = k_;
        device_k_.upload(k_.data(), k_.size() * 2);
        device_v_.upload(v_.data(), v_.size() * 2);
        capture();
    }

    std::string run() {
        for (int step = 0; step < kSteps; ++step) {
            admit();
            const std::vector<Turn> turns = plan_turns();
            append_keys(turns);
            send(turns);
            graphs_[static_cast<std::size_t>(step) % graphs_.size()]->launch(stream_);
            stream_.synchronize();
            if (std::string what = check_rows(turns); !what.empty())
                return fmt::format("step {}: {}", step, what);
            retire();
        }
        for (const Call& call : calls_)
            if (call.status()) return "the status is not clean";
        return left_ > 50 ? std::string() : fmt::format("only {} sequences left", left_);
    }

  private:
    static constexpr std::uint16_t kNan = 0xffff;

    // One graph for each kernel of the set, bound to the bounds of all steps.
    void capture() {
        AttentionSpec spec = attention(kType, kDim, kHeads, kKvHeads).spec;
        spec.mask = Mask::causal;
        spec.kv = KvStorage::paged;
        spec.page_size = kPageSize;
        const KernelSet set = runtime_.prepare_set(spec);
        workspace_ = runtime_.allocate(set.workspace_bytes({kSlots, kTokens, kLongest}));
        workspace_.upload(std::vector<std::byte>(kWorkspaceZeroedBytes).data(), kWorkspaceZeroedBytes);
        const auto tensor = [](const Buffer& buffer, DType dtype, std::initializer_list<std::int64_t> shape) {
            return Tensor::contiguous(buffer.data(), dtype, shape);
        };
        const AttentionTensors tensors{.q = tensor(device_q_, kType, {kTokens, kHeads, kDim}),
                                       .k = tensor(device_k_, kType, {kPages, kPageSize, kKvHeads, kDim}),
                                       .v = tensor(device_v_, kType, {kPages, kPageSize, kKvHeads, kDim}),
                                       .o = tensor(device_o_, kType, {kTokens, kHeads, kDim})};
        const Batch batch{.q_indptr = tensor(device_indptr_, DType::int32, {kSlots + 1}),
                          .kv_lens = tensor(device_lens_, DType::int32, {kSlots}),
                          .page_table = tensor(device_table_, DType::int32, {kSlots, kPagesEach}),
                          .table_rows = tensor(device_rows_, DType::int32, {kSlots}),
                          .max_q_len = kChunk,
                          .max_kv_len = kLongest};
        for (const Kernel& kernel : set.kernels()) {
            const Call& call =
                calls_.emplace_back(kernel.bind(tensors, batch, {workspace_.data(), workspace_.bytes()}));
            graphs_.push_back(std::make_unique<CapturedGraph>(stream_, [&] { call.launch(stream_.get()); }));
        }
    }

    // Sequences join as long as there are slots, and pages for all that they may become.
    void admit() {
        for (Sequence& sequence : slots_) {
            if (sequence.end > 0 || random_.uniform() < 0.3) continue;
            const std::int64_t prompt = random_.integer(1, 400),
                               end = prompt + random_.integer(1, kLongest - 400);
            const auto pages = static_cast<std::size_t>((end + kPageSize - 1) / kPageSize);
            if (pages > free_pages_.size()) continue;
            sequence = {
                prompt, end, 0, {free_pages_.end() - static_cast<std::ptrdiff_t>(pages), free_pages_.end()}};
            free_pages_.resize(free_pages_.size() - pages);
            for (std::size_t i = 0; i < pages; ++i)
                put(device_table_, static_cast<std::int32_t>(sequence.pages[i]),
                    (&sequence - slots_.data()) * kPagesEach + static_cast<std::int64_t>(i));
        }
    }

    // What each sequence does: a chunk of its prompt, as far as the step has room, or one token.
    std::vector<Turn> plan_turns() {
        std::vector<std::size_t> order(slots_.size());
        std::iota(order.begin(), order.end(), 0);
        random_.shuffle(order);
        std::vector<Turn> turns;
        std::int64_t room = kTokens;
        for (const std::size_t slot : order) {
            const Sequence& sequence = slots_[slot];
            const std::int64_t left = sequence.prompt - sequence.keys;
            std::int64_t queries = sequence.end == 0 ? 0
                                   : left > 0        ? std::min(left, random_.integer(1, kChunk))
                                                     : 1;
            if (random_.uniform() < 0.05) queries = 0;  // it is passed over, and stays as it is
            queries = std::min(queries, room);
            room -= queries;
            turns.push_back({slot, queries});
        }
        return turns;
    }

    void append_keys(const std::vector<Turn>& turns) {
        for (const Turn& turn : turns) {
            Sequence& sequence = slots_[turn.slot];
            for (std::int64_t i = 0; i < turn.queries; ++i, ++sequence.keys) {
                const std::int64_t at = place(sequence, sequence.keys);
                write(k_, device_k_, at);
                write(v_, device_v_, at);
            }
        }
    }

    // The first element of a token's keys.
    static std::int64_t place(const Sequence& sequence, std::int64_t token) {
        return (sequence.pages[static_cast<std::size_t>(token / kPageSize)] * kPageSize + token % kPageSize) *
               kKeyWidth;
    }

    void write(Bits& bits, Buffer& device, std::int64_t at) {
        for (std::int64_t i = 0; i < kKeyWidth; ++i)
            bits[static_cast<std::size_t>(at + i)] = check::encode(kType, random_.uniform(-2, 2));
        device.upload(&bits[static_cast<std::size_t>(at)], kKeyWidth * 2, static_cast<std::size_t>(at) * 2);
    }

    static void put(Buffer& device, std::int32_t value, std::int64_t at) {
        device.upload(&value, sizeof value, static_cast<std::size_t>(at) * sizeof value);
    }

    void send(const std::vector<Turn>& turns) {
        std::vector<std::int32_t> indptr = {0}, lens, rows;
        for (const Turn& turn : turns) {
            const bool has_turn = turn.queries > 0;
            indptr.push_back(indptr.back() + static_cast<std::int32_t>(turn.queries));
            lens.push_back(has_turn ? static_cast<std::int32_t>(slots_[turn.slot].keys) : 0);
            rows.push_back(static_cast<std::int32_t>(turn.slot));
        }
        q_.resize(static_cast<std::size_t>(indptr.back() * kQueryWidth));
        for (std::uint16_t& x : q_) x = check::encode(kType, random_.uniform(-2, 2));
        const auto upload = [](Buffer& buffer, const auto& values) {
            if (!values.empty()) buffer.upload(values.data(), values.size() * sizeof values[0]);
        };
        upload(device_q_, q_);
        upload(device_indptr_, indptr);
        upload(device_lens_, lens);
        upload(device_rows_, rows);
        upload(device_o_, Bits(static_cast<std::size_t>(kTokens * kQueryWidth), kNan));
        indptr_ = std::move(indptr);
    }

    // A few rows drawn at random against fp64, and that nothing was written behind the last row.
    std::string check_rows(const std::vector<Turn>& turns) {
        Bits o(static_cast<std::size_t>(kTokens * kQueryWidth));
        device_o_.download(o.data(), o.size() * 2);
        const auto used = static_cast<std::ptrdiff_t>(indptr_.back()) * kQueryWidth;
        if (std::any_of(o.begin() + used, o.end(), [](std::uint16_t x) { return x != kNan; }))
            return "rows of no sequence were written";
        for (int n = 0; n < 4; ++n) {
            const auto b = static_cast<std::size_t>(random_.integer(0, kSlots - 1));
            if (turns[b].queries == 0) continue;
            const std::int64_t query = random_.integer(0, turns[b].queries - 1),
                               head = random_.integer(0, kHeads - 1);
            const std::int64_t row = (indptr_[b] + query) * kQueryWidth + head * kDim;
            if (std::string what =
                    check_row(slots_[turns[b].slot], turns[b].queries - 1 - query, head,
                              &q_[static_cast<std::size_t>(row)], &o[static_cast<std::size_t>(row)]);
                !what.empty())
                return fmt::format("slot {}, query {} of {}, head {}: {}", turns[b].slot, query,
                                   turns[b].queries, head, what);
        }
        return {};
    }

    // `behind`: queries of the sequence that come after this one.
    std::string check_row(const Sequence& sequence, std::int64_t behind, std::int64_t head,
                          const std::uint16_t* q, const std::uint16_t* o) const {
        const std::int64_t keys = sequence.keys - behind, offset = head / (kHeads / kKvHeads) * kDim;
        const auto value = [](std::uint16_t bits) { return check::decode(kType, bits); };
        std::vector<double> weights;
        for (std::int64_t key = 0; key < keys; ++key) {
            const std::uint16_t* const k = &k_[static_cast<std::size_t>(place(sequence, key) + offset)];
            double logit = 0;
            for (std::int64_t i = 0; i < kDim; ++i) logit += value(q[i]) * value(k[i]);
            weights.push_back(logit / std::sqrt(static_cast<double>(kDim)));
        }
        const double top = *std::ranges::max_element(weights);
        double sum = 0;
        for (double& weight : weights) sum += weight = std::exp(weight - top);
        const check::Tolerance tolerance = check::output_tolerance(kType);
        for (std::int64_t i = 0; i < kDim; ++i) {
            double want = 0;
            for (std::int64_t key = 0; key < keys; ++key)
                want += weights[static_cast<std::size_t>(key)] / sum *
                        value(v_[static_cast<std::size_t>(place(sequence, key) + offset + i)]);
            if (!(std::abs(value(o[i]) - want) <= tolerance.allowed(want)))
                return fmt::format("column {} of {} keys is {}, not {}", i, keys, value(o[i]), want);
        }
        return {};
    }

    // Sequences leave. Their pages become NaN: whoever reads them still is found out.
    void retire() {
        for (Sequence& sequence : slots_) {
            if (sequence.end == 0 || sequence.keys < sequence.end) continue;
            for (const std::int64_t page : sequence.pages) {
                const auto at = static_cast<std::size_t>(page * kPageSize * kKeyWidth);
                for (auto& [bits, device] : {std::pair<Bits&, Buffer&>{k_, device_k_}, {v_, device_v_}}) {
                    std::fill_n(bits.begin() + static_cast<std::ptrdiff_t>(at), kPageSize * kKeyWidth, kNan);
                    device.upload(&bits[at], kPageSize * kKeyWidth * 2, at * 2);
                }
            }
            free_pages_.insert(free_pages_.end(), sequence.pages.begin(), sequence.pages.end());
            random_.shuffle(free_pages_);
            sequence = {};
            ++left_;
        }
    }

    Runtime& runtime_;
    Random random_;
    const CurrentContext current_;
    const TestStream stream_;
    std::vector<Sequence> slots_;
    std::vector<std::int64_t> free_pages_;
    Bits k_, v_, q_;
    std::vector<std::int32_t> indptr_;
    Buffer device_k_ = runtime_.allocate(kPages * kPageSize * kKeyWidth * 2);
    Buffer device_v_ = runtime_.allocate(kPages * kPageSize * kKeyWidth * 2);
    Buffer device_q_ = runtime_.allocate(kTokens * kQueryWidth * 2);
    Buffer device_o_ = runtime_.allocate(kTokens * kQueryWidth * 2);
    Buffer device_indptr_ = runtime_.allocate((kSlots + 1) * 4), device_lens_ = runtime_.allocate(kSlots * 4);
    Buffer device_rows_ = runtime_.allocate(kSlots * 4);
    Buffer device_table_ = runtime_.allocate(kSlots * kPagesEach * 4);
    Buffer workspace_;
    std::vector<Call> calls_;
    std::vector<std::unique_ptr<CapturedGraph>> graphs_;
    int left_ = 0;
};

}  // namespace

void add_serving_loop(Catalogue& catalogue) {
    add(catalogue, "serving", fmt::format("{} steps of continuous batching", kSteps),
        [](const Context& context) { return Loop(context).run(); });
}

}  // namespace attnsmith::gpu_tests
