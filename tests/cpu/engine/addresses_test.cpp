// Launches of one call with other addresses than those that were bound, over the stub driver.
#include <chrono>
#include <cstring>
#include <string>

#include "abi/attention_persistent.h"
#include "counted_allocations.hpp"
#include "engine/fake_runtime.hpp"
#include "problem/expect.hpp"

using namespace attnsmith;
using attnsmith::test::arguments_of;
using attnsmith::test::at;
using attnsmith::test::contains;
using attnsmith::test::fake;
using attnsmith::test::fake_options;
using attnsmith::test::launch_of;
using attnsmith::test::refused;

namespace {

AttentionTensors tensors(std::int64_t q_len, std::int64_t kv_len) {
    return {.q = at(1, DType::bf16, {2, q_len, 32, 128}),
            .k = at(2, DType::bf16, {2, kv_len, 8, 128}),
            .v = at(3, DType::bf16, {2, kv_len, 8, 128}),
            .o = at(4, DType::bf16, {2, q_len, 32, 128})};
}

const AttentionSpec kSpec{.dtype = DType::bf16, .head_dim_qk = 128, .q_heads = 32, .kv_heads = 8};

// One for all test cases, so that each kernel is compiled once.
Runtime& shared_runtime() {
    static Runtime runtime(fake_options());
    return runtime;
}

// An address of its own.
void* place(int number) { return at(number, DType::bf16, {1}).data; }

std::uint64_t mapped(const abi::TensorMap& words) {
    fake_cuda_tensor_map map;
    std::memcpy(&map, &words, sizeof map);
    return map.address;
}

template <class Arguments>
Arguments last_arguments() {
    Arguments arguments;
    std::memcpy(static_cast<void*>(&arguments), fake().last_launch.parameter, sizeof arguments);
    return arguments;
}

// The refusal of a launch with these addresses, "field: got; expected", with nothing launched.
InvalidRequest refusal(const Call& call, const TensorAddresses& addresses) {
    const int before = fake().launches;
    const InvalidRequest error = refused([&] { call.launch_at(addresses); });
    CHECK(fake().launches == before);
    return error;
}

}  // namespace

