// What may be bound to a kernel of op merge.
#include <cstdint>
#include <functional>
#include <limits>
#include <string>

#include "bound_tensors.hpp"
#include "expect.hpp"
#include "ops/operands.hpp"

using namespace attnsmith;
using namespace attnsmith::problem;
using attnsmith::test::at;
using attnsmith::test::contains;
using attnsmith::test::refused;

namespace {

// Three states of 11 tokens and 8 heads of 32, that are right, to be spoiled.
struct Setup {
    AttentionSpec spec{.op = Op::merge, .dtype = DType::bf16, .head_dim_vo = 32, .q_heads = 8, .lse = true};
    MergeTensors tensors = of(3);

    static MergeTensors of(int states) {
        MergeTensors tensors;
        for (int s = 0; s < states; ++s) {
            tensors.o_states.push_back(at(1 + s, DType::bf16, {11, 8, 32}));
            tensors.lse_states.push_back(at(101 + s, DType::fp32, {11, 8}));
        }
        tensors.o = at(200, DType::bf16, {11, 8, 32});
        tensors.lse = at(201, DType::fp32, {11, 8});
        return tensors;
    }
    BoundShape check() const {
        return ops::check_operands(validate(spec, {}), problem::Operands::of(tensors, {}));
    }
};

Tensor moved(Tensor tensor, std::int64_t bytes) {
    tensor.data = static_cast<char*>(tensor.data) + bytes;
    return tensor;
}

}  // namespace

TEST_CASE("what a merge's tensors hold", "[merge][tensors]") {
    Setup setup;
    CHECK(setup.check().q_tokens == 11);
    for (int states = 1; states <= 32; ++states) {
        setup.tensors = Setup::of(states);
        CHECK_NOTHROW(setup.check());
    }
}

TEST_CASE("a merge has no batch", "[merge][tensors]") {
    const Setup setup;
    Batch batch;
    const auto check = [&] {
        ops::check_operands(validate(setup.spec, {}), Operands::of(setup.tensors, batch));
    };
    CHECK_NOTHROW(check());
    batch.max_q_len = 11;
    CHECK(refused(check).field() == "batch.max_q_len");
    batch = {.kv_lens = at(300, DType::int32, {1})};
    CHECK(refused(check).field() == "batch.kv_lens");
}

TEST_CASE("no tokens at all is a valid merge", "[merge][tensors]") {
    Setup setup;
    const Tensor o = Tensor::contiguous(nullptr, DType::bf16, {0, 8, 32});
    const Tensor lse = Tensor::contiguous(nullptr, DType::fp32, {0, 8});
    setup.tensors = {.o_states = {o, o}, .lse_states = {lse, lse}, .o = o, .lse = lse};
    CHECK(setup.check().q_tokens == 0);
}

TEST_CASE("views of merged states", "[merge][tensors]") {
    const std::function<void(Setup&)> views[] = {
        // In place of any state, o alone or with lse.
        [](Setup& s) { s.tensors.o = s.tensors.o_states[2]; },
        [](Setup& s) { s.tensors.o = s.tensors.o_states[0], s.tensors.lse = s.tensors.lse_states[0]; },
        [](Setup& s) { s.tensors.o = s.tensors.o_states[0], s.tensors.lse = s.tensors.lse_states[1]; },
        // The stride of an axis that does not step says nothing.
        [](Setup& s) {
            for (Tensor& o : s.tensors.o_states) o.shape[0] = 1;
            for (Tensor& lse : s.tensors.lse_states) lse.shape[0] = 1;
            s.tensors.lse.shape[0] = 1;
            s.tensors.o = s.tensors.o_states[1];
            s.tensors.o.strides[0] = -7;
        },
        // States that share memory, or an lse that all heads share.
        [](Setup& s) { s.tensors.o_states[1] = s.tensors.o_states[0]; },
        [](Setup& s) {
            s.tensors.lse_states[1].strides = {1, 0};
        },
        // Slices of one wide row.
        [](Setup& s) {
            const Tensor rows = at(1, DType::bf16, {11, 8, 128});
            for (int i = 0; i < 3; ++i)
                s.tensors.o_states[static_cast<std::size_t>(i)] = rows.slice(2, 32 * i, 32 * i + 32);
            s.tensors.o = rows.slice(2, 96, 128);
        },
        // [heads, tokens, ...] in memory, lse in steps of 3.
        [](Setup& s) {
            s.tensors.o_states[0] = at(1, DType::bf16, {8, 11, 32}).permute({1, 0, 2});
            s.tensors.lse_states[0].strides = {24, 3};
            s.tensors.lse = at(201, DType::fp32, {8, 11}).permute({1, 0});
        },
        [](Setup& s) {
            s.spec.alignment = 2;
            s.tensors.o_states[0] = moved(s.tensors.o_states[0], 2);
            s.tensors.o_states[1].strides[0] += 1;
        },
    };
    for (const auto& view : views) {
        Setup setup;
        view(setup);
        CHECK_NOTHROW(setup.check());
    }
}

