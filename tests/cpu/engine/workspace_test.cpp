// The workspace that a call is given, over the stub driver of tests/support/fake_cuda.
#include <string>
#include <string_view>
#include <vector>

#include "engine/fake_runtime.hpp"
#include "problem/expect.hpp"

using namespace attnsmith;
using attnsmith::test::at;
using attnsmith::test::contains;
using attnsmith::test::fake;
using attnsmith::test::fake_options;
using attnsmith::test::refused;

namespace {}  // namespace

TEST_CASE("a workspace that is given has memory of its own", "[engine][workspace]") {
    fake() = {};
    Runtime runtime(fake_options());
    const Kernel kernel = runtime.prepare({.head_dim_qk = 64, .q_heads = 2}, {2, 4, 8});
    const AttentionTensors tensors{.q = at(1, DType::bf16, {2, 4, 2, 64}),
                                   .k = at(2, DType::bf16, {2, 8, 2, 64}),
                                   .v = at(3, DType::bf16, {2, 8, 2, 64}),
                                   .o = at(4, DType::bf16, {2, 4, 2, 64})};
    const Batch batch{.q_lens = at(5, DType::int32, {2}), .kv_lens = at(6, DType::int32, {2})};
    const std::size_t needed = kernel.workspace_bytes({2, 8, 8});
    const int allocations = fake().allocations;

    for (const std::size_t bytes : {std::size_t{1}, needed, needed << 20}) {
        const InvalidRequest error = refused([&] {
            (void)kernel.bind(tensors, batch, Workspace{nullptr, bytes});
        });
        CHECK(error.field() == "workspace.data");
        CHECK(contains(error.accepted(), "leave the workspace out"));
    }
    const std::pair<const char*, const Tensor*> others[] = {{"q", &tensors.q},
                                                            {"k", &tensors.k},
                                                            {"v", &tensors.v},
                                                            {"o", &tensors.o},
                                                            {"batch.q_lens", &batch.q_lens},
                                                            {"batch.kv_lens", &batch.kv_lens}};
    for (const auto& [name, tensor] : others) {
        const InvalidRequest error = refused([&] {
            (void)kernel.bind(tensors, batch, Workspace{tensor->data, needed});
        });
        CHECK(error.field() == "workspace.data");
        CHECK(error.value() == std::string("memory that overlaps ") + name);
    }
    void* const apart = at(7, DType::int32, {1}).data;
    CHECK(refused([&] {
              (void)kernel.bind(tensors, batch, Workspace{apart, needed - 1});
          }).field() == "workspace.bytes");
    CHECK_NOTHROW(kernel.bind(tensors, batch, Workspace{apart, needed}));
    // Memory does not go on at address 0.
    void* const last = reinterpret_cast<void*>(std::uintptr_t{0} - 256);
    for (const Workspace& wraps : {Workspace{last, needed}, Workspace{apart, SIZE_MAX}}) {
        CHECK(refused([&] { (void)kernel.bind(tensors, batch, wraps); }).field() == "workspace.bytes");
        CHECK(refused([&] { runtime.clear_workspace(wraps); }).field() == "workspace.bytes");
    }
    CHECK(fake().allocations == allocations);
    CHECK(refused([&] { (void)kernel.bind(tensors, batch, Workspace{}); }).field() == "workspace.data");
    CHECK_NOTHROW(kernel.bind(tensors, batch));
    CHECK(fake().allocations == allocations + 1);
}

TEST_CASE("a workspace of the runtime's begins with zeros, and waits for no stream", "[engine][workspace]") {
    fake() = {};
    const Runtime runtime(fake_options());
    const Buffer buffer = runtime.allocate_workspace(2 * kWorkspaceZeroedBytes);
    const auto* const bytes = static_cast<const unsigned char*>(buffer.data());
    for (std::size_t i = 0; i < kWorkspaceZeroedBytes; ++i) REQUIRE(bytes[i] == 0);
    CHECK(fake().default_stream_waits == 0);
    const Workspace workspace = buffer.workspace();
    CHECK((workspace.data == buffer.data() && workspace.bytes == buffer.bytes()));
    CHECK(runtime.allocate_workspace(16).bytes() == 16);
    CHECK(runtime.allocate_workspace(0).data() == nullptr);

    const Kernel kernel = runtime.prepare({.op = Op::merge, .head_dim_vo = 64, .q_heads = 3}, {});
    const Tensor o = at(1, DType::bf16, {10, 3, 64});
    const MergeTensors tensors{.o_states = {o}, .lse_states = {at(2, DType::fp32, {10, 3})}, .o = o};
    CHECK_NOTHROW(
        kernel.bind(tensors, {}, runtime.allocate_workspace(kernel.workspace_bytes({})).workspace()));
}

TEST_CASE("a kernel prepared for the sizes of PlanSizes{} is warned of once, and a merge is not",
          "[engine][workspace]") {
    std::vector<std::string> warnings;
    RuntimeOptions options = fake_options();
    options.log_level = LogLevel::warn;
    options.log = [&](LogLevel, std::string_view line) {
        if (contains(std::string(line), "PlanSizes{}")) warnings.emplace_back(line);
    };
    const Runtime runtime(options);
    const AttentionSpec spec{.head_dim_qk = 64, .q_heads = 2};
    (void)runtime.prepare(spec, {1, 64, 64});
    (void)runtime.prepare({.op = Op::merge, .head_dim_vo = 64, .q_heads = 3}, {});
    CHECK(warnings.empty());
    (void)runtime.prepare(spec, {});
    (void)runtime.prepare(spec, {});
    REQUIRE(warnings.size() == 1);
    CHECK(contains(warnings[0], "attention: planned for 1 query and 1 key of 1 sequence"));
}