TEST_CASE("a call is launched for another layer by its addresses", "[engine]") {
    fake() = {};
    Runtime& runtime = shared_runtime();
    AttentionSpec spec = kSpec;
    spec.lse = spec.sink = spec.alibi = true;
    const Kernel kernel = runtime.prepare(spec, {2, 1, 1000});
    AttentionTensors bound = tensors(1, 1000);
    bound.lse = at(5, DType::fp32, {2, 1, 32});
    bound.sinks = at(6, DType::fp32, {32});
    bound.alibi_slopes = at(7, DType::fp32, {32});
    fake().param_bytes = sizeof(abi::AttentionArguments);
    const Call call = kernel.bind(bound, {});
    call.launch();
    const auto as_bound = last_arguments<abi::AttentionArguments>();

    call.launch_at({.q = place(11),
                    .k = place(12),
                    .v = place(13),
                    .o = place(14),
                    .lse = static_cast<float*>(place(15)),
                    .sinks = static_cast<const float*>(place(16)),
                    .alibi_slopes = static_cast<const float*>(place(17))});
    auto moved = last_arguments<abi::AttentionArguments>();
    CHECK(moved.q == place(11));
    CHECK(moved.k == place(12));
    CHECK(moved.v == place(13));
    CHECK(moved.o == place(14));
    CHECK(moved.lse == place(15));
    CHECK(moved.sinks == place(16));
    CHECK(moved.alibi_slopes == place(17));
    moved.q = as_bound.q, moved.k = as_bound.k, moved.v = as_bound.v, moved.o = as_bound.o;
    moved.lse = as_bound.lse, moved.sinks = as_bound.sinks, moved.alibi_slopes = as_bound.alibi_slopes;
    CHECK(std::memcmp(&moved, &as_bound, sizeof moved) == 0);

    call.launch_at({.k = place(12)});
    moved = last_arguments<abi::AttentionArguments>();
    CHECK(moved.k == place(12));
    CHECK(moved.v == place(3));
    call.launch();  // nothing is left of it
    moved = last_arguments<abi::AttentionArguments>();
    CHECK(std::memcmp(&moved, &as_bound, sizeof moved) == 0);
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
TEST_CASE("the old name of launch_at() launches at the addresses, too", "[engine]") {
    fake() = {};
    const Kernel kernel = shared_runtime().prepare(kSpec, {2, 1, 1000});
    fake().param_bytes = sizeof(abi::AttentionArguments);
    const Call call = kernel.bind(tensors(1, 1000), {});
    call.launch(TensorAddresses{.k = place(12)});
    CHECK(last_arguments<abi::AttentionArguments>().k == place(12));
}
#pragma GCC diagnostic pop

TEST_CASE("tensor maps follow the addresses of a launch", "[engine][wgmma]") {
    fake() = {};
    Runtime& runtime = shared_runtime();
    const Kernel kernel = runtime.prepare(kSpec, {2, 1000, 1000});
    fake().param_bytes = sizeof(abi::PersistentArguments);
    const Call call = kernel.bind(tensors(1000, 1000), {});
    REQUIRE(contains(call.describe(), "wgmma"));
    call.launch_at({.k = place(12), .o = place(14)});
    auto arguments = last_arguments<abi::PersistentArguments>();
    CHECK(mapped(arguments.q) == 0x1000000);
    CHECK(mapped(arguments.k) == 0xc000000);
    CHECK(mapped(arguments.v) == 0x3000000);
    CHECK(arguments.attention.k == place(12));
    CHECK(arguments.attention.o == place(14));
    call.launch();
    arguments = last_arguments<abi::PersistentArguments>();
    CHECK(mapped(arguments.k) == 0x2000000);

    // Without keys, their maps are over memory of q, wherever that is.
    const Call keyless = kernel.bind(tensors(1000, 0), {});
    keyless.launch_at({.q = place(11), .k = place(12)});
    arguments = last_arguments<abi::PersistentArguments>();
    CHECK(mapped(arguments.q) == 0xb000000);
    CHECK(mapped(arguments.k) == 0xb000000);
    CHECK(mapped(arguments.v) == 0xb000000);
}

TEST_CASE("every kernel of a launch gets its addresses", "[engine][wgmma]") {
    fake() = {};
    Runtime& runtime = shared_runtime();
    const Kernel kernel = runtime.prepare(kSpec, {1, 128, 4096});
    AttentionTensors one = tensors(128, 4096);
    for (Tensor* tensor : {&one.q, &one.k, &one.v, &one.o}) *tensor = tensor->slice(0, 0, 1);
    const Call call = kernel.bind(one, {});
    REQUIRE(contains(call.describe(), "; merge"));
    fake().param_bytes = sizeof(abi::AttentionArguments);
    call.launch_at({.o = place(14)});
    REQUIRE(fake().launches == 2);
    CHECK(last_arguments<abi::AttentionArguments>().o == place(14));
}

TEST_CASE("an address is held to what bind() asks of it", "[engine]") {
    fake() = {};
    Runtime& runtime = shared_runtime();
    const Kernel kernel = runtime.prepare(kSpec, {2, 1, 1000});
    const Call call = kernel.bind(tensors(1, 1000), {});
    char* const odd = static_cast<char*>(place(12)) + 8;
    InvalidRequest error = refusal(call, {.k = odd});
    CHECK(error.field() == "addresses.k");
    CHECK(contains(error.what(), "a multiple of 16 bytes"));
    error = refusal(call, {.lse = static_cast<float*>(place(15))});
    CHECK(error.field() == "addresses.lse");
    CHECK(contains(error.what(), "bound without lse"));
    error = refusal(call, {.sinks = static_cast<const float*>(place(15))});
    CHECK(error.field() == "addresses.sinks");
    error = refusal(call, {.v = reinterpret_cast<const void*>(~std::uintptr_t{15})});
    CHECK(error.field() == "addresses.v");
    CHECK(contains(error.what(), "bytes after it"));
    error = refusal(call, {.o = place(2)});
    CHECK(error.field() == "addresses.o");
    CHECK(contains(error.what(), "overlaps k"));
    error = refusal(call, {.k = place(4)});
    CHECK(error.field() == "o");
    CHECK(contains(error.what(), "overlaps addresses.k"));

    AttentionSpec with_lse = kSpec;
    with_lse.lse = true;
    AttentionTensors bound = tensors(1, 1000);
    bound.lse = at(5, DType::fp32, {2, 1, 32});
    const Kernel writes_lse = runtime.prepare(with_lse, {2, 1, 1000});
    const Call second = writes_lse.bind(bound, {});
    error = refusal(second, {.lse = static_cast<float*>(place(2))});
    CHECK(error.field() == "addresses.lse");
    CHECK(contains(error.what(), "overlaps k"));
    error = refusal(second, {.v = place(5)});
    CHECK(error.field() == "lse");
    CHECK(contains(error.what(), "overlaps addresses.v"));
}

TEST_CASE("outputs may lie between inputs, but not in them nor in the workspace", "[engine]") {
    fake() = {};
    Runtime& runtime = shared_runtime();
    const Kernel kernel = runtime.prepare(kSpec, {2, 1, 1000});
    AttentionTensors bound = tensors(1, 1000);
    // q and o of one buffer, a row of the one beside a row of the other.
    bound.q = at(1, DType::bf16, {2, 1, 64, 128}).slice(2, 0, 32);
    bound.o = at(4, DType::bf16, {2, 1, 64, 128}).slice(2, 32, 64);
    Buffer memory = runtime.allocate(kernel.workspace_bytes({2, 2, 1000}));
    const Call call = kernel.bind(bound, {}, {memory.data(), memory.bytes()});
    const int before = fake().launches;
    call.launch_at({.q = place(4)});
    CHECK(fake().launches == before + 1);
    CHECK(refusal(call, {.q = bound.o.data}).field() == "o");
    CHECK(refusal(call, {.o = memory.data()}).field() == "workspace.data");
    CHECK(refusal(call, {.q = memory.data()}).field() == "workspace.data");
}

TEST_CASE("a merge takes no addresses", "[engine]") {
    fake() = {};
    Runtime& runtime = shared_runtime();
    const Kernel kernel =
        runtime.prepare({.op = Op::merge, .dtype = DType::bf16, .head_dim_vo = 64, .q_heads = 4}, {});
    const Call call = kernel.bind(MergeTensors{.o_states = {at(1, DType::bf16, {7, 4, 64})},
                                               .lse_states = {at(2, DType::fp32, {7, 4})},
                                               .o = at(3, DType::bf16, {7, 4, 64})});
    CHECK(refusal(call, {.o = place(9)}).field() == "addresses");
}

TEST_CASE("a launch with addresses allocates nothing", "[engine][allocations]") {
    fake() = {};
    Runtime& runtime = shared_runtime();
    const Kernel kernel = runtime.prepare(kSpec, {2, 1000, 1000});
    const Call call = kernel.bind(tensors(1000, 1000), {});
    const TensorAddresses layer{.q = place(11), .k = place(12), .v = place(13), .o = place(14)};
    call.launch_at(layer);
    const std::size_t before = test::allocations();
    call.launch_at(layer);
    CHECK(test::allocations() == before);
}

// Not a test: what addresses add to a launch, beside the driver's own time to move tensor maps.
TEST_CASE("the time that addresses take", "[.][addresses_speed]") {
    fake() = {};
    Runtime& runtime = shared_runtime();
    const TensorAddresses layer{.q = place(11), .k = place(12), .v = place(13), .o = place(14)};
    for (const std::int64_t q_len : {1, 1000}) {
        const Kernel kernel = runtime.prepare(kSpec, {2, q_len, 1000});
        const Call call = kernel.bind(tensors(q_len, 1000), {});
        constexpr int kTimes = 100000;
        const auto time_of = [&](const auto& launch) {
            const auto start = std::chrono::steady_clock::now();
            for (int i = 0; i < kTimes; ++i) launch();
            return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
                       .count() /
                   kTimes;
        };
        const double bound = time_of([&] { call.launch(); });
        const double given = time_of([&] { call.launch_at(layer); });
        WARN(q_len << " queries: " << bound << " us as bound, " << given << " us with addresses");
    }
}
