// What may be bound to a kernel of op append.
#include <cstdint>
#include <functional>
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

// 11 tokens of 8 query and 2 KV heads of 64, into 9 pages of 16, that are right, to be spoiled.
struct Setup {
    AttentionSpec spec{.op = Op::append,
                       .head_dim_qk = 64,
                       .q_heads = 8,
                       .kv_heads = 2,
                       .kv = KvStorage::paged,
                       .page_size = 16};
    AppendTensors tensors{.q = at(1, DType::bf16, {11, 8, 64}),
                          .k = at(2, DType::bf16, {11, 2, 64}),
                          .v = at(3, DType::bf16, {11, 2, 64}),
                          .q_out = at(4, DType::bf16, {11, 8, 64}),
                          .k_cache = at(5, DType::bf16, {9, 16, 2, 64}),
                          .v_cache = at(6, DType::bf16, {9, 16, 2, 64}),
                          .slot_mapping = at(7, DType::int64, {11})};
    Batch batch{};

    BoundShape check() const {
        return ops::check_operands(validate(spec, {}), problem::Operands::of(tensors, batch));
    }

    void rotate() {
        spec.rope = Rope::half;
        tensors.positions = at(8, DType::int64, {11});
        tensors.rope_table = at(9, DType::fp32, {100, 64});
    }
    void find_by_table() {
        spec.slots = Slots::table;
        tensors.slot_mapping = {};
        batch.q_indptr = at(20, DType::int32, {4});
        batch.kv_lens = at(21, DType::int32, {3});
        batch.page_table = at(22, DType::int32, {3, 5});
    }
    void take_latents() {
        spec = {.op = Op::append,
                .head_dim_ckv = 512,
                .head_dim_kpe = 64,
                .q_heads = 8,
                .kv = KvStorage::paged,
                .page_size = 16};
        tensors = {.q = at(1, DType::bf16, {11, 8, 64}),
                   .k = at(2, DType::bf16, {11, 576}),
                   .q_out = at(4, DType::bf16, {11, 8, 64}),
                   .k_cache = at(5, DType::bf16, {9, 16, 576}),
                   .slot_mapping = at(7, DType::int32, {11})};
    }
    // Scales of each token and head, in tensors of their own.
    void scale_tokens() {
        spec.kv_dtype = DType::e4m3, spec.kv_scale = KvScale::token_head;
        tensors.k_cache.dtype = tensors.v_cache.dtype = DType::e4m3;
        tensors.k_scale = at(10, DType::fp32, {9, 16, 2}), tensors.v_scale = at(11, DType::fp32, {9, 16, 2});
    }
    // 64 columns of 8 bits, a scale behind them, and 12 bytes that nothing has.
    void scale_inline() {
        scale_tokens();
        tensors.k_cache = at(5, DType::e4m3, {9, 16, 2, 80}).slice(3, 0, 64);
        tensors.v_cache = at(6, DType::e4m3, {9, 16, 2, 80}).slice(3, 0, 64);
        tensors.k_scale = at(5, DType::fp32, {9, 16, 2, 20}).select(3, 16);
        tensors.v_scale = at(6, DType::fp32, {9, 16, 2, 20}).select(3, 16);
    }
    // Rows of 656 bytes: 512 columns of 8 bits, 4 scales, 64 columns of 16 bits.
    void scale_blocks() {
        take_latents();
        spec.kv_dtype = DType::e4m3, spec.kv_scale = KvScale::block128;
        tensors.k_cache = at(5, DType::uint8, {9, 16, 656}).slice(2, 0, 512);
        tensors.k_scale = at(5, DType::fp32, {9, 16, 164}).slice(2, 128, 132);
        tensors.kpe_cache = at(5, DType::bf16, {9, 16, 328}).slice(2, 264, 328);
    }
};

}  // namespace

TEST_CASE("what an append's tensors hold", "[append][tensors]") {
    Setup setup;
    const BoundShape bound = setup.check();
    CHECK(bound.q_tokens == 11);
    CHECK(bound.pages == 9);
    setup.find_by_table();
    CHECK(setup.check().batch == 3);
    CHECK(setup.check().max_kv_len == 80);
}

