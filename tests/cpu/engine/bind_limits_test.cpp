// What a bind refuses beyond its tensors: more CTAs than a grid has.
#include "engine/fake_runtime.hpp"
#include "engine/runtime_impl.hpp"
#include "planner/launch.hpp"
#include "problem/expect.hpp"

using namespace attnsmith;
using attnsmith::test::contains;
using attnsmith::test::fake;
using attnsmith::test::fake_options;
using attnsmith::test::refused;

namespace {

// Tensors of many gigabytes, that are apart.
Tensor huge(int place, DType dtype, std::initializer_list<std::int64_t> shape) {
    return Tensor::contiguous(reinterpret_cast<void*>(static_cast<std::uintptr_t>(place) << 48), dtype,
                              shape);
}

}  // namespace

TEST_CASE("a batch of more CTAs than a grid has is not bound", "[engine][limits]") {
    Runtime runtime(fake_options());
    constexpr std::int64_t kHeads = 4096, kBatch = 1 << 20;
    const Kernel kernel = runtime.prepare({.head_dim_qk = 64, .q_heads = kHeads}, {64, 1, 512});
    const auto bind = [&](std::int64_t batch) {
        return kernel.bind({.q = huge(1, DType::bf16, {batch, 1, kHeads, 64}),
                            .k = huge(2, DType::bf16, {batch, 8, kHeads, 64}),
                            .v = huge(3, DType::bf16, {batch, 8, kHeads, 64}),
                            .o = huge(4, DType::bf16, {batch, 1, kHeads, 64})},
                           {});
    };
    const InvalidRequest error = refused([&] { bind(kBatch); });
    CHECK(error.field() == "batch");
    CHECK(contains(error.value(), std::to_string(kBatch * kHeads)));
    CHECK_NOTHROW(bind(kBatch / 2 - 1));
}

TEST_CASE("a merge of more CTAs than a grid has is not bound", "[engine][limits]") {
    RuntimeOptions options = fake_options();
    options.nvrtc_path = ATTNSMITH_FAKE_NVRTC;
    Runtime runtime(options);
    constexpr std::int64_t kHeads = 65536;
    const Kernel kernel = runtime.prepare({.op = Op::merge, .head_dim_vo = 256, .q_heads = kHeads}, {});
    const auto bind = [&](std::int64_t tokens) {
        return kernel.bind(MergeTensors{.o_states = {huge(1, DType::bf16, {tokens, kHeads, 256})},
                                        .lse_states = {huge(2, DType::fp32, {tokens, kHeads})},
                                        .o = huge(3, DType::bf16, {tokens, kHeads, 256})});
    };
    const std::int64_t most = planner::kMostCtas * 4 / kHeads;
    CHECK(refused([&] { bind(most + 1); }).field() == "q_tokens");
    CHECK_NOTHROW(bind(most));
}
