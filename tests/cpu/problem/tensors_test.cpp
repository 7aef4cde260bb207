#include "ops/operands.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "bound_tensors.hpp"
#include "expect.hpp"
#include "problem/limits.hpp"

using namespace attnsmith;
using namespace attnsmith::problem;
using attnsmith::test::at;
using attnsmith::test::contains;
using attnsmith::test::refused;

namespace {

constexpr std::int64_t kInt64Max = std::numeric_limits<std::int64_t>::max();

using Setup = attnsmith::test::BoundTensors;

AttentionSpec small_spec() {
    AttentionSpec spec;
    spec.dtype = DType::bf16;
    spec.head_dim_qk = 64;
    spec.head_dim_vo = 32;
    spec.q_heads = 8;
    spec.kv_heads = 2;
    return spec;
}

// batch 3, at most 5 queries and 7 keys.
Setup dense() {
    Setup setup;
    setup.spec = small_spec();
    setup.tensors.q = at(1, DType::bf16, {3, 5, 8, 64});
    setup.tensors.k = at(2, DType::bf16, {3, 7, 2, 64});
    setup.tensors.v = at(3, DType::bf16, {3, 7, 2, 32});
    setup.tensors.o = at(4, DType::bf16, {3, 5, 8, 32});
    return setup;
}

// 11 query tokens and 20 KV tokens of 3 sequences.
Setup ragged() {
    Setup setup;
    setup.spec = small_spec();
    setup.spec.kv = KvStorage::ragged;
    setup.tensors.q = at(1, DType::bf16, {11, 8, 64});
    setup.tensors.k = at(2, DType::bf16, {20, 2, 64});
    setup.tensors.v = at(3, DType::bf16, {20, 2, 32});
    setup.tensors.o = at(4, DType::bf16, {11, 8, 32});
    setup.batch.q_indptr = at(8, DType::int32, {4});
    setup.batch.kv_indptr = at(9, DType::int32, {4});
    return setup;
}

// 9 pages of 16; up to 6 a sequence, of 3.
Setup padded() {
    Setup setup = ragged();
    setup.spec.kv = KvStorage::paged;
    setup.spec.page_size = 16;
    setup.tensors.k = at(2, DType::bf16, {9, 16, 2, 64});
    setup.tensors.v = at(3, DType::bf16, {9, 16, 2, 32});
    setup.batch.kv_indptr = {};
    setup.batch.page_table = at(10, DType::int32, {3, 6});
    setup.batch.kv_lens = at(11, DType::int32, {3});
    return setup;
}

// The same with a table of more rows than the batch.
Setup rows() {
    Setup setup = padded();
    setup.batch.page_table = at(10, DType::int32, {40, 6});
    setup.batch.table_rows = at(14, DType::int32, {3});
    return setup;
}

Setup compressed() {
    Setup setup = padded();
    setup.batch.page_table = setup.batch.kv_lens = {};
    setup.batch.page_indptr = at(12, DType::int32, {4});
    setup.batch.page_indices = at(13, DType::int32, {10});
    setup.batch.last_page_len = at(14, DType::int32, {3});
    return setup;
}

// Everything optional that a dense launch can have.
Setup full() {
    Setup setup = dense();
    setup.spec.lse = setup.spec.sink = setup.spec.alibi = true;
    setup.tensors.lse = at(5, DType::fp32, {3, 5, 8});
    setup.tensors.sinks = at(6, DType::fp32, {8});
    setup.tensors.alibi_slopes = at(7, DType::fp32, {8});
    setup.batch.q_lens = at(8, DType::int32, {3});
    setup.batch.kv_lens = at(9, DType::int32, {3});
    return setup;
}

struct Case {
    Setup (*setup)();
    std::string field;
    std::string message;
    std::function<void(Setup&)> spoil;
};

Tensor moved(Tensor tensor, std::int64_t bytes) {
    tensor.data = static_cast<char*>(tensor.data) + bytes;
    return tensor;
}

}  // namespace

TEST_CASE("what the tensors hold", "[tensors]") {
    const BoundShape of_dense = dense().check();
    CHECK(of_dense.batch == 3);
    CHECK(of_dense.q_tokens == 15);
    CHECK(of_dense.max_q_len == 5);
    CHECK(of_dense.max_kv_len == 7);
    CHECK(of_dense.kv_tokens == 7);
    CHECK(of_dense.pages == 0);
    CHECK(of_dense.page_list == 0);
    Setup bounded = dense();
    bounded.batch.max_q_len = 2;
    const InvalidRequest truncated = refused([&] { bounded.check(); });
    CHECK(truncated.field() == "batch.max_q_len");
    CHECK(contains(truncated.accepted(), "batch.q_lens"));
    bounded.batch.q_lens = at(8, DType::int32, {3});
    CHECK(bounded.check().q_tokens == 6);

    const BoundShape of_ragged = ragged().check();
    CHECK(of_ragged.batch == 3);
    CHECK(of_ragged.q_tokens == 11);
    CHECK(of_ragged.max_q_len == 11);
    CHECK(of_ragged.max_kv_len == 20);
    CHECK(of_ragged.kv_tokens == 20);

    const BoundShape of_padded = padded().check();
    CHECK(of_padded.pages == 9);
    CHECK(of_padded.page_list == 6);
    CHECK(of_padded.max_kv_len == 96);
    CHECK(of_padded.kv_tokens == 0);

    const BoundShape of_compressed = compressed().check();
    CHECK(of_compressed.page_list == 10);
    CHECK(of_compressed.max_kv_len == 160);
}