TEST_CASE("what is wrong with a merge's tensors is named", "[merge][tensors]") {
    struct Case {
        std::string field, message;
        std::function<void(Setup&)> spoil;
    };
    const Case cases[] = {
        {"o_states", "1 to 32 states", [](Setup& s) { s.tensors.o_states.clear(); }},
        {"o_states", "merge in steps", [](Setup& s) { s.tensors = Setup::of(33); }},
        {"lse_states", "3, as many as o_states", [](Setup& s) { s.tensors.lse_states.pop_back(); }},
        {"lse_states", "3, as many as o_states", [](Setup& s) { s.tensors.lse_states.emplace_back(); }},
        {"o_states[1]", "an absent tensor", [](Setup& s) { s.tensors.o_states[1] = {}; }},
        {"o_states[2].data", "device memory", [](Setup& s) { s.tensors.o_states[2].data = nullptr; }},
        {"o_states[2].dtype", "bf16", [](Setup& s) { s.tensors.o_states[2].dtype = DType::fp16; }},
        {"o_states[0].rank", "3 [q_tokens, q_heads, head_dim_vo]",
         [](Setup& s) { s.tensors.o_states[0].rank = 2; }},
        {"o_states[0].shape[1]", "8 (q_heads)", [](Setup& s) { s.tensors.o_states[0].shape[1] = 7; }},
        {"o_states[0].shape[2]", "32 (head_dim_vo)", [](Setup& s) { s.tensors.o_states[0].shape[2] = 16; }},
        {"o_states[1].shape[0]", "11 (q_tokens of o_states[0])",
         [](Setup& s) { s.tensors.o_states[1].shape[0] = 12; }},
        {"o_states[0].shape[0]", "from 0", [](Setup& s) { s.tensors.o_states[0].shape[0] = -1; }},
        {"o_states[1].strides[2]", "contiguous", [](Setup& s) { s.tensors.o_states[1].strides[2] = 2; }},
        {"o_states[1].strides[0]", "a stride from 0",
         [](Setup& s) { s.tensors.o_states[1].strides[0] = -256; }},
        {"o_states[1].strides[1]", "16 bytes", [](Setup& s) { s.tensors.o_states[1].strides[1] += 4; }},
        {"o_states[1].data", "a multiple of 16",
         [](Setup& s) { s.tensors.o_states[1] = moved(s.tensors.o_states[1], 8); }},
        {"o_states[1].strides[0]", "within 2^63 bytes",
         [](Setup& s) {
             s.tensors.o_states[1].strides[0] = (std::numeric_limits<std::int64_t>::max() >> 3) / 8 * 8;
         }},
        {"lse_states[2].dtype", "fp32", [](Setup& s) { s.tensors.lse_states[2].dtype = DType::bf16; }},
        {"lse_states[2].shape[0]", "11", [](Setup& s) { s.tensors.lse_states[2].shape[0] = 10; }},
        {"lse_states[0]", "an absent tensor", [](Setup& s) { s.tensors.lse_states[0] = {}; }},
        {"lse_states[0].data", "a multiple of 4",
         [](Setup& s) { s.tensors.lse_states[0] = moved(s.tensors.lse_states[0], 2); }},
        {"o", "an absent tensor", [](Setup& s) { s.tensors.o = {}; }},
        {"o.shape[0]", "11", [](Setup& s) { s.tensors.o.shape[0] = 10; }},
        {"o.strides[1]", "a stride above 0", [](Setup& s) { s.tensors.o.strides[1] = 0; }},
        {"lse", "the spec asks for", [](Setup& s) { s.tensors.lse = {}; }},
        {"lse", "a spec with lse", [](Setup& s) { s.spec.lse = false; }},
        {"lse.strides[0]", "a stride above 0", [](Setup& s) { s.tensors.lse.strides[0] = 0; }},
        // Overlaps: of a state exactly, or nothing.
        {"o", "memory that overlaps o_states[1]",
         [](Setup& s) { s.tensors.o = moved(s.tensors.o_states[1], 512); }},
        {"o", "exactly the view", [](Setup& s) { s.tensors.o = moved(s.tensors.o_states[1], 512); }},
        {"o", "memory that overlaps o_states[1]",
         [](Setup& s) {
             s.tensors.o_states[1] = at(2, DType::bf16, {8, 11, 32}).permute({1, 0, 2});
             s.tensors.o = at(2, DType::bf16, {11, 8, 32});
         }},
        {"o", "memory that overlaps o_states[2]",
         [](Setup& s) {
             s.tensors.o = s.tensors.o_states[0];
             s.tensors.o_states[2] = moved(s.tensors.o_states[0], 64);
         }},
        {"o", "memory that overlaps lse_states[0]",
         [](Setup& s) { s.tensors.o.data = s.tensors.lse_states[0].data; }},
        {"lse", "memory that overlaps o_states[0]",
         [](Setup& s) { s.tensors.lse.data = s.tensors.o_states[0].data; }},
        {"lse", "memory that overlaps lse_states[2]",
         [](Setup& s) { s.tensors.lse = moved(s.tensors.lse_states[2], 4); }},
        {"lse", "memory that overlaps o", [](Setup& s) { s.tensors.lse.data = s.tensors.o.data; }},
    };
    for (const Case& bad : cases) {
        Setup setup;
        bad.spoil(setup);
        const InvalidRequest error = refused([&] { setup.check(); });
        INFO(error.what());
        CHECK(error.field() == bad.field);
        CHECK(contains(error.what(), bad.message));
    }
}
