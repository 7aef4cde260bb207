// The tensors of op mla: columns in one tensor or apart, with an axis of heads or without, in each storage.
#include <cstddef>
#include <functional>
#include <string>

#include "bound_tensors.hpp"
#include "expect.hpp"

using namespace attnsmith;
using namespace attnsmith::problem;
using attnsmith::test::at;
using attnsmith::test::contains;
using attnsmith::test::refused;

namespace {

using Setup = attnsmith::test::BoundTensors;

// batch 3, 2 queries, 7 keys.
Setup dense() {
    Setup setup;
    setup.spec = {.op = Op::mla, .head_dim_ckv = 128, .head_dim_kpe = 64, .q_heads = 8};
    setup.spec.scale = 0.1;
    setup.tensors.q = at(1, DType::bf16, {3, 2, 8, 192});
    setup.tensors.k = at(2, DType::bf16, {3, 7, 192});
    setup.tensors.o = at(4, DType::bf16, {3, 2, 8, 128});
    return setup;
}

Setup paged() {
    Setup setup = dense();
    setup.spec.kv = KvStorage::paged;
    setup.spec.page_size = 16;
    setup.tensors.k = at(2, DType::bf16, {9, 16, 192});
    setup.batch.page_table = at(10, DType::int32, {3, 6});
    setup.batch.kv_lens = at(11, DType::int32, {3});
    return setup;
}

Setup ragged() {
    Setup setup = dense();
    setup.spec.kv = KvStorage::ragged;
    setup.tensors.q = at(1, DType::bf16, {11, 8, 192});
    setup.tensors.o = at(4, DType::bf16, {11, 8, 128});
    setup.tensors.k = at(2, DType::bf16, {20, 192});
    setup.batch.q_indptr = at(8, DType::int32, {4});
    setup.batch.kv_indptr = at(9, DType::int32, {4});
    return setup;
}

// The columns of the position as views of their own.
Setup apart(Setup setup) {
    const auto part = [](const Tensor& whole, std::int64_t begin, std::int64_t end) {
        return whole.slice(whole.rank - 1, begin, end);
    };
    AttentionTensors& tensors = setup.tensors;
    tensors.q_pe = part(tensors.q, 128, 192), tensors.kpe = part(tensors.k, 128, 192);
    tensors.q = part(tensors.q, 0, 128), tensors.k = part(tensors.k, 0, 128);
    return setup;
}

// What spoils a binding: another tensor in the place of one of its own, or of one of those that are apart.
std::function<void(Setup&)> replaced(Tensor AttentionTensors::*which, const Tensor& tensor) {
    return [=](Setup& setup) { setup.tensors.*which = tensor; };
}
std::function<void(Setup&)> apart_with(Tensor AttentionTensors::*which, const Tensor& tensor) {
    return [=](Setup& setup) {
        setup = apart(setup);
        setup.tensors.*which = tensor;
    };
}

// With an axis of one KV head before the columns.
Tensor with_head(const Tensor& latents) {
    Tensor tensor = latents;
    const auto last = static_cast<std::size_t>(tensor.rank++ - 1);
    tensor.shape[last + 1] = latents.shape[last], tensor.strides[last + 1] = 1;
    tensor.shape[last] = 1, tensor.strides[last] = latents.shape[last];
    return tensor;
}

}  // namespace

TEST_CASE("latents in each storage, their columns in one tensor or apart", "[mla][tensors]") {
    for (const auto& make : {dense, paged, ragged}) {
        for (const bool are_apart : {false, true}) {
            for (const bool has_head : {false, true}) {
                Setup setup = make();
                if (has_head) setup.tensors.k = with_head(setup.tensors.k);
                if (are_apart) setup = apart(setup);
                CHECK(setup.check().batch == 3);
            }
        }
    }
    CHECK(paged().check().pages == 9);
    CHECK(paged().check().max_kv_len == 96);
    CHECK(ragged().check().kv_tokens == 20);
    CHECK(dense().check().max_kv_len == 7);
    // One of the two apart, the other in one.
    Setup half = apart(dense());
    half.tensors.q = dense().tensors.q, half.tensors.q_pe = {};
    CHECK(half.check().batch == 3);
    // Without columns of the position.
    Setup none = apart(dense());
    none.spec.head_dim_kpe = 0;
    none.tensors.q_pe = none.tensors.kpe = {};
    CHECK(none.check().batch == 3);
}