TEST_CASE("bounds are clamped to what the tensors hold", "[tensors]") {
    Setup setup = padded();
    setup.batch.max_q_len = 4;
    setup.batch.max_kv_len = 50;
    CHECK(setup.check().max_q_len == 4);
    CHECK(setup.check().max_kv_len == 50);
    setup.batch.max_q_len = setup.batch.max_kv_len = kInt64Max;
    CHECK(setup.check().max_q_len == 11);
    CHECK(setup.check().max_kv_len == 96);
    // More table than any sequence can be long: 2^20 pages of 2^20 tokens.
    setup.spec.page_size = 1 << 20;
    setup.tensors.k = at(2, DType::bf16, {1, 1 << 20, 2, 64});
    setup.tensors.v = moved(at(2, DType::bf16, {1, 1 << 20, 2, 32}), std::int64_t{1} << 40);
    setup.batch.page_table = moved(at(2, DType::int32, {3, 1 << 20}), std::int64_t{1} << 41);
    for (Tensor* tensor : {&setup.tensors.q, &setup.tensors.o, &setup.batch.kv_lens, &setup.batch.q_indptr}) {
        *tensor = moved(*tensor, std::int64_t{1} << 42);
    }
    CHECK(setup.check().max_kv_len == kMaxLength);
}

TEST_CASE("views of every layout pass", "[tensors]") {
    const std::function<void(Setup&)> views[] = {
        // [b, h, s, d] seen as [b, s, h, d].
        [](Setup& s) {
            s.tensors.q = at(1, DType::bf16, {3, 8, 5, 64}).permute({0, 2, 1, 3});
        },
        [](Setup& s) {
            s.tensors.o = at(4, DType::bf16, {3, 8, 5, 32}).permute({0, 2, 1, 3});
        },
        // [s, b, h, d].
        [](Setup& s) {
            s.tensors.k = at(2, DType::bf16, {7, 3, 2, 64}).permute({1, 0, 2, 3});
        },
        // A slice of a wider buffer.
        [](Setup& s) {
            s.tensors.v = at(3, DType::bf16, {3, 9, 6, 48}).slice(1, 1, 8).slice(2, 2, 4).slice(3, 8, 40);
        },
        // One key for all heads, one cache for all sequences.
        [](Setup& s) { s.tensors.k.strides[2] = 0; },
        [](Setup& s) { s.tensors.v.strides[0] = 0; },
        // LSE as [b, h, s].
        [](Setup& s) {
            s.tensors.lse = at(5, DType::fp32, {3, 8, 5}).permute({0, 2, 1});
        },
        [](Setup& s) {
            s.tensors.lse = at(5, DType::fp32, {3, 5, 8, 3}).select(3, 1);
        },
        // Nothing is optional that is not needed.
        [](Setup& s) { s.batch.q_lens = {}; },
        [](Setup& s) { s.batch.kv_lens = {}; },
        // q and o of one row.
        [](Setup& s) {
            const Tensor rows = at(1, DType::bf16, {3, 5, 8, 96});
            s.tensors.q = rows.slice(3, 0, 64);
            s.tensors.o = rows.slice(3, 64, 96);
        },
    };
    for (const auto& view : views) {
        Setup setup = full();
        view(setup);
        CHECK_NOTHROW(setup.check());
    }
}

TEST_CASE("all of packed QKV and the output in one row", "[tensors]") {
    Setup setup = ragged();
    setup.spec.head_dim_vo = 64;
    setup.batch.kv_indptr = setup.batch.q_indptr;
    const Tensor rows = at(1, DType::bf16, {11, 20 * 64}).split(1, 20);
    setup.tensors.q = rows.slice(1, 0, 8);
    setup.tensors.k = rows.slice(1, 8, 10);
    setup.tensors.v = rows.slice(1, 10, 12);
    setup.tensors.o = rows.slice(1, 12, 20);
    CHECK(setup.check().kv_tokens == 11);
    setup.tensors.o = rows.slice(1, 11, 19);
    CHECK(refused([&] { setup.check(); }).value() == "memory that overlaps v");
}

TEST_CASE("pages in either order, K and V in one cache", "[tensors]") {
    Setup setup = padded();
    setup.spec.head_dim_vo = 64;
    setup.tensors.o = at(4, DType::bf16, {11, 8, 64});
    const Tensor nhd = at(2, DType::bf16, {9, 2, 16, 2, 64});
    setup.tensors.k = nhd.select(1, 0);
    setup.tensors.v = nhd.select(1, 1);
    CHECK(setup.check().pages == 9);
    const Tensor hnd = at(2, DType::bf16, {9, 2, 2, 16, 64});
    setup.tensors.k = hnd.select(1, 0);
    setup.tensors.v = hnd.select(1, 1);
    CHECK(refused([&] { setup.check(); }).field() == "k.shape[1]");
    setup.spec.page_order = PageOrder::HND;
    CHECK(setup.check().pages == 9);
    setup.batch.page_table = at(10, DType::int32, {3, 64}).slice(1, 0, 6);  // strided rows
    CHECK(setup.check().page_list == 6);
    CHECK(setup.check().table_rows == 3);
    CHECK(rows().check().table_rows == 40);
}

