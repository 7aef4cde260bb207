// Each op once, as the layers of a model use them: new tokens are appended to a paged cache of 8-bit floats
// and attended to; two partial results are merged; latents are attended to; the largest scores of an indexer
// are selected. Inputs are zeros: the program shows which tensors each op takes, and as which views.
#include <attnsmith/attnsmith.hpp>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iostream>
#include <numeric>
#include <utility>
#include <vector>

namespace as = attnsmith;

namespace {

constexpr std::int64_t kTokens = 2, kHeads = 8, kKvHeads = 2, kHeadDim = 128;  // a token of each sequence
constexpr std::int64_t kPageSize = 16, kPagesEach = 4, kPages = kTokens * kPagesEach;

// Tensors with memory of their own.
class Memory {
  public:
    explicit Memory(const as::Runtime& runtime) : runtime_(runtime) {}

    as::Tensor zeros(as::DType dtype, std::initializer_list<std::int64_t> shape) {
        const as::Tensor sized = as::Tensor::contiguous(nullptr, dtype, shape);
        const auto bytes = static_cast<std::size_t>(sized.elements() * as::size_of(dtype));
        return as::Tensor::contiguous(keep(std::vector<std::byte>(bytes)), dtype, shape);
    }

    template <typename Value>
    as::Tensor of(as::DType dtype, const std::vector<Value>& values,
                  std::initializer_list<std::int64_t> shape) {
        return as::Tensor::contiguous(keep(values), dtype, shape);
    }

  private:
    template <typename Value>
    void* keep(const std::vector<Value>& values) {
        as::Buffer& buffer = buffers_.emplace_back(runtime_.allocate(values.size() * sizeof(Value)));
        buffer.upload(values.data(), buffer.bytes());
        return buffer.data();
    }