TEST_CASE("what is wrong with the tensors of op mla is named", "[mla][tensors]") {
    struct Case {
        std::string field, message;
        std::function<void(Setup&)> spoil;
    };
    const Case cases[] = {
        {"q.shape[3]", "192", replaced(&AttentionTensors::q, at(1, DType::bf16, {3, 2, 8, 128}))},
        {"q.shape[2]", "q_heads", replaced(&AttentionTensors::q, at(1, DType::bf16, {3, 2, 7, 192}))},
        {"k.shape[2]", "192", replaced(&AttentionTensors::k, at(2, DType::bf16, {3, 7, 128}))},
        {"k.shape[2]", "1", replaced(&AttentionTensors::k, at(2, DType::bf16, {3, 7, 2, 192}))},
        {"k.rank", "", replaced(&AttentionTensors::k, at(2, DType::bf16, {21, 192}))},
        {"k.dtype", "bf16", replaced(&AttentionTensors::k, at(2, DType::fp16, {3, 7, 192}))},
        {"k", "the latents", replaced(&AttentionTensors::k, {})},
        {"v", "first head_dim_ckv columns of k", replaced(&AttentionTensors::v, at(3, DType::bf16, {3, 7, 128}))},
        {"o.shape[3]", "128", replaced(&AttentionTensors::o, at(4, DType::bf16, {3, 2, 8, 192}))},
        {"sinks", "sink", replaced(&AttentionTensors::sinks, at(6, DType::fp32, {8}))},
        {"kpe.shape[1]", "7", apart_with(&AttentionTensors::kpe, at(6, DType::bf16, {3, 6, 64}))},
        {"kpe.shape[2]", "64", apart_with(&AttentionTensors::kpe, at(6, DType::bf16, {3, 7, 56}))},
        {"q_pe.shape[0]", "3", apart_with(&AttentionTensors::q_pe, at(6, DType::bf16, {2, 2, 8, 64}))},
        {"q_pe.dtype", "bf16",
         [](Setup& s) {
             s = apart(s);
             s.tensors.q_pe.dtype = DType::fp16;
         }},
        {"kpe", "16",
         [](Setup& s) {
             s = apart(s);
             s.tensors.kpe.data = static_cast<char*>(s.tensors.kpe.data) + 8;
         }},
        {"kpe", "head_dim_kpe",
         [](Setup& s) {
             s = apart(s);
             s.spec.head_dim_kpe = 0;
             s.tensors.q_pe = {};
         }},
        {"o", "overlaps kpe",
         [](Setup& s) {
             s = apart(s);
             s.tensors.kpe = at(6, DType::bf16, {3, 7, 64});
             s.tensors.o.data = s.tensors.kpe.data;
         }},
        {"o", "overlaps q_pe",
         [](Setup& s) {
             s = apart(s);
             s.tensors.q_pe = at(6, DType::bf16, {3, 2, 8, 64});
             s.tensors.o.data = s.tensors.q_pe.data;
         }},
    };
    for (const Case& bad : cases) {
        Setup setup = dense();
        bad.spoil(setup);
        const InvalidRequest error = refused([&] { setup.check(); });
        INFO(error.what() << ", expected " << bad.field);
        CHECK(contains(error.field(), bad.field));
        CHECK(contains(error.what(), bad.message));
    }
    // They belong to op mla.
    Setup other = dense();
    other.spec = {.head_dim_qk = 192, .head_dim_vo = 128, .q_heads = 8, .kv_heads = 1};
    other.tensors.k = at(2, DType::bf16, {3, 7, 1, 192});
    other.tensors.v = at(3, DType::bf16, {3, 7, 1, 128});
    CHECK(other.check().batch == 3);
    other.tensors.kpe = at(5, DType::bf16, {3, 7, 1, 64});
    CHECK(refused([&] { other.check(); }).field() == "kpe");
}

