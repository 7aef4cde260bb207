// Decodes one token for each of four sequences over a paged KV cache: prepared once, bound once, launched at
// each step. Lengths and the page table are on the device, so the same call, or a CUDA graph that captured
// it, serves every step.
#include <algorithm>
#include <attnsmith/attnsmith.hpp>
#include <cstdint>
#include <iostream>
#include <numeric>
#include <vector>

namespace as = attnsmith;

namespace {

constexpr std::int64_t kBatch = 4, kQueryHeads = 32, kKvHeads = 8, kHeadDim = 128;
constexpr std::int64_t kPageSize = 16, kPagesEach = 64, kPages = kBatch * kPagesEach;
constexpr std::uint16_t kOne = 0x3f80;  // 1.0 in bf16

template <typename Value>
as::Buffer upload(const as::Runtime& runtime, const std::vector<Value>& values) {
    as::Buffer buffer = runtime.allocate(values.size() * sizeof(Value));
    buffer.upload(values.data(), buffer.bytes());
    return buffer;
}

void decode() {
    as::Runtime runtime;
    const as::Kernel kernel =
        runtime.prepare({.head_dim_qk = kHeadDim,
                         .q_heads = kQueryHeads,
                         .kv_heads = kKvHeads,
                         .kv = as::KvStorage::paged,
                         .page_size = kPageSize},
                        {.batch = kBatch, .q_len = 1, .kv_len = kPagesEach * kPageSize});

    // An engine has these already. Here all queries, keys and values are 1, so that the result is 1 as well.
    const std::vector<std::uint16_t> ones(kBatch * kQueryHeads * kHeadDim, kOne);
    const std::vector<std::uint16_t> full_cache(kPages * kPageSize * kKvHeads * kHeadDim, kOne);
    std::vector<std::int32_t> pages(kPages);  // sequence b has the pages b * kPagesEach and on
    std::iota(pages.begin(), pages.end(), 0);
    const as::Buffer queries = upload(runtime, ones);
    const as::Buffer keys = upload(runtime, full_cache);
    const as::Buffer values = upload(runtime, full_cache);
    const as::Buffer table = upload(runtime, pages);
    as::Buffer lengths = upload(runtime, std::vector<std::int32_t>{1000, 17, 1, 512});
    const as::Buffer results = runtime.allocate(queries.bytes());

    const auto cache = [](const as::Buffer& buffer) {
        return as::Tensor::contiguous(buffer.data(), as::DType::bf16,
                                      {kPages, kPageSize, kKvHeads, kHeadDim});
    };
    const as::Tensor q =
        as::Tensor::contiguous(queries.data(), as::DType::bf16, {kBatch, 1, kQueryHeads, kHeadDim});
    const as::Tensor o =
        as::Tensor::contiguous(results.data(), as::DType::bf16, {kBatch, 1, kQueryHeads, kHeadDim});
    const as::Call call = kernel.bind(
        {.q = q, .k = cache(keys), .v = cache(values), .o = o},
        {.kv_lens = as::Tensor::contiguous(lengths.data(), as::DType::int32, {kBatch}),
         .page_table = as::Tensor::contiguous(table.data(), as::DType::int32, {kBatch, kPagesEach})});
    call.launch();
    lengths.upload(std::vector<std::int32_t>{1001, 18, 2, 513}.data(), lengths.bytes());  // a token later
    call.launch();
    call.synchronize();

    std::vector<std::uint16_t> decoded(ones.size());
    results.download(decoded.data(), results.bytes());
    const bool right =
        std::all_of(decoded.begin(), decoded.end(), [](std::uint16_t value) { return value == kOne; });
    std::cout << "launched " << call.describe() << " twice; the results are "
              << (right ? "right\n" : "wrong\n");
    if (call.status()) std::cout << "a length or a page was out of range\n";
}

}  // namespace

int main() {
    try {
        decode();
    } catch (const as::Error& error) {
        std::cerr << error.what() << "\n";
        return 1;
    }
}