TEST_CASE("nothing at all is a valid launch", "[tensors]") {
    Setup setup = ragged();
    setup.tensors.q = Tensor::contiguous(nullptr, DType::bf16, {0, 8, 64});
    setup.tensors.o = Tensor::contiguous(nullptr, DType::bf16, {0, 8, 32});
    setup.tensors.k = Tensor::contiguous(nullptr, DType::bf16, {0, 2, 64});
    setup.tensors.v = Tensor::contiguous(nullptr, DType::bf16, {0, 2, 32});
    CHECK(setup.check().batch == 3);  // of empty sequences
    CHECK(setup.check().q_tokens == 0);
    setup.batch.q_indptr = at(8, DType::int32, {1});
    setup.batch.kv_indptr = at(9, DType::int32, {1});
    CHECK(setup.check().batch == 0);
    Setup pages = compressed();
    pages.batch.page_indices = Tensor::contiguous(nullptr, DType::int32, {0});
    pages.tensors.k = Tensor::contiguous(nullptr, DType::bf16, {0, 16, 2, 64});
    pages.tensors.v = Tensor::contiguous(nullptr, DType::bf16, {0, 16, 2, 32});
    CHECK(pages.check().max_kv_len == 0);
}

TEST_CASE("alignment classes", "[tensors]") {
    for (const int alignment : {16, 8, 4, 2}) {
        Setup setup = dense();
        setup.spec.alignment = alignment;
        Tensor wide = at(1, DType::bf16, {3, 5, 8, 64 + alignment / 2});
        setup.tensors.q = moved(wide, alignment).slice(3, 0, 64);
        INFO(alignment);
        CHECK_NOTHROW(setup.check());
        if (alignment == 2) continue;
        Setup base = setup;
        base.tensors.q = moved(base.tensors.q, alignment / 2);
        CHECK(refused([&] { base.check(); }).field() == "q.data");
        Setup stride = setup;
        stride.tensors.k.strides[1] += alignment / 4;
        const InvalidRequest error = refused([&] { stride.check(); });
        CHECK(error.field() == "k.strides[1]");
        CHECK(contains(error.accepted(), "a multiple of " + std::to_string(alignment / 2) + " elements"));
    }
    // A stride that is never taken is not looked at.
    Setup single = dense();
    single.tensors.q = at(1, DType::bf16, {1, 5, 8, 64});
    single.tensors.k = at(2, DType::bf16, {1, 7, 2, 64});
    single.tensors.v = at(3, DType::bf16, {1, 7, 2, 32});
    single.tensors.o = at(4, DType::bf16, {1, 5, 8, 32});
    single.tensors.q.strides[0] = -3;
    single.tensors.o.strides[0] = 0;
    CHECK_NOTHROW(single.check());
}

TEST_CASE("an output of fp32 has its own size, strides and bases", "[tensors]") {
    Setup setup = dense();
    setup.spec.o_dtype = DType::fp32;
    CHECK(refused([&] { setup.check(); }).accepted() == "fp32");  // o is of bf16 yet
    setup.tensors.o = at(4, DType::fp32, {3, 5, 8, 32});
    CHECK_NOTHROW(setup.check());
    for (const int alignment : {16, 8, 4, 2}) {
        INFO(alignment);
        const int bytes = std::max(alignment, 4);  // no element of fp32 lies at less
        setup.spec.alignment = alignment;
        setup.tensors.o = moved(at(4, DType::fp32, {3, 5, 8, 32 + bytes / 4}), bytes).slice(3, 0, 32);
        CHECK_NOTHROW(setup.check());
        Setup base = setup;
        base.tensors.o = moved(base.tensors.o, bytes / 2);
        const InvalidRequest of_base = refused([&] { base.check(); });
        CHECK(of_base.field() == "o.data");
        CHECK(contains(of_base.accepted(), "a multiple of " + std::to_string(bytes) + " bytes"));
        if (bytes == 4) continue;  // any stride will do
        Setup stride = setup;
        stride.tensors.o.strides[2] += bytes / 8;
        const InvalidRequest of_stride = refused([&] { stride.check(); });
        CHECK(of_stride.field() == "o.strides[2]");
        CHECK(contains(of_stride.accepted(), "a multiple of " + std::to_string(bytes / 4) + " elements"));
    }
    // It is twice as long, so its end reaches into what follows.
    setup = dense();
    setup.spec.o_dtype = DType::fp32;
    setup.tensors.o = at(4, DType::fp32, {3, 5, 8, 32});
    setup.tensors.q = at(5, DType::bf16, {3, 5, 8, 64});
    setup.tensors.o = moved(setup.tensors.o, (16 << 20) - 3 * 5 * 8 * 32 * 4);
    CHECK_NOTHROW(setup.check());
    setup.tensors.o = moved(setup.tensors.o, 16);
    CHECK(refused([&] { setup.check(); }).field() == "o");
}