    const as::Runtime& runtime_;
    std::vector<as::Buffer> buffers_{};
};

// What a program can do about each bit of a status.
void explain(const char* op, as::CallStatus status) {
    if (!status) return;
    std::cout << op << ": " << as::to_string(status) << "\n";
    if (status.q_len_clamped() || status.kv_len_clamped()) std::cout << "  give larger bounds in the Batch\n";
    if (status.page_out_of_range()) std::cout << "  look at the page table\n";
    if (status.workspace_not_zeroed()) std::cout << "  zero the workspace; share it by no two streams\n";
    if (status.scale_not_positive()) std::cout << "  look at k_scale and v_scale\n";
    if (status.slot_out_of_range() || status.position_out_of_range())
        std::cout << "  look at the slots and positions of the new tokens\n";
    if (status.slot_written_twice()) std::cout << "  two tokens have one slot\n";
}

// Launches, and says what the kernels met.
void launch(const char* op, const as::Call& call) {
    call.clear_status();
    call.launch();
    explain(op, call.status());
    std::cout << op << ": " << call.describe() << "\n";
}

// The new keys and values go to the cache, rotated and scaled; then the queries attend to all of it.
void append_and_attend(const as::Runtime& runtime, Memory& memory) {
    const as::Kernel append = runtime.prepare({.op = as::Op::append,
                                               .head_dim_qk = kHeadDim,
                                               .q_heads = kHeads,
                                               .kv_heads = kKvHeads,
                                               .kv = as::KvStorage::paged,
                                               .page_size = kPageSize,
                                               .kv_dtype = as::DType::e4m3,
                                               .kv_scale = as::KvScale::tensor,
                                               .rope = as::Rope::half},
                                              {.batch = kTokens});
    const as::Kernel attention =
        runtime.prepare({.head_dim_qk = kHeadDim,
                         .q_heads = kHeads,
                         .kv_heads = kKvHeads,
                         .kv = as::KvStorage::paged,
                         .page_size = kPageSize,
                         .kv_dtype = as::DType::e4m3,
                         .kv_scale = as::KvScale::tensor},
                        {.batch = kTokens, .q_len = 1, .kv_len = kPagesEach * kPageSize});

    // What one projection gave: the rows of q, k and v of a token, one after another. Views of it are bound.
    const std::int64_t rows = kHeads + 2 * kKvHeads;
    const as::Tensor fused = memory.zeros(as::DType::bf16, {kTokens, rows * kHeadDim}).split(1, rows);
    const as::Tensor q = fused.slice(1, 0, kHeads);
    // Both caches in one tensor [pages, 2, page_size, kv_heads, head_dim], as vLLM has it.
    const as::Tensor cache = memory.zeros(as::DType::uint8, {kPages, 2, kPageSize, kKvHeads, kHeadDim});
    const as::Tensor k_cache = cache.select(1, 0), v_cache = cache.select(1, 1);
    const as::Tensor scale = memory.of(as::DType::fp32, std::vector<float>{0.5f}, {1});
    // The last token of each sequence is the new one: it is at position 16 of its pages.
    const std::vector<std::int64_t> slots = {16, kPagesEach * kPageSize + 16};
    std::vector<std::int32_t> pages(kPages);
    std::iota(pages.begin(), pages.end(), 0);

    launch("append",
           append.bind(as::AppendTensors{
               .q = q,
               .k = fused.slice(1, kHeads, kHeads + kKvHeads),
               .v = fused.slice(1, kHeads + kKvHeads, rows),
               .q_out = q,  // in place
               .k_cache = k_cache,
               .v_cache = v_cache,
               .slot_mapping = memory.of(as::DType::int64, slots, {kTokens}),
               .positions = memory.of(as::DType::int32, std::vector<std::int32_t>{16, 16}, {kTokens}),
               .rope_table = memory.zeros(as::DType::fp32, {kPagesEach * kPageSize, kHeadDim}),
               .k_scale = scale,
               .v_scale = scale}));
    // One query a sequence, as [batch, 1, heads, head_dim].
    const as::Tensor queries = as::Tensor::strided(q.data, q.dtype, {kTokens, 1, kHeads, kHeadDim},
                                                   {q.strides[0], q.strides[0], q.strides[1], q.strides[2]});
    launch(
        "attention",
        attention.bind({.q = queries,
                        .k = k_cache,
                        .v = v_cache,
                        .o = memory.zeros(as::DType::bf16, {kTokens, 1, kHeads, kHeadDim}),
                        .k_scale = scale,
                        .v_scale = scale},
                       {.kv_lens = memory.of(as::DType::int32, std::vector<std::int32_t>{17, 17}, {kTokens}),
                        .page_table = memory.of(as::DType::int32, pages, {kTokens, kPagesEach})}));
}

// Two results over disjoint keys, such as a shared prefix and the rest, become one in place.
void merge(const as::Runtime& runtime, Memory& memory) {
    const as::Kernel kernel = runtime.prepare(
        {.op = as::Op::merge, .head_dim_vo = kHeadDim, .q_heads = kHeads, .lse = true}, {.q_len = kTokens});
    const auto state = [&] { return memory.zeros(as::DType::bf16, {kTokens, kHeads, kHeadDim}); };
    // The log-sum-exps lie by heads; their axes are those of tokens and heads all the same.
    const auto lse = [&] { return memory.zeros(as::DType::fp32, {kHeads, kTokens}).permute({1, 0}); };
    const as::Tensor prefix = state(), prefix_lse = lse();
    launch("merge", kernel.bind(as::MergeTensors{.o_states = {prefix, state()},
                                                 .lse_states = {prefix_lse, lse()},
                                                 .o = prefix,
                                                 .lse = prefix_lse}));
}

// One latent of each token is the keys and the values of all heads.
void attend_to_latents(const as::Runtime& runtime, Memory& memory) {
    constexpr std::int64_t kLatent = 512, kPosition = 64, kKeys = 40;
    const as::Kernel kernel = runtime.prepare({.op = as::Op::mla,
                                               .head_dim_ckv = kLatent,
                                               .head_dim_kpe = kPosition,
                                               .q_heads = kHeads,
                                               .scale = 0.0722},
                                              {.batch = kTokens, .q_len = 1, .kv_len = kKeys});
    launch("mla", kernel.bind({.q = memory.zeros(as::DType::bf16, {kTokens, 1, kHeads, kLatent}),
                               .k = memory.zeros(as::DType::bf16, {kTokens, kKeys, kLatent}),
                               .o = memory.zeros(as::DType::bf16, {kTokens, 1, kHeads, kLatent}),
                               .q_pe = memory.zeros(as::DType::bf16, {kTokens, 1, kHeads, kPosition}),
                               .kpe = memory.zeros(as::DType::bf16, {kTokens, kKeys, kPosition})}));
}

// The 16 best of 100 keys for each query.
void select(const as::Runtime& runtime, Memory& memory) {
    const as::Kernel kernel = runtime.prepare({.op = as::Op::top_k}, {.q_len = kTokens, .kv_len = 100});
    launch("top_k", kernel.bind(as::TopKTensors{.scores = memory.zeros(as::DType::fp32, {kTokens, 100}),
                                                .indices = memory.zeros(as::DType::int32, {kTokens, 16})}));
}

}  // namespace

int main() {
    try {
        const as::Runtime runtime;
        Memory memory(runtime);
        append_and_attend(runtime, memory);
        merge(runtime, memory);
        attend_to_latents(runtime, memory);
        select(runtime, memory);
    } catch (const as::Error& error) {
        std::cerr << error.what() << "\n";
        return 1;
    }
}