TEST_CASE("forms of an append's tensors", "[append][tensors]") {
    const std::function<void(Setup&)> forms[] = {
        [](Setup& s) { s.tensors.q_out = s.tensors.q; },  // in place
        [](Setup& s) {                                    // slices of fused rows, q in place
            const Tensor rows = at(1, DType::bf16, {11, 12, 64});
            s.tensors.q = s.tensors.q_out = rows.slice(1, 0, 8);
            s.tensors.k = rows.slice(1, 8, 10), s.tensors.v = rows.slice(1, 10, 12);
        },
        [](Setup& s) { s.tensors.q = s.tensors.q_out = {}; },
        [](Setup& s) { s.tensors = {.q = s.tensors.q, .q_out = s.tensors.q_out}; },
        [](Setup& s) { s.tensors.slot_mapping.dtype = DType::int32; },
        [](Setup& s) { s.rotate(); },
        [](Setup& s) { s.rotate(), s.tensors.rope_table.dtype = DType::bf16; },
        [](Setup& s) {
            s.rotate(), s.spec.rope_table = RopeTable::frequencies;
            s.tensors.rope_table = at(9, DType::fp32, {32});
        },
        [](Setup& s) {  // 20 of 64 columns: a row is no multiple of 16 bytes, and is not read as one
            s.rotate(), s.spec.rotary_dim = 20;
            s.tensors.rope_table = at(9, DType::bf16, {100, 20});
        },
        [](Setup& s) {  // 12 angles: not in eights, which half loads side by side
            s.rotate(), s.spec.rotary_dim = 24;
            s.tensors.rope_table = at(9, DType::fp32, {100, 24});
            s.tensors.rope_table.data = static_cast<char*>(s.tensors.rope_table.data) + 4;
        },
        [](Setup& s) {
            s.rotate(), s.find_by_table();
            s.tensors.positions = {};
        },
        [](Setup& s) {
            s.find_by_table();
            s.batch = {.q_indptr = s.batch.q_indptr,
                       .page_indptr = at(22, DType::int32, {4}),
                       .page_indices = at(23, DType::int32, {30}),
                       .last_page_len = at(24, DType::int32, {3})};
        },
        [](Setup& s) {  // [batch, q_len, ...] into a dense cache
            s.spec.kv = KvStorage::dense, s.spec.page_size = 0, s.spec.slots = Slots::table;
            s.tensors = {.k = at(2, DType::bf16, {3, 4, 2, 64}),
                         .v = at(3, DType::bf16, {3, 4, 2, 64}),
                         .k_cache = at(5, DType::bf16, {3, 50, 2, 64}),
                         .v_cache = at(6, DType::bf16, {3, 50, 2, 64})};
            s.batch.kv_lens = at(21, DType::int32, {3});
        },
        [](Setup& s) {
            s.spec.page_order = PageOrder::HND;
            s.tensors.k_cache = s.tensors.v_cache = at(5, DType::bf16, {9, 2, 16, 64});
            s.tensors.v_cache.data = at(6, DType::bf16, {1}).data;
        },
        [](Setup& s) {
            s.spec.q_norm = s.spec.k_norm = s.spec.v_norm = true;
            s.tensors.q_norm_weight = at(10, DType::fp32, {64});
            s.tensors.k_norm_weight = at(11, DType::bf16, {64});
        },
        [](Setup& s) {
            s.spec.kv_dtype = s.spec.q_dtype = DType::e4m3, s.spec.kv_scale = KvScale::head;
            s.tensors.k_cache.dtype = DType::e4m3, s.tensors.v_cache.dtype = DType::uint8;
            s.tensors.q_out.dtype = DType::uint8;
            s.tensors.k_scale = at(10, DType::fp32, {2}), s.tensors.v_scale = at(11, DType::fp32, {2});
            s.tensors.q_scale = at(12, DType::fp32, {1});
        },
        [](Setup& s) { s.take_latents(); },
        [](Setup& s) {
            s.take_latents();
            s.tensors.k = at(2, DType::bf16, {11, 1, 512}), s.tensors.kpe = at(3, DType::bf16, {11, 64});
            s.tensors.k_cache = at(5, DType::bf16, {9, 16, 512});
            s.tensors.kpe_cache = at(6, DType::bf16, {9, 16, 1, 64});
        },
        [](Setup& s) { s.scale_tokens(); },
        [](Setup& s) {  // with any strides
            s.scale_tokens();
            s.tensors.k_scale = at(10, DType::fp32, {2, 9, 16, 3}).select(3, 1).permute({1, 2, 0});
        },
        [](Setup& s) { s.scale_inline(); },
        [](Setup& s) {  // one tensor of keys and values, with their scales
            s.scale_tokens();
            const Tensor bytes = at(5, DType::e4m3, {9, 2, 16, 2, 80});
            const Tensor floats = at(5, DType::fp32, {9, 2, 16, 2, 20});
            s.tensors.k_cache = bytes.select(1, 0).slice(3, 0, 64);
            s.tensors.v_cache = bytes.select(1, 1).slice(3, 0, 64);
            s.tensors.k_scale = floats.select(1, 0).select(3, 16);
            s.tensors.v_scale = floats.select(1, 1).select(3, 16);
        },
        [](Setup& s) {
            s.scale_inline(), s.spec.page_order = PageOrder::HND;
            for (Tensor* tensor : {&s.tensors.k_cache, &s.tensors.v_cache})
                *tensor = tensor->permute({0, 2, 1, 3});
            for (Tensor* tensor : {&s.tensors.k_scale, &s.tensors.v_scale})
                *tensor = tensor->permute({0, 2, 1});
        },
        [](Setup& s) {
            s.scale_tokens(), s.spec.kv_scale = KvScale::block128;
            s.tensors.k_scale = at(10, DType::fp32, {9, 16, 2, 1});
            s.tensors.v_scale = at(11, DType::fp32, {9, 16, 2, 1});
        },
        [](Setup& s) { s.scale_blocks(); },
        [](Setup& s) {
            s.scale_blocks();
            s.tensors.k_cache = at(5, DType::uint8, {9, 16, 1, 656}).slice(3, 0, 512);
            s.tensors.k_scale = at(5, DType::fp32, {9, 16, 1, 164}).slice(3, 128, 132);
        },
        [](Setup& s) {  // one scale for the latent and the position
            s.take_latents();
            s.spec.kv_dtype = DType::e4m3, s.spec.kv_scale = KvScale::token_head;
            s.tensors.k_cache = at(5, DType::uint8, {9, 16, 592}).slice(2, 0, 576);
            s.tensors.k_scale = at(5, DType::fp32, {9, 16, 148}).select(2, 144);
        },
        [](Setup& s) {  // no tokens
            for (Tensor* tensor :
                 {&s.tensors.q, &s.tensors.k, &s.tensors.v, &s.tensors.q_out, &s.tensors.slot_mapping})
                tensor->shape[0] = 0;
        },
    };
    int form = 0;
    for (const auto& change : forms) {
        Setup setup;
        change(setup);
        CAPTURE(form++);
        CHECK_NOTHROW(setup.check());
    }
}

