// A call of op merge over the stub driver of tests/support/fake_cuda: what is launched with which arguments,
// and what a kernel does not bind.
#include <cstring>

#include "abi/merge_arguments.h"
#include "engine/fake_runtime.hpp"
#include "problem/expect.hpp"

using namespace attnsmith;
using attnsmith::test::at;
using attnsmith::test::fake;
using attnsmith::test::fake_options;
using attnsmith::test::refused;

namespace {

const AttentionSpec kSpec{
    .op = Op::merge, .dtype = DType::bf16, .head_dim_vo = 64, .q_heads = 3, .lse = true};

MergeTensors tensors(std::int64_t tokens) {
    const Tensor wide = at(2, DType::fp32, {tokens, 3, 7});
    return {.o_states = {at(1, DType::bf16, {tokens, 3, 64}),
                         at(3, DType::bf16, {3, tokens, 64}).permute({1, 0, 2})},
            .lse_states = {wide.select(2, 0), wide.select(2, 1)},
            .o = at(4, DType::bf16, {tokens, 3, 64}),
            .lse = at(5, DType::fp32, {tokens, 3})};
}

}  // namespace

TEST_CASE("a merge launches one grid with the tensors that were bound", "[engine][merge]") {
    fake() = {};
    Runtime runtime(fake_options());
    const Kernel kernel = runtime.prepare(kSpec, {1, 33, 1});
    CHECK(kernel.workspace_bytes({1, 33, 1}) == 0);
    fake().param_bytes = sizeof(abi::MergeArguments);
    const int allocations = fake().allocations;
    const MergeTensors bound = tensors(33);
    const Call call = kernel.bind(bound);
    CHECK(call.describe() == "merge states bf16 64: 7 CTAs of 128 threads, 0 bytes of shared memory");
    call.launch();
    CHECK(fake().launches == 1);
    CHECK(fake().allocations == allocations);
    CHECK(fake().last_launch.grid[0] == 7);  // 99 rows, 16 a CTA

    abi::MergeArguments arguments;
    std::memcpy(&arguments, fake().last_launch.parameter, sizeof arguments);
    CHECK(arguments.rows == 99);
    CHECK(arguments.heads == 3);
    CHECK(arguments.states == 2);
    CHECK(arguments.o == bound.o.data);
    CHECK(arguments.lse == bound.lse.data);
    CHECK(arguments.o_token_stride == 192);
    CHECK(arguments.lse_head_stride == 1);
    CHECK(arguments.state[1].o == bound.o_states[1].data);
    CHECK(arguments.state[1].o_token_stride == 64);
    CHECK(arguments.state[1].o_head_stride == 33 * 64);
    CHECK(arguments.state[1].lse == bound.lse_states[1].data);
    CHECK(arguments.state[1].lse_token_stride == 21);
    CHECK(arguments.state[1].lse_head_stride == 7);
    CHECK(arguments.state[2].o == nullptr);

    CHECK_FALSE(call.status());
    CHECK_NOTHROW(call.clear_status());
}

TEST_CASE("a merge of no tokens launches nothing", "[engine][merge]") {
    fake() = {};
    Runtime runtime(fake_options());
    const Call call = runtime.prepare(kSpec, {}).bind(tensors(0));
    CHECK(call.describe() == "nothing to launch");
    call.launch();
    CHECK(fake().launches == 0);
}

TEST_CASE("a kernel binds the tensors of its own op", "[engine][merge]") {
    fake() = {};
    Runtime runtime(fake_options());
    const Kernel merge = runtime.prepare(kSpec, {});
    CHECK(merge.spec() == kSpec);
    CHECK(refused([&] { (void)merge.bind(AttentionTensors{}, {}); }).field() == "op");
    const Kernel attention = runtime.prepare({.head_dim_qk = 64, .q_heads = 3}, {1, 512, 512});
    const InvalidRequest error = refused([&] { (void)attention.bind(tensors(5)); });
    CHECK(error.field() == "op");
    CHECK(error.value() == "attention");
    CHECK(refused([&] { (void)merge.bind(MergeTensors{}); }).field() == "o_states");
}
