// Op top_k: what may be asked, and what may be bound.
#include <cstdint>
#include <functional>
#include <string>

#include "attnsmith/attnsmith.hpp"
#include "bound_tensors.hpp"
#include "expect.hpp"
#include "ops/operands.hpp"

using namespace attnsmith;
using namespace attnsmith::problem;
using attnsmith::test::at;
using attnsmith::test::contains;
using attnsmith::test::refused;

namespace {

// Valid tensors for a selection of 64 from each of 11 rows of 300 scores; each test spoils one of them.
struct Setup {
    AttentionSpec spec{.op = Op::top_k};
    TopKTensors tensors{.scores = at(1, DType::fp32, {11, 300}),
                        .row_starts = at(2, DType::int32, {11}),
                        .row_ends = at(3, DType::int32, {11}),
                        .indices = at(4, DType::int32, {11, 64})};
    Batch batch{};

    BoundShape check() const { return ops::check_operands(validate(spec, {}), Operands::of(tensors, batch)); }
};

}  // namespace

TEST_CASE("a request of op top_k has sizes and a type of indices", "[top_k][request]") {
    const AttentionRequest request =
        parse_request(R"({"op": "top_k", "index_dtype": "int64", "q_len": 5, "kv_len": 9})");
    CHECK(request.spec == AttentionSpec{.op = Op::top_k, .index_dtype = DType::int64});
    CHECK(to_json(request) ==
          R"({"op":"top_k","index_dtype":"int64","batch":1,"q_len":5,"kv_len":9,"sm":[]})");
    for (const char* other : {"q_heads", "head_dim", "head_dim_qk", "head_dim_ckv", "alignment"}) {
        const std::string text = std::string(R"({"op": "top_k", ")") + other + R"(": 8})";
        CHECK(refused([&] { (void)parse_request(text); }).field() == other);
    }
    CHECK(refused([] { (void)parse_request(R"({"op": "top_k", "q_len": -1})"); }).field() == "q_len");
}

TEST_CASE("what the tensors of a top_k hold", "[top_k][tensors]") {
    Setup setup;
    CHECK(setup.check().q_tokens == 11);
    CHECK(setup.check().max_kv_len == 300);
    setup.tensors.row_starts = setup.tensors.row_ends = {};
    CHECK_NOTHROW(setup.check());
    setup.tensors.indices = at(4, DType::int32, {11, 500});  // more than there are columns
    setup.tensors.scores.strides[0] = 304;
    setup.tensors.indices.strides[0] = 501;
    CHECK_NOTHROW(setup.check());
    setup.spec.index_dtype = DType::int64;
    setup.tensors.row_ends = at(3, DType::int64, {11});
    CHECK_NOTHROW(setup.check());
    setup.tensors.indices = Tensor::contiguous(nullptr, DType::int32, {11, 0});  // none of them
    CHECK_NOTHROW(setup.check());
    for (const std::int64_t rows : {0, 11}) {
        setup.tensors = {.scores = Tensor::contiguous(nullptr, DType::fp32, {rows, 0}),
                         .indices = Tensor::contiguous(nullptr, DType::int32, {rows, 0})};
        CHECK(setup.check().q_tokens == rows);
    }
}

TEST_CASE("tensors of a top_k that are refused", "[top_k][tensors]") {
    struct Spoiled {
        const char* field;
        std::function<void(Setup&)> spoil;
    };
    const Spoiled cases[] = {
        {"scores", [](Setup& s) { s.tensors.scores = {}; }},
        {"scores.dtype", [](Setup& s) { s.tensors.scores.dtype = DType::bf16; }},
        {"scores.rank",
         [](Setup& s) {
             s.tensors.scores = at(1, DType::fp32, {11, 3, 100});
         }},
        {"scores.strides[1]", [](Setup& s) { s.tensors.scores.strides[1] = 2; }},
        {"scores.shape[1]",
         [](Setup& s) {
             s.tensors.scores = at(1, DType::fp32, {11, std::int64_t{1} << 33});
         }},
        {"row_starts.dtype", [](Setup& s) { s.tensors.row_starts.dtype = DType::int64; }},
        {"row_ends.shape[0]", [](Setup& s) { s.tensors.row_ends = at(3, DType::int32, {12}); }},
        {"indices", [](Setup& s) { s.tensors.indices = {}; }},
        {"indices.dtype", [](Setup& s) { s.tensors.indices.dtype = DType::int64; }},
        {"indices.shape[0]",
         [](Setup& s) {
             s.tensors.indices = at(4, DType::int32, {10, 64});
         }},
        {"indices.strides", [](Setup& s) { s.tensors.indices.strides[0] = 63; }},
        {"indices", [](Setup& s) { s.tensors.indices.data = s.tensors.scores.data; }},
        {"indices", [](Setup& s) { s.tensors.indices.data = s.tensors.row_ends.data; }},
        {"batch.kv_lens", [](Setup& s) { s.batch.kv_lens = at(9, DType::int32, {11}); }},
        {"batch.max_kv_len", [](Setup& s) { s.batch.max_kv_len = 300; }},
    };
    for (const Spoiled& one : cases) {
        Setup setup;
        one.spoil(setup);
        INFO(one.field);
        CHECK(contains(refused([&] { setup.check(); }).field(), one.field));
    }
}

TEST_CASE("a workspace within the tensors of a top_k is refused", "[top_k][tensors]") {
    Setup setup;
    const Problem problem = validate(setup.spec, {});
    for (const Tensor* tensor : {&setup.tensors.scores, &setup.tensors.row_starts, &setup.tensors.row_ends,
                                 &setup.tensors.indices}) {
        const Operands operands = Operands::of(setup.tensors, setup.batch);
        CHECK(refused([&] { ops::check_workspace(problem, tensor->data, 8192, operands); }).field() ==
              "workspace.data");
    }
}
