// The workspace that a call is given, over the stub driver of tests/support/fake_cuda.
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
        const InvalidRequest error = refused([&] { kernel.bind(tensors, batch, Workspace{nullptr, bytes}); });
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
            kernel.bind(tensors, batch, Workspace{tensor->data, needed});
        });
        CHECK(error.field() == "workspace.data");
        CHECK(error.value() == std::string("memory that overlaps ") + name);
    }
    void* const apart = at(7, DType::int32, {1}).data;
    CHECK(refused([&] {
              kernel.bind(tensors, batch, Workspace{apart, needed - 1});
          }).field() == "workspace.bytes");
    CHECK_NOTHROW(kernel.bind(tensors, batch, Workspace{apart, needed}));
    CHECK(fake().allocations == allocations);
    CHECK(refused([&] { kernel.bind(tensors, batch, Workspace{}); }).field() == "workspace.data");
    CHECK_NOTHROW(kernel.bind(tensors, batch));
    CHECK(fake().allocations == allocations + 1);
}
