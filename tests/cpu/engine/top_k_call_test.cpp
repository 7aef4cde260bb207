// A call of op top_k over the stub driver of tests/support/fake_cuda: what is launched with which arguments.
#include <cstring>
#include <string>

#include "abi/top_k_arguments.h"
#include "engine/fake_runtime.hpp"
#include "problem/expect.hpp"

using namespace attnsmith;
using attnsmith::test::at;
using attnsmith::test::fake;
using attnsmith::test::fake_options;
using attnsmith::test::refused;

TEST_CASE("a top_k launches a CTA a row with the tensors that were bound", "[engine][top_k]") {
    fake() = {};
    Runtime runtime(fake_options());
    const Kernel kernel = runtime.prepare({.op = Op::top_k}, {.q_len = 11, .kv_len = 300});
    CHECK(kernel.workspace_bytes({1, 11, 300}) == kWorkspaceZeroedBytes);
    fake().param_bytes = sizeof(abi::TopKArguments);
    TopKTensors tensors{.scores = at(1, DType::fp32, {11, 300}),
                        .row_ends = at(3, DType::int32, {11}),
                        .indices = at(4, DType::int32, {11, 64})};
    tensors.scores.strides[0] = 304;
    const Call call = kernel.bind(tensors);
    CHECK(call.describe().find("top_k fp32: 11 CTAs of 256 threads") == 0);
    call.launch();
    CHECK(fake().launches == 1);
    abi::TopKArguments arguments;
    std::memcpy(&arguments, fake().last_launch.parameter, sizeof arguments);
    CHECK(arguments.scores == tensors.scores.data);
    CHECK(arguments.row_starts == nullptr);
    CHECK(arguments.row_ends == tensors.row_ends.data);
    CHECK(arguments.indices == tensors.indices.data);
    CHECK(arguments.status != nullptr);
    CHECK(arguments.scores_row_stride == 304);
    CHECK(arguments.indices_row_stride == 64);
    CHECK(arguments.columns == 300);
    CHECK(arguments.k == 64);
    CHECK_FALSE(call.status());
    CHECK(refused([&] { call.launch_at(TensorAddresses{}); }).field() == "addresses");
    CHECK(refused([&] { (void)kernel.bind(AttentionTensors{}); }).field() == "op");

    fake().launches = 0;
    tensors = {.scores = at(1, DType::fp32, {0, 300}), .indices = at(4, DType::int32, {0, 64})};
    kernel.bind(tensors).launch();
    CHECK(fake().launches == 0);
}