namespace {

// The rows of 656 bytes that caches of DeepSeek-V3.2 have: 512 columns of e4m3, 4 scales and 64 columns of
// the position in bf16, as three views.
Setup rows_of_656_bytes(bool has_head) {
    Setup setup = paged();
    setup.spec.head_dim_ckv = 512;
    setup.spec.kv_dtype = DType::e4m3;
    setup.spec.kv_scale = KvScale::block128;
    AttentionTensors& t = setup.tensors;
    t.q = at(1, DType::bf16, {3, 2, 8, 576});
    t.o = at(4, DType::bf16, {3, 2, 8, 512});
    const auto view = [](DType dtype, std::int64_t offset, std::int64_t columns) {
        Tensor tensor = at(2, dtype, {9, 16, columns});
        tensor.data = static_cast<std::byte*>(tensor.data) + offset;
        tensor.strides[0] = 16 * 656 / size_of(dtype), tensor.strides[1] = 656 / size_of(dtype);
        return tensor;
    };
    const auto shaped = [&](Tensor tensor) {
        if (!has_head) return tensor;
        tensor.rank = 4;
        tensor.shape[3] = tensor.shape[2], tensor.strides[3] = 1;
        tensor.shape[2] = 1, tensor.strides[2] = tensor.strides[1];
        return tensor;
    };
    t.k = shaped(view(DType::uint8, 0, 512));
    t.k_scale = shaped(view(DType::fp32, 512, 4));
    t.kpe = view(DType::bf16, 528, 64);
    return setup;
}

}  // namespace

TEST_CASE("latents with scales of blocks have their positions apart, in 16 bits", "[mla][tensors]") {
    for (const bool has_head : {false, true}) {
        const Setup good = rows_of_656_bytes(has_head);
        CHECK(good.check().pages == 9);
        Setup queries_apart = good;
        queries_apart.tensors.q_pe = good.tensors.q.slice(3, 512, 576);
        queries_apart.tensors.q = good.tensors.q.slice(3, 0, 512);
        CHECK_NOTHROW(queries_apart.check());
        struct Wrong {
            std::string field, accepted;
            std::function<void(AttentionTensors&)> spoil;
        };
        const Wrong all[] = {
            {"kpe", "bf16 [..., head_dim_kpe] of its own", [](AttentionTensors& t) { t.kpe = {}; }},
            {"kpe.dtype", "bf16", [](AttentionTensors& t) { t.kpe.dtype = DType::uint8; }},
            {"k.dtype", "e4m3", [](AttentionTensors& t) { t.k.dtype = DType::bf16; }},
            {has_head ? "k.shape[3]" : "k.shape[2]", "512 (head_dim_ckv)",
             [&](AttentionTensors& t) { t.k.shape[has_head ? 3 : 2] = 576; }},
            {has_head ? "k_scale.shape[3]" : "k_scale.shape[2]", "4 (blocks of 128 of the 512 columns of k)",
             [&](AttentionTensors& t) { t.k_scale.shape[has_head ? 3 : 2] = 5; }},
            {"k_scale.rank", has_head ? "4" : "3",
             [&](AttentionTensors& t) { t.k_scale = rows_of_656_bytes(!has_head).tensors.k_scale; }},
            {"v_scale", "op attention", [](AttentionTensors& t) { t.v_scale = t.k_scale; }},
        };
        for (const Wrong& wrong : all) {
            Setup setup = good;
            wrong.spoil(setup.tensors);
            const InvalidRequest error = refused([&] { setup.check(); });
            INFO(error.what());
            CHECK((error.field() == wrong.field && contains(error.accepted(), wrong.accepted)));
        }
    }
}

TEST_CASE("one scale of each token is that of all its columns", "[mla][tensors]") {
    for (const bool are_apart : {false, true}) {
        Setup setup = are_apart ? apart(paged()) : paged();
        setup.spec.kv_dtype = DType::e5m2;
        setup.spec.kv_scale = KvScale::token_head;
        setup.tensors.k.dtype = DType::e5m2;
        if (are_apart) setup.tensors.kpe.dtype = DType::e5m2;
        setup.tensors.k_scale = at(12, DType::fp32, {9, 16});
        CHECK_NOTHROW(setup.check());
        setup.tensors.k_scale = at(12, DType::fp32, {9, 16, 1});  // k has no axis of heads
        CHECK(refused([&] { setup.check(); }).field() == "k_scale.rank");
    }
}