TEST_CASE("keys and values of 8 bits are that type or bytes, and have the scales that the spec says",
          "[tensors]") {
    for (const DType dtype : {DType::e4m3, DType::e5m2}) {
        Setup setup = dense();
        setup.spec.kv_dtype = dtype;
        const InvalidRequest of_16 = refused([&] { setup.check(); });
        CHECK((of_16.field() == "k.dtype" && of_16.accepted() == to_string(dtype)));
        for (const DType given : {dtype, DType::uint8}) {
            setup.tensors.k = at(2, given, {3, 7, 2, 64});
            setup.tensors.v = at(3, given, {3, 7, 2, 32});
            CHECK_NOTHROW(setup.check());
        }
        setup.tensors.v.dtype = dtype == DType::e4m3 ? DType::e5m2 : DType::e4m3;
        CHECK(refused([&] { setup.check(); }).field() == "v.dtype");
        setup.tensors.v.dtype = DType::uint8;
        setup.tensors.k_scale = at(12, DType::fp32, {1});
        CHECK(refused([&] { setup.check(); }).field() == "k_scale");
        setup.spec.kv_scale = KvScale::tensor;
        const InvalidRequest absent = refused([&] { setup.check(); });
        CHECK((absent.field() == "v_scale" && contains(absent.accepted(), "fp32 [1]")));
        setup.tensors.v_scale = at(13, DType::fp32, {1});
        CHECK_NOTHROW(setup.check());
        setup.spec.kv_scale = KvScale::head;
        CHECK(refused([&] { setup.check(); }).accepted() == "2 (kv_heads)");
        setup.tensors.k_scale = at(12, DType::fp32, {2});
        setup.tensors.v_scale = at(13, DType::bf16, {2});
        CHECK(refused([&] { setup.check(); }).field() == "v_scale.dtype");
        setup.tensors.v_scale = setup.tensors.k_scale;  // inputs may be one
        CHECK_NOTHROW(setup.check());
        setup.tensors.o = at(12, DType::bf16, {3, 5, 8, 32});
        CHECK(refused([&] { setup.check(); }).field() == "o");
    }
    Setup plain = dense();
    plain.tensors.k.dtype = DType::uint8;
    CHECK(refused([&] { plain.check(); }).field() == "k.dtype");
}

namespace {

// Keys and values of 8 bits in any storage, with scales of each token.
Setup with_token_scales(Setup setup, KvScale scale) {
    setup.spec.kv_dtype = DType::e4m3;
    setup.spec.kv_scale = scale;
    AttentionTensors& t = setup.tensors;
    t.k.dtype = t.v.dtype = DType::e4m3;
    const auto scales = [&](int place, const Tensor& keys) {
        Tensor of = keys;
        of.data = at(place, DType::fp32, {1}).data;
        of.dtype = DType::fp32;
        const auto last = static_cast<std::size_t>(keys.rank - 1);
        of.shape[last] = 1;
        for (int axis = 0; axis < keys.rank; ++axis)
            of.strides[static_cast<std::size_t>(axis)] = keys.strides[static_cast<std::size_t>(axis)];
        return scale == KvScale::token_head ? of.select(keys.rank - 1, 0) : of;
    };
    t.k_scale = scales(12, t.k), t.v_scale = scales(13, t.v);
    return setup;
}

}  // namespace

TEST_CASE("scales of each token have the axes of k and v but the last, with any strides", "[tensors]") {
    for (const KvScale scale : {KvScale::token_head, KvScale::block128}) {
        for (const auto& make : {dense, ragged, padded}) {
            Setup setup = with_token_scales(make(), scale);
            CHECK_NOTHROW(setup.check());
            setup.tensors.k_scale.strides[0] += 3;  // no alignment but that of a float
            setup.tensors.v_scale.strides[1] += 1;
            CHECK_NOTHROW(setup.check());
            setup.tensors.v_scale = setup.tensors.k_scale;  // inputs may be one
            CHECK_NOTHROW(setup.check());
        }
        Setup heads_first = padded();
        heads_first.spec.page_order = PageOrder::HND;
        heads_first.tensors.k = at(2, DType::bf16, {9, 2, 16, 64});
        heads_first.tensors.v = at(3, DType::bf16, {9, 2, 16, 32});
        heads_first = with_token_scales(heads_first, scale);
        CHECK_NOTHROW(heads_first.check());
        std::swap(heads_first.tensors.v_scale.shape[1], heads_first.tensors.v_scale.shape[2]);
        CHECK(refused([&] { heads_first.check(); }).field() == "v_scale.shape[1]");
    }
}