TEST_CASE("what is wrong with an append's tensors is named", "[append][tensors]") {
    struct Case {
        const char* field;
        std::function<void(Setup&)> spoil;
        const char* message = "";
    };
    const Case cases[] = {
        {"k", [](Setup& s) { s.tensors = {}; }, "q with q_out"},
        {"q_out", [](Setup& s) { s.tensors.q_out = {}; }},
        {"q_out", [](Setup& s) { s.tensors.q = {}; }, "belongs to q"},
        {"v", [](Setup& s) { s.tensors.v = {}; }},
        {"k_cache", [](Setup& s) { s.tensors.k_cache = {}; }},
        {"v_cache", [](Setup& s) { s.tensors.v_cache = {}; }},
        {"kpe",
         [](Setup& s) {
             s.tensors.kpe = at(12, DType::bf16, {11, 64});
         }},
        {"slot_mapping", [](Setup& s) { s.tensors.slot_mapping = {}; }},
        {"slot_mapping.shape[0]", [](Setup& s) { s.tensors.slot_mapping.shape[0] = 12; }},
        {"slot_mapping.dtype", [](Setup& s) { s.tensors.slot_mapping.dtype = DType::fp32; }},
        {"k.shape[0]", [](Setup& s) { s.tensors.k.shape[0] = 10; }},
        {"k.shape[1]", [](Setup& s) { s.tensors.k.shape[1] = 4; }},
        {"k.dtype", [](Setup& s) { s.tensors.k.dtype = DType::fp16; }},
        {"k.strides[2]", [](Setup& s) { s.tensors.k.strides[2] = 2; }},
        {"k.strides[0]", [](Setup& s) { s.tensors.k.strides[0] = 129; }},
        {"k_cache.shape[1]", [](Setup& s) { s.tensors.k_cache.shape[1] = 8; }},
        {"v_cache.shape[0]", [](Setup& s) { s.tensors.v_cache.shape[0] = 8; }},
        {"k_cache.dtype", [](Setup& s) { s.tensors.k_cache.dtype = DType::e4m3; }},
        {"k_cache.strides[0]", [](Setup& s) { s.tensors.k_cache.strides[0] = 0; }},
        {"positions", [](Setup& s) { s.tensors.positions = at(8, DType::int32, {11}); }},
        {"positions", [](Setup& s) { s.rotate(), s.tensors.positions = {}; }},
        {"positions.rank",
         [](Setup& s) {
             s.rotate(), s.tensors.positions = at(8, DType::int32, {3, 11});
         },
         "M-RoPE"},
        {"rope_table", [](Setup& s) { s.rotate(), s.tensors.rope_table = {}; }},
        {"rope_table.shape[1]", [](Setup& s) { s.rotate(), s.tensors.rope_table.shape[1] = 32; }},
        {"rope_table.dtype", [](Setup& s) { s.rotate(), s.tensors.rope_table.dtype = DType::fp16; },
         "fp32 or bf16"},
        {"q_norm_weight", [](Setup& s) { s.tensors.q_norm_weight = at(10, DType::fp32, {64}); }},
        {"k_norm_weight", [](Setup& s) { s.spec.k_norm = true; }},
        {"k_scale", [](Setup& s) { s.tensors.k_scale = at(10, DType::fp32, {1}); }},
        {"q_scale", [](Setup& s) { s.tensors.q_scale = at(10, DType::fp32, {1}); }},
        {"k_scale", [](Setup& s) { s.scale_tokens(), s.tensors.k_scale = {}; },
         "the axes of k_cache but the last"},
        {"v_scale.rank", [](Setup& s) { s.scale_tokens(), s.tensors.v_scale = at(11, DType::fp32, {2}); }},
        {"k_scale.shape[1]", [](Setup& s) { s.scale_tokens(), s.tensors.k_scale.shape[1] = 15; }},
        {"k_scale.dtype", [](Setup& s) { s.scale_tokens(), s.tensors.k_scale.dtype = DType::bf16; }},
        {"k_scale.strides[1]", [](Setup& s) { s.scale_tokens(), s.tensors.k_scale.strides[1] = 0; }},
        {"k_scale.data",
         [](Setup& s) {
             s.scale_tokens(), s.tensors.k_scale.data = static_cast<char*>(s.tensors.k_scale.data) + 2;
         },
         "a multiple of 4 bytes"},
        // Within the rows, but upon the last of their columns.
        {"k_scale",
         [](Setup& s) {
             s.scale_inline(), s.tensors.k_scale.data = static_cast<char*>(s.tensors.k_scale.data) - 4;
         },
         "overlaps k_cache"},
        {"v_scale", [](Setup& s) { s.scale_inline(), s.tensors.v_scale.data = s.tensors.k_scale.data; },
         "overlaps k_scale"},
        {"k_scale", [](Setup& s) { s.scale_tokens(), s.tensors.k_scale.data = s.tensors.k.data; },
         "overlaps k"},
        {"k_scale.shape[2]", [](Setup& s) { s.scale_blocks(), s.tensors.k_scale.shape[2] = 3; },
         "blocks of 128 of the"},
        {"kpe_cache", [](Setup& s) { s.scale_blocks(), s.tensors.kpe_cache = {}; }, "block128"},
        {"kpe_cache.dtype", [](Setup& s) { s.scale_blocks(), s.tensors.kpe_cache.dtype = DType::uint8; },
         "bf16"},
        {"v_scale",
         [](Setup& s) {
             s.scale_blocks(), s.tensors.v_scale = at(11, DType::fp32, {9, 16, 4});
         }},
        {"batch.kv_lens", [](Setup& s) { s.batch.kv_lens = at(21, DType::int32, {3}); }, "slots table"},
        {"batch.max_kv_len", [](Setup& s) { s.batch.max_kv_len = 5; }},
        {"slot_mapping",
         [](Setup& s) { s.find_by_table(), s.tensors.slot_mapping = at(7, DType::int32, {11}); }},
        {"batch.kv_lens", [](Setup& s) { s.find_by_table(), s.batch.kv_lens = {}; }},
        {"batch.page_table", [](Setup& s) { s.find_by_table(), s.batch.page_table = {}; }},
        {"batch.page_table.shape[0]", [](Setup& s) { s.find_by_table(), s.batch.page_table.shape[0] = 2; }},
        {"batch.kv_indptr",
         [](Setup& s) { s.find_by_table(), s.batch.kv_indptr = at(25, DType::int32, {4}); }},
        {"batch.max_q_len", [](Setup& s) { s.find_by_table(), s.batch.max_q_len = -1; }},
        {"q_out", [](Setup& s) { s.tensors.q_out.data = static_cast<char*>(s.tensors.q.data) + 128; },
         "exactly the view"},
        {"q_out", [](Setup& s) { s.tensors.q_out.data = s.tensors.k.data; }},
        {"q_out",  // it begins where q does, and its elements are half as large
         [](Setup& s) {
             s.spec.q_dtype = DType::e4m3, s.tensors.q_out = at(1, DType::e4m3, {11, 8, 64});
         },
         "exactly the view"},
        {"q_out",
         [](Setup& s) {
             s.spec.q_dtype = DType::e5m2, s.tensors.q_out = at(1, DType::uint8, {11, 8, 64});
         },
         "exactly the view"},
        {"q_out",  // it begins where q does, and its tokens are twice as far from each other
         [](Setup& s) {
             s.tensors.q_out = at(1, DType::bf16, {11, 16, 64}).slice(1, 0, 8);
         },
         "exactly the view"},
        {"kpe_cache",
         [](Setup& s) {
             s.scale_blocks(), s.tensors.kpe_cache = at(5, DType::bf16, {9, 16, 328}).slice(2, 192, 256);
         },
         "overlaps k_cache"},
        {"kpe_cache", [](Setup& s) { s.scale_blocks(), s.tensors.kpe_cache.data = s.tensors.k.data; },
         "overlaps k"},
        {"k_cache", [](Setup& s) { s.tensors.k_cache.data = s.tensors.k.data; }},
        {"v_cache", [](Setup& s) { s.tensors.v_cache.data = s.tensors.k_cache.data; }},
        {"v",
         [](Setup& s) {
             s.take_latents(), s.tensors.v = at(3, DType::bf16, {11, 1, 64});
         }},
        {"k.shape[1]",
         [](Setup& s) {
             s.take_latents(), s.tensors.k = at(2, DType::bf16, {11, 512});
         }},
        {"q.shape[2]",
         [](Setup& s) {
             s.take_latents(), s.tensors.q = at(1, DType::bf16, {11, 8, 576});
         }},
    };
    for (const Case& one : cases) {
        Setup setup;
        one.spoil(setup);
        CAPTURE(one.field, one.message);
        const InvalidRequest error = refused([&] { setup.check(); });
        CHECK(error.field() == one.field);
        CHECK(contains(error.what(), one.message));
    }
}
