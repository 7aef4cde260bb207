// A call of op append over the stub driver of tests/support/fake_cuda: what is launched with which arguments.
#include <cstring>
#include <string>

#include "abi/append_arguments.h"
#include "engine/fake_runtime.hpp"
#include "problem/expect.hpp"

using namespace attnsmith;
using attnsmith::test::at;
using attnsmith::test::fake;
using attnsmith::test::fake_options;
using attnsmith::test::refused;

namespace {

const AttentionSpec kSpec{.op = Op::append,
                          .head_dim_qk = 128,
                          .q_heads = 32,
                          .kv_heads = 8,
                          .kv = KvStorage::paged,
                          .page_order = PageOrder::HND,
                          .page_size = 16,
                          .rope = Rope::half,
                          .k_norm = true};

// `apart`: how many times farther from each other they are, for the rows of many tokens.
AppendTensors tensors(std::int64_t tokens, int apart = 0) {
    const Tensor rows = at(1, DType::bf16, {tokens, 48, 128});
    return {.q = rows.slice(1, 0, 32),
            .k = rows.slice(1, 32, 40),
            .v = rows.slice(1, 40, 48),
            .q_out = at((apart + 1) * 2, DType::bf16, {tokens, 32, 128}),
            .k_cache = at((apart + 1) * 3, DType::bf16, {9, 8, 16, 128}),
            .v_cache = at((apart + 1) * 4, DType::bf16, {9, 8, 16, 128}),
            .slot_mapping = at((apart + 1) * 5, DType::int64, {tokens}),
            .positions = at((apart + 1) * 6, DType::int32, {tokens}),
            .rope_table = at((apart + 1) * 7, DType::bf16, {500, 128}),
            .k_norm_weight = at((apart + 1) * 8, DType::fp32, {128})};
}

}  // namespace

TEST_CASE("an append launches one grid with the tensors that were bound", "[engine][append]") {
    fake() = {};
    Runtime runtime(fake_options());
    const Kernel kernel = runtime.prepare(kSpec, {});
    CHECK(kernel.workspace_bytes({1, 64, 1}) == kWorkspaceZeroedBytes);
    fake().param_bytes = sizeof(abi::AppendArguments);
    const AppendTensors bound = tensors(64);
    const Call call = kernel.bind(bound);
    // Four heads a warp where a lane rotates both halves, two of v: 8 + 2 + 4 of each token.
    CHECK(call.describe() ==
          "append bf16 128x128 paged to bf16 mapping rope half 128 norm k: 224 CTAs of 128 threads, 0 bytes "
          "of shared "
          "memory");
    call.launch();
    CHECK(fake().launches == 1);

    abi::AppendArguments arguments;
    std::memcpy(&arguments, fake().last_launch.parameter, sizeof arguments);
    CHECK(arguments.items == 64 * 14);
    CHECK(arguments.pieces.value == 14);
    CHECK(arguments.q.source == bound.q.data);
    CHECK(arguments.q.target == bound.q_out.data);
    CHECK(arguments.k.source_token_stride == 48 * 128);
    CHECK(arguments.k.target == bound.k_cache.data);
    CHECK(arguments.k.target_sequence_stride == 8 * 16 * 128);
    CHECK(arguments.k.target_head_stride == 16 * 128);
    CHECK(arguments.k.target_token_stride == 128);
    CHECK(arguments.k.weight == bound.k_norm_weight.data);
    CHECK(arguments.q.weight == nullptr);
    CHECK(arguments.slots == 9 * 16);
    CHECK(arguments.slots_are_64 == 1);
    CHECK(arguments.positions_are_64 == 0);
    CHECK(arguments.rope_is_fp32 == 0);
    CHECK(arguments.rope_positions == 500);
    CHECK(arguments.batch.status != nullptr);
    CHECK_FALSE(call.status());
    CHECK(refused([&] { call.launch_at(TensorAddresses{}); }).field() == "addresses");
}

TEST_CASE("a large append takes more heads a warp", "[engine][append]") {
    fake() = {};
    Runtime runtime(fake_options());
    const Kernel kernel = runtime.prepare(kSpec, {});
    fake().param_bytes = sizeof(abi::AppendArguments);
    kernel.bind(tensors(1024)).launch();
    abi::AppendArguments arguments;
    std::memcpy(&arguments, fake().last_launch.parameter, sizeof arguments);
    CHECK(arguments.q.steps == 2);
    CHECK(arguments.q.pieces == 4);
    CHECK(arguments.k.pieces == 1);
    CHECK(arguments.items == 1024 * 6);
    kernel.bind(tensors(3000, 1000)).launch();
    std::memcpy(&arguments, fake().last_launch.parameter, sizeof arguments);
    CHECK(arguments.q.steps == 8);
    CHECK(arguments.items == 3000 * 3);
}

TEST_CASE("slots are compared by warps behind those that write", "[engine][append]") {
    fake() = {};
    Runtime runtime(fake_options());
    AttentionSpec spec = kSpec;
    spec.check_slots = true;
    const Kernel kernel = runtime.prepare(spec, {});
    CHECK(kernel.workspace_bytes({1, 64, 1}) == kWorkspaceZeroedBytes);
    fake().param_bytes = sizeof(abi::AppendArguments);
    const Call call = kernel.bind(tensors(641));
    abi::AppendArguments arguments;
    const auto launch = [&](const Call& launched) {
        launched.launch();
        std::memcpy(&arguments, fake().last_launch.parameter, sizeof arguments);
    };
    launch(call);
    // 641 tokens are 6 tiles of 128, and each is compared with itself and with the 3 behind it.
    CHECK(arguments.slot_tiles == 6);
    CHECK(arguments.slot_pairs.value == 4);
    CHECK(test::contains(call.describe(), "check_slots"));
    CHECK(test::contains(call.describe(), std::to_string((arguments.items + 24 + 3) / 4) + " CTAs"));

    AppendTensors queries = tensors(641);
    queries.k = queries.v = queries.k_cache = queries.v_cache = queries.k_norm_weight = {};
    launch(kernel.bind(queries));  // which nobody writes to a slot
    CHECK(arguments.slot_tiles == 0);
    launch(runtime.prepare(kSpec, {}).bind(tensors(641)));
    CHECK(arguments.slot_tiles == 0);
}

TEST_CASE("an append of no tokens launches nothing, and binds its own op's tensors", "[engine][append]") {
    fake() = {};
    Runtime runtime(fake_options());
    const Kernel kernel = runtime.prepare(kSpec, {});
    const Call call = kernel.bind(tensors(0));
    CHECK(call.describe() == "nothing to launch");
    call.launch();
    CHECK(fake().launches == 0);
    CHECK(refused([&] { (void)kernel.bind(AttentionTensors{}, {}); }).field() == "op");
    AppendTensors over = tensors(5);
    CHECK(refused([&] {
              (void)kernel.bind(over, {}, Workspace{over.k_cache.data, kWorkspaceZeroedBytes});
          }).field() == "workspace.data");
}