TEST_CASE("scales behind each head's columns are a view of the cache", "[tensors]") {
    Setup setup = padded();
    setup.spec.alignment = 4;
    const Tensor rows = at(2, DType::uint8, {9, 16, 2, 68}), of_values = at(3, DType::uint8, {9, 16, 2, 36});
    setup = with_token_scales(setup, KvScale::token_head);
    const auto behind = [](const Tensor& all, std::int64_t columns) {
        Tensor scales = moved(all, columns).select(3, 0);
        scales.dtype = DType::fp32;
        for (int axis = 0; axis < 3; ++axis) scales.strides[static_cast<std::size_t>(axis)] /= 4;
        return scales;
    };
    setup.tensors.k = rows.slice(3, 0, 64), setup.tensors.v = of_values.slice(3, 0, 32);
    setup.tensors.k_scale = behind(rows, 64), setup.tensors.v_scale = behind(of_values, 32);
    CHECK_NOTHROW(setup.check());
    setup.tensors.k_scale = moved(setup.tensors.k_scale, 2);
    const InvalidRequest error = refused([&] { setup.check(); });
    CHECK((error.field() == "k_scale.data" && contains(error.accepted(), "a multiple of 4 bytes")));
    // What is written must be no part of them.
    setup.tensors.k_scale = behind(rows, 64);
    setup.tensors.o = at(2, DType::bf16, {11, 8, 32});
    CHECK(refused([&] { setup.check(); }).field() == "o");
}

TEST_CASE("what is wrong with scales of each token is named with its remedy", "[tensors]") {
    struct Wrong {
        const char *field, *accepted;
        std::function<void(AttentionTensors&)> spoil;
    };
    const Wrong of_heads[] = {
        {"k_scale", "the axes of k but the last", [](AttentionTensors& t) { t.k_scale = {}; }},
        {"v_scale", "kv_scale is token_head", [](AttentionTensors& t) { t.v_scale = {}; }},
        {"k_scale.dtype", "fp32", [](AttentionTensors& t) { t.k_scale.dtype = DType::bf16; }},
        {"k_scale.rank", "3: the axes of k but the last",
         [](AttentionTensors& t) { t.k_scale = at(12, DType::fp32, {2}); }},
        {"k_scale.rank", "3",
         [](AttentionTensors& t) {
             t.k_scale = at(12, DType::fp32, {3, 7, 2, 1});
         }},
        {"k_scale.shape[1]", "7 (k.shape[1])", [](AttentionTensors& t) { t.k_scale.shape[1] = 6; }},
        {"v_scale.shape[2]", "2 (v.shape[2])", [](AttentionTensors& t) { t.v_scale.shape[2] = 8; }},
        {"v_scale.strides[0]", "a stride from 0", [](AttentionTensors& t) { t.v_scale.strides[0] = -7; }},
        {"k_scale.data", "device memory", [](AttentionTensors& t) { t.k_scale.data = nullptr; }},
    };
    for (const Wrong& wrong : of_heads) {
        Setup setup = with_token_scales(dense(), KvScale::token_head);
        wrong.spoil(setup.tensors);
        const InvalidRequest error = refused([&] { setup.check(); });
        INFO(error.what());
        CHECK((error.field() == wrong.field && contains(error.accepted(), wrong.accepted)));
    }
    const Wrong of_blocks[] = {
        {"k_scale", "one of 128 columns a block", [](AttentionTensors& t) { t.k_scale = {}; }},
        {"v_scale.rank", "4: the axes of v but the last, and one of 128 columns a block",
         [](AttentionTensors& t) {
             t.v_scale = at(13, DType::fp32, {3, 7, 2});
         }},
        {"k_scale.shape[3]", "1 (blocks of 128 of the 64 columns of k)",
         [](AttentionTensors& t) { t.k_scale.shape[3] = 2; }},
    };
    for (const Wrong& wrong : of_blocks) {
        Setup setup = with_token_scales(dense(), KvScale::block128);
        wrong.spoil(setup.tensors);
        const InvalidRequest error = refused([&] { setup.check(); });
        INFO(error.what());
        CHECK((error.field() == wrong.field && contains(error.accepted(), wrong.accepted)));
    }
}

TEST_CASE("strides and bases of 8 bits are aligned in bytes", "[tensors]") {
    for (const int alignment : {16, 8, 4, 2}) {
        INFO(alignment);
        Setup setup = dense();
        setup.spec.kv_dtype = DType::e4m3;
        setup.spec.alignment = alignment;
        setup.tensors.v = at(3, DType::e4m3, {3, 7, 2, 32});
        setup.tensors.k = moved(at(2, DType::e4m3, {3, 7, 2, 64 + alignment}), alignment).slice(3, 0, 64);
        CHECK_NOTHROW(setup.check());
        Setup base = setup;
        base.tensors.k = moved(base.tensors.k, alignment / 2);
        CHECK(refused([&] { base.check(); }).field() == "k.data");
        Setup stride = setup;
        stride.tensors.k.strides[1] += alignment / 2;
        const InvalidRequest of_stride = refused([&] { stride.check(); });
        CHECK(of_stride.field() == "k.strides[1]");
        CHECK(contains(of_stride.accepted(), fmt::format("a multiple of {} elements", alignment)));
    }
}

TEST_CASE("what is wrong with the tensors is named", "[tensors]") {
    const auto null = [](Tensor AttentionTensors::*member) {
        return [=](Setup& s) { (s.tensors.*member).data = nullptr; };
    };
    const auto gone = [](Tensor AttentionTensors::*member) {
        return [=](Setup& s) { s.tensors.*member = {}; };
    };
    const auto gone_index = [](Tensor Batch::*member) { return [=](Setup& s) { s.batch.*member = {}; }; };
    const auto extra_index = [](Tensor Batch::*member) {
        return [=](Setup& s) { s.batch.*member = at(15, DType::int32, {3}); };
    };
    const Case cases[] = {
        // Absent and null.
        {dense, "q", "the queries", gone(&AttentionTensors::q)},
        {dense, "k", "the keys", gone(&AttentionTensors::k)},
        {dense, "v", "the values", gone(&AttentionTensors::v)},
        {dense, "o", "memory for the output", gone(&AttentionTensors::o)},
        {full, "lse", "the spec asks for", gone(&AttentionTensors::lse)},
        {full, "sinks", "fp32 [q_heads]", gone(&AttentionTensors::sinks)},
        {full, "alibi_slopes", "fp32 [q_heads]", gone(&AttentionTensors::alibi_slopes)},
        {dense, "q.data", "a null pointer", null(&AttentionTensors::q)},
        {dense, "k.data", "a null pointer", null(&AttentionTensors::k)},
        {dense, "v.data", "a null pointer", null(&AttentionTensors::v)},
        {dense, "o.data", "a null pointer", null(&AttentionTensors::o)},
        {full, "lse.data", "a null pointer", null(&AttentionTensors::lse)},
        {full, "sinks.data", "a null pointer", null(&AttentionTensors::sinks)},
        {ragged, "batch.q_indptr.data", "a null pointer", [](Setup& s) { s.batch.q_indptr.data = nullptr; }},
        {padded, "batch.page_table.data", "a null pointer",
         [](Setup& s) { s.batch.page_table.data = nullptr; }},
        // Present where the spec has none.
        {full, "lse", "a spec with lse", [](Setup& s) { s.spec.lse = false; }},
        {full, "sinks", "a spec with sink", [](Setup& s) { s.spec.sink = false; }},
        {full, "alibi_slopes", "a spec with alibi", [](Setup& s) { s.spec.alibi = false; }},
        // Types.
        {dense, "q.dtype", "fp16 is not accepted; expected bf16",
         [](Setup& s) { s.tensors.q.dtype = DType::fp16; }},
        {dense, "k.dtype", "expected bf16", [](Setup& s) { s.tensors.k.dtype = DType::fp32; }},
        {dense, "v.dtype", "expected bf16", [](Setup& s) { s.tensors.v.dtype = static_cast<DType>(99); }},
        {dense, "o.dtype", "expected bf16", [](Setup& s) { s.tensors.o.dtype = DType::fp32; }},
        {full, "lse.dtype", "expected fp32", [](Setup& s) { s.tensors.lse.dtype = DType::bf16; }},
        {full, "sinks.dtype", "expected fp32", [](Setup& s) { s.tensors.sinks.dtype = DType::bf16; }},
        {full, "batch.kv_lens.dtype", "expected int32",
         [](Setup& s) { s.batch.kv_lens.dtype = DType::int64; }},
        {ragged, "batch.q_indptr.dtype", "expected int64",
         [](Setup& s) { s.spec.index_dtype = DType::int64; }},
        // Ranks and extents.
        {dense, "q.rank", "4 [batch, q_len, q_heads, head_dim_qk]", [](Setup& s) { s.tensors.q.rank = 3; }},
        {dense, "q.rank", "99 is not accepted", [](Setup& s) { s.tensors.q.rank = 99; }},
        {dense, "q.rank", "-1 is not accepted", [](Setup& s) { s.tensors.q.rank = -1; }},
        {ragged, "q.rank", "3 [query tokens",
         [](Setup& s) {
             s.tensors.q = at(1, DType::bf16, {3, 5, 8, 64});
         }},
        {dense, "q.shape[0]", "from 0", [](Setup& s) { s.tensors.q.shape[0] = -3; }},
        {dense, "q.shape[1]", "from 0", [](Setup& s) { s.tensors.q.shape[1] = kInt64Max; }},
        {dense, "q.shape[2]", "8 (q_heads)", [](Setup& s) { s.tensors.q.shape[2] = 7; }},
        {dense, "q.shape[3]", "64 (head_dim_qk)", [](Setup& s) { s.tensors.q.shape[3] = 32; }},
        {dense, "k.shape[0]", "3 (batch)", [](Setup& s) { s.tensors.k.shape[0] = 2; }},
        {dense, "k.shape[2]", "2 (kv_heads)", [](Setup& s) { s.tensors.k.shape[2] = 8; }},
        {dense, "v.shape[1]", "7 (kv_len)", [](Setup& s) { s.tensors.v.shape[1] = 6; }},
        {dense, "v.shape[3]", "32 (head_dim_vo)", [](Setup& s) { s.tensors.v.shape[3] = 64; }},
        {dense, "o.shape[1]", "5 (q_len of q)", [](Setup& s) { s.tensors.o.shape[1] = 4; }},
        {dense, "o.shape[3]", "32 (head_dim_vo)", [](Setup& s) { s.tensors.o.shape[3] = 64; }},
        {ragged, "v.shape[0]", "20 (KV tokens)", [](Setup& s) { s.tensors.v.shape[0] = 19; }},
        {ragged, "o.shape[0]", "11 (query tokens", [](Setup& s) { s.tensors.o.shape[0] = 12; }},
        {padded, "k.shape[1]", "16 (page_size)", [](Setup& s) { s.tensors.k.shape[1] = 32; }},
        {padded, "v.shape[0]", "9 (pages)", [](Setup& s) { s.tensors.v.shape[0] = 8; }},
        {full, "lse.rank", "3 [batch, q_len of q, q_heads]",
         [](Setup& s) {
             s.tensors.lse = at(5, DType::fp32, {3, 5, 8, 1});
         }},
        {full, "lse.shape[1]", "5 (q_len", [](Setup& s) { s.tensors.lse.shape[1] = 6; }},
        {full, "sinks.shape[0]", "8 (q_heads)", [](Setup& s) { s.tensors.sinks.shape[0] = 2; }},
        {full, "alibi_slopes.rank", "1 [q_heads]",
         [](Setup& s) {
             s.tensors.alibi_slopes = at(7, DType::fp32, {8, 1});
         }},
        {dense, "q.shape[0]", "a batch of at most 1048576",
         [](Setup& s) { s.tensors.q.shape[0] = kMaxBatch + 1; }},
        {dense, "q.shape", "queries in all",
         [](Setup& s) {
             s.tensors.q.shape[0] = 1 << 20;
             s.tensors.q.shape[1] = 1 << 20;
         }},
        {ragged, "q.shape", "at most 536870656 with 4",
         [](Setup& s) {
             s.tensors.q = moved(at(1, DType::bf16, {std::int64_t{1} << 29, 8, 64}), std::int64_t{1} << 42);
             s.tensors.o = moved(at(1, DType::bf16, {std::int64_t{1} << 29, 8, 32}), std::int64_t{1} << 43);
         }},
        // Strides.
        {dense, "q.strides[3]", "the last axis is contiguous", [](Setup& s) { s.tensors.q.strides[3] = 2; }},
        {dense, "k.strides[3]", "the last axis is contiguous", [](Setup& s) { s.tensors.k.strides[3] = 0; }},
        {dense, "o.strides[3]", "the last axis is contiguous", [](Setup& s) { s.tensors.o.strides[3] = 8; }},
        {dense, "q.strides[1]", "a stride from 0", [](Setup& s) { s.tensors.q.strides[1] = -512; }},
        {dense, "v.strides[0]", "within 2^63 bytes",
         [](Setup& s) { s.tensors.v.strides[0] = kInt64Max / 2; }},
        {dense, "v.strides[0]", "within 2^63 bytes",
         [](Setup& s) { s.tensors.v.strides[0] = kInt64Max / 4; }},
        {dense, "q.strides[0]", "multiple of 8 elements (16 bytes",
         [](Setup& s) { s.tensors.q.strides[0] += 4; }},
        {dense, "o.strides[2]", "multiple of 8 elements", [](Setup& s) { s.tensors.o.strides[2] += 1; }},
        {dense, "q.data", "a multiple of 16 bytes", [](Setup& s) { s.tensors.q = moved(s.tensors.q, 8); }},
        {full, "lse.data", "a multiple of 4 bytes",
         [](Setup& s) { s.tensors.lse = moved(s.tensors.lse, 2); }},
        {full, "sinks.strides[0]", "contiguous", [](Setup& s) { s.tensors.sinks.strides[0] = 2; }},
        {ragged, "batch.q_indptr.strides[0]", "contiguous",
         [](Setup& s) { s.batch.q_indptr.strides[0] = 2; }},
        {ragged, "batch.kv_indptr.data", "a multiple of 4 bytes",
         [](Setup& s) { s.batch.kv_indptr = moved(s.batch.kv_indptr, 2); }},
        {padded, "batch.page_table.strides[1]", "contiguous",
         [](Setup& s) {
             s.batch.page_table = at(10, DType::int32, {6, 3}).permute({1, 0});
         }},
        {padded, "batch.page_table.strides[0]", "a stride from 0",
         [](Setup& s) { s.batch.page_table.strides[0] = -6; }},
        {dense, "k.data", "an address with",
         [](Setup& s) { s.tensors.k.data = reinterpret_cast<void*>(~std::uintptr_t{15}); }},
        // Outputs.
        {dense, "o.strides[2]", "above 0", [](Setup& s) { s.tensors.o.strides[2] = 0; }},
        {full, "lse.strides[0]", "above 0", [](Setup& s) { s.tensors.lse.strides[0] = 0; }},
        {dense, "o.strides", "no two elements", [](Setup& s) { s.tensors.o.strides[1] = 32; }},
        {dense, "o", "memory that overlaps q", [](Setup& s) { s.tensors.o.data = s.tensors.q.data; }},
        {dense, "o", "memory that overlaps k", [](Setup& s) { s.tensors.o.data = s.tensors.k.data; }},
        {dense, "o", "memory that overlaps v", [](Setup& s) { s.tensors.o.data = s.tensors.v.data; }},
        {full, "o", "memory that overlaps sinks", [](Setup& s) { s.tensors.sinks.data = s.tensors.o.data; }},
        {full, "o", "memory that overlaps batch.kv_lens",
         [](Setup& s) { s.batch.kv_lens.data = s.tensors.o.data; }},
        {full, "lse", "memory that overlaps q", [](Setup& s) { s.tensors.lse.data = s.tensors.q.data; }},
        {full, "lse", "memory that overlaps o", [](Setup& s) { s.tensors.lse.data = s.tensors.o.data; }},
        {padded, "o", "memory that overlaps batch.page_table",
         [](Setup& s) { s.batch.page_table.data = s.tensors.o.data; }},
        // Descriptors of the KV storage.
        {ragged, "batch.kv_indptr", "which ragged KV needs", gone_index(&Batch::kv_indptr)},
        {padded, "batch.kv_lens", "which a page_table needs", gone_index(&Batch::kv_lens)},
        {padded, "batch.page_table",
         "page_table with kv_lens, or page_indptr, page_indices and last_page_len",
         gone_index(&Batch::page_table)},
        {compressed, "batch.page_indptr", "together", gone_index(&Batch::page_indptr)},
        {compressed, "batch.page_indices", "together", gone_index(&Batch::page_indices)},
        {compressed, "batch.last_page_len", "together", gone_index(&Batch::last_page_len)},
        {compressed, "batch.page_table", "nothing: it belongs to pages by page_table",
         extra_index(&Batch::page_table)},
        {compressed, "batch.kv_lens", "nothing: it belongs to pages by page_table",
         extra_index(&Batch::kv_lens)},
        {padded, "batch.page_table", "nothing: it belongs to pages by page_table",
         extra_index(&Batch::page_indices)},
        {padded, "batch.kv_indptr", "ragged KV, and the spec's kv is paged", extra_index(&Batch::kv_indptr)},
        {dense, "batch.kv_indptr", "ragged KV, and the spec's kv is dense", extra_index(&Batch::kv_indptr)},
        {dense, "batch.page_table", "paged KV, and the spec's kv is dense", extra_index(&Batch::page_table)},
        {dense, "batch.last_page_len", "paged KV", extra_index(&Batch::last_page_len)},
        {ragged, "batch.kv_lens", "dense or paged KV, and the spec's kv is ragged",
         extra_index(&Batch::kv_lens)},
        {ragged, "batch.page_indptr", "paged KV", extra_index(&Batch::page_indptr)},
        {ragged, "batch.q_lens", "a dense q", extra_index(&Batch::q_lens)},
        // Their sizes.
        {ragged, "batch.q_indptr.shape[0]", "batch + 1", [](Setup& s) { s.batch.q_indptr.shape[0] = 0; }},
        {ragged, "batch.kv_indptr.shape[0]", "4 (batch + 1)",
         [](Setup& s) { s.batch.kv_indptr.shape[0] = 3; }},
        {full, "batch.q_lens.shape[0]", "3 (batch)", [](Setup& s) { s.batch.q_lens.shape[0] = 4; }},
        {padded, "batch.kv_lens.shape[0]", "3 (batch)", [](Setup& s) { s.batch.kv_lens.shape[0] = 4; }},
        {padded, "batch.page_table.shape[0]", "3 (batch)", [](Setup& s) { s.batch.page_table.shape[0] = 2; }},
        {rows, "batch.table_rows.shape[0]", "3 (batch)", [](Setup& s) { s.batch.table_rows.shape[0] = 4; }},
        {rows, "batch.table_rows.dtype", "int32", [](Setup& s) { s.batch.table_rows.dtype = DType::int64; }},
        {rows, "batch.page_table.shape[0]", "1 or more",
         [](Setup& s) { s.batch.page_table = at(10, DType::int32, {0, 6}); }},
        {rows, "o", "memory that overlaps batch.table_rows",
         [](Setup& s) { s.batch.table_rows.data = s.tensors.o.data; }},
        {compressed, "batch.table_rows", "nothing: it belongs to pages by page_table",
         extra_index(&Batch::table_rows)},
        {dense, "batch.table_rows", "paged KV, and the spec's kv is dense", extra_index(&Batch::table_rows)},
        {ragged, "batch.table_rows", "paged KV, and the spec's kv is ragged",
         extra_index(&Batch::table_rows)},
        {padded, "batch.page_table.rank", "2 [batch",
         [](Setup& s) { s.batch.page_table = at(10, DType::int32, {18}); }},
        {compressed, "batch.page_indptr.shape[0]", "4 (batch + 1)",
         [](Setup& s) { s.batch.page_indptr.shape[0] = 3; }},
        {compressed, "batch.last_page_len.shape[0]", "3 (batch)",
         [](Setup& s) { s.batch.last_page_len.shape[0] = 4; }},
        {dense, "batch.max_q_len", "from 1, or 0", [](Setup& s) { s.batch.max_q_len = -1; }},
        {dense, "batch.max_kv_len", "from 1, or 0", [](Setup& s) { s.batch.max_kv_len = -1; }},
    };
    for (const Case& bad : cases) {
        Setup setup = bad.setup();
        REQUIRE_NOTHROW(setup.check());
        bad.spoil(setup);
        INFO(bad.field << " " << bad.message);
        const InvalidRequest error = refused([&] { setup.check(); });
        INFO(error.what());
        CHECK(error.field() == bad.field);
        CHECK(contains(error.what(), bad.message));
    }
}
