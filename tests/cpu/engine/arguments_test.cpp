// The arguments of an attention: each field, of tensors whose every extent and stride is another number.
#include <cmath>
#include <cstring>

#include "attnsmith/error.hpp"
#include "engine/fake_runtime.hpp"
#include "families/attention_arguments.hpp"
#include "ops/operands.hpp"
#include "planner/launch.hpp"
#include "planner/plan.hpp"
#include "planner/repository_tuning.hpp"

using namespace attnsmith;
using attnsmith::test::at;

namespace {

const AttentionSpec kSpec{
    .dtype = DType::fp16, .head_dim_qk = 64, .head_dim_vo = 128, .q_heads = 12, .kv_heads = 4};

struct Bound {
    planner::Launch launch;
    abi::AttentionArguments arguments;
};

Bound bind(const AttentionSpec& spec, const AttentionTensors& tensors, const Batch& batch) {
    const planner::Plan plan = planner::make_plan(problem::validate(spec, {1, 1, 65536}),
                                                  families::traits_of(89), planner::repository_tuning());
    const problem::Operands operands = problem::Operands::of(tensors, batch);
    const problem::BoundShape shape = ops::check_operands(plan.problem, operands);
    Bound bound{planner::launch_of(plan, shape), {}};
    const families::KernelConfig& kernel = plan.kernel(planner::Role::attention);
    const families::Bound made =
        kernel.family->bind(kernel, planner::context_of(plan, shape, bound.launch),
                            families::Binding{operands, at(9, DType::int32, {1}).data});
    REQUIRE(made.arguments.bytes().size() == sizeof bound.arguments);
    std::memcpy(&bound.arguments, made.arguments.data(), sizeof bound.arguments);
    return bound;
}

// Rows of [token][head][dim] with room between all of them.
Tensor strided(int place, std::initializer_list<std::int64_t> shape,
               std::initializer_list<std::int64_t> strides, DType dtype = DType::fp16) {
    Tensor tensor = at(place, dtype, shape);
    std::ranges::copy(strides, tensor.strides.begin());
    return tensor;
}

AttentionTensors dense() {
    return {.q = strided(1, {3, 5, 12, 64}, {9600, 1600, 80, 1}),
            .k = strided(2, {3, 700, 4, 64}, {600000, 720, 88, 1}),
            .v = strided(3, {3, 700, 4, 128}, {900000, 1200, 152, 1}),
            .o = strided(4, {3, 5, 12, 128}, {17000, 2400, 136, 1})};
}

// Compressed or padded pages of 16, and ragged queries.
AttentionTensors paged(PageOrder order) {
    const auto pages = [&](int place, std::int64_t dim) {
        return order == PageOrder::NHD ? strided(place, {50, 16, 4, dim}, {20000, 1000, 160, 1})
                                       : strided(place, {50, 4, 16, dim}, {20000, 4000, 168, 1});
    };
    return {.q = strided(1, {40, 12, 64}, {1600, 80, 1}),
            .k = pages(2, 64),
            .v = pages(3, 128),
            .o = strided(4, {40, 12, 128}, {2400, 136, 1})};
}

AttentionSpec paged_spec(PageOrder order) {
    AttentionSpec spec = kSpec;
    spec.kv = KvStorage::paged, spec.page_size = 16, spec.page_order = order;
    return spec;
}

}  // namespace

TEST_CASE("a dense batch's tensors, strides and lengths are the kernel's arguments", "[engine][arguments]") {
    const AttentionTensors tensors = dense();
    const Batch batch{.q_lens = at(5, DType::int32, {3}), .kv_lens = at(6, DType::int32, {3})};
    const auto [launch, a] = bind(kSpec, tensors, batch);
    CHECK((a.q == tensors.q.data && a.k == tensors.k.data && a.v == tensors.v.data && a.o == tensors.o.data));
    CHECK((a.lse == nullptr && a.sinks == nullptr && a.alibi_slopes == nullptr));
    CHECK((a.q_lens == batch.q_lens.data && a.kv_lens == batch.kv_lens.data));
    CHECK((a.q_indptr == nullptr && a.kv_indptr == nullptr));
    CHECK((a.page_ids == nullptr && a.page_indptr == nullptr && a.last_page_len == nullptr));
    CHECK((a.q_batch_stride == 9600 && a.q_token_stride == 1600 && a.q_head_stride == 80));
    CHECK((a.k_batch_stride == 600000 && a.k_token_stride == 720 && a.k_head_stride == 88));
    CHECK((a.v_batch_stride == 900000 && a.v_token_stride == 1200 && a.v_head_stride == 152));
    CHECK((a.o_batch_stride == 17000 && a.o_token_stride == 2400 && a.o_head_stride == 136));
    CHECK((a.batch == 3 && a.kv_heads == 4 && a.group == 3));
    CHECK((a.max_q_len == 5 && a.max_kv_len == 700));
    CHECK((a.q_tokens == 15 && a.kv_tokens == 700));
    CHECK((a.pages == 0 && a.page_list == 0 && a.page_size == 0 && a.page_row_stride == 0));
    CHECK((a.splits == 1 && a.chunk == 0));  // no part of the kernel that the plan has is merged by another
    CHECK(a.tiles == 3);                     // 15 packed rows of each sequence
    // Shares of two blocks of keys at least; and with as many units as a tile may have, those of all 12 tiles
    // and KV heads are still counted in 31 bits, with three for the start of each: 64 KB of keys of 384
    // bytes.
    REQUIRE(launch.split.policy == families::SplitPolicy::shares);
    CHECK(a.rows == 2 * launch.split.parts * 16);  // of partial results: two query tiles of each share
    CHECK(a.least_share == 2);
    CHECK(a.start_units == 3);
    CHECK(a.most_units == ((std::int64_t{1} << 31) - 1) / 12 - 3);
}

TEST_CASE("bounds below the extents are what the kernel goes to", "[engine][arguments]") {
    const Batch lengths{.q_lens = at(5, DType::int32, {3}), .kv_lens = at(6, DType::int32, {3})};
    Batch batch = lengths;
    batch.max_kv_len = 300;
    abi::AttentionArguments a = bind(kSpec, dense(), batch).arguments;
    CHECK((a.max_kv_len == 300 && a.kv_tokens == 700));
    CHECK((a.max_q_len == 5 && a.q_tokens == 15));
    batch = lengths;
    batch.max_q_len = 2;
    a = bind(kSpec, dense(), batch).arguments;
    CHECK((a.max_q_len == 2 && a.q_tokens == 6));
    CHECK((a.max_kv_len == 700 && a.kv_tokens == 700));
    batch.max_q_len = 6, batch.max_kv_len = 701;  // beyond them nothing is gone to
    a = bind(kSpec, dense(), batch).arguments;
    CHECK((a.max_q_len == 5 && a.max_kv_len == 700));

    AttentionSpec ragged = kSpec;
    ragged.kv = KvStorage::ragged;
    const AttentionTensors tensors{.q = strided(1, {40, 12, 64}, {1600, 80, 1}),
                                   .k = strided(2, {900, 4, 64}, {720, 88, 1}),
                                   .v = strided(3, {900, 4, 128}, {1200, 152, 1}),
                                   .o = strided(4, {40, 12, 128}, {2400, 136, 1})};
    batch = {.q_indptr = at(5, DType::int32, {8}), .kv_indptr = at(6, DType::int32, {8})};
    a = bind(ragged, tensors, batch).arguments;
    CHECK(
        (a.batch == 7 && a.max_q_len == 40 && a.q_tokens == 40 && a.max_kv_len == 900 && a.kv_tokens == 900));
    CHECK((a.q_indptr == batch.q_indptr.data && a.kv_indptr == batch.kv_indptr.data));
    CHECK((a.q_batch_stride == 0 && a.q_token_stride == 1600 && a.q_head_stride == 80));
    CHECK((a.k_batch_stride == 0 && a.k_token_stride == 720 && a.k_head_stride == 88));
    CHECK((a.o_batch_stride == 0 && a.o_token_stride == 2400 && a.o_head_stride == 136));
    batch.max_q_len = 9, batch.max_kv_len = 350;
    a = bind(ragged, tensors, batch).arguments;
    CHECK((a.max_q_len == 9 && a.q_tokens == 40));
    CHECK((a.max_kv_len == 350 && a.kv_tokens == 900));
}

TEST_CASE("a page table that is a slice of a wider one keeps its rows", "[engine][arguments]") {
    for (const PageOrder order : {PageOrder::NHD, PageOrder::HND}) {
        const Tensor wide = at(6, DType::int32, {9, 100});
        Batch batch{.q_indptr = at(5, DType::int32, {8}),
                    .kv_lens = at(7, DType::int32, {7}),
                    .page_table = wide.slice(0, 1, 8).slice(1, 20, 50)};
        abi::AttentionArguments a = bind(paged_spec(order), paged(order), batch).arguments;
        CHECK(a.page_ids == static_cast<char*>(wide.data) + (100 + 20) * 4);
        CHECK(a.page_row_stride == 100);
        CHECK((a.page_list == 30 && a.pages == 50 && a.page_size == 16 && a.max_kv_len == 480));
        CHECK((a.kv_tokens == 0 && a.page_indptr == nullptr && a.last_page_len == nullptr));
        CHECK(a.kv_lens == batch.kv_lens.data);
        const bool heads_first = order == PageOrder::HND;
        CHECK((a.k_batch_stride == 20000 && a.v_batch_stride == 20000));
        CHECK((a.k_token_stride == (heads_first ? 168 : 1000) &&
               a.k_head_stride == (heads_first ? 4000 : 160)));
        CHECK((a.v_token_stride == a.k_token_stride && a.v_head_stride == a.k_head_stride));
        CHECK((a.table_rows == nullptr && a.page_rows == 7));
        batch.page_table = wide.slice(1, 20, 50);
        batch.table_rows = at(8, DType::int32, {7});
        a = bind(paged_spec(order), paged(order), batch).arguments;
        CHECK((a.table_rows == batch.table_rows.data && a.page_rows == 9 && a.page_row_stride == 100));
        batch.max_kv_len = 100;
        a = bind(paged_spec(order), paged(order), batch).arguments;
        CHECK((a.max_kv_len == 100 && a.page_list == 30));
    }
}

TEST_CASE("scales of tokens have strides of their own, of keys and of values", "[engine][arguments]") {
    AttentionSpec spec = kSpec;
    spec.kv_dtype = DType::e4m3, spec.kv_scale = KvScale::token_head;
    AttentionTensors tensors = dense();
    tensors.k = strided(2, {3, 700, 4, 64}, {600000, 800, 96, 1}, DType::e4m3);
    tensors.v = strided(3, {3, 700, 4, 128}, {900000, 1200, 160, 1}, DType::e4m3);
    tensors.k_scale = strided(10, {3, 700, 4}, {9000, 12, 3}, DType::fp32);
    tensors.v_scale = strided(11, {3, 700, 4}, {7000, 9, 2}, DType::fp32);
    const Batch lengths{.kv_lens = at(6, DType::int32, {3})};
    abi::AttentionArguments a = bind(spec, tensors, lengths).arguments;
    CHECK((a.k_scale == tensors.k_scale.data && a.v_scale == tensors.v_scale.data));
    CHECK((a.k_scale_batch_stride == 9000 && a.k_scale_token_stride == 12 && a.k_scale_head_stride == 3));
    CHECK((a.v_scale_batch_stride == 7000 && a.v_scale_token_stride == 9 && a.v_scale_head_stride == 2));

    for (const PageOrder order : {PageOrder::NHD, PageOrder::HND}) {
        const bool heads_first = order == PageOrder::HND;
        CAPTURE(heads_first);
        const std::int64_t rows = heads_first ? 4 : 16, columns = heads_first ? 16 : 4;
        spec = paged_spec(order);
        spec.kv_dtype = DType::e4m3, spec.kv_scale = KvScale::token_head;
        tensors = paged(order);
        tensors.k = strided(2, {50, rows, columns, 64}, {20000, 1200, 96, 1}, DType::e4m3);
        tensors.v = strided(3, {50, rows, columns, 128}, {48000, 2800, 160, 1}, DType::e4m3);
        tensors.k_scale = strided(10, {50, rows, columns}, {900, 50, 3}, DType::fp32);
        tensors.v_scale = strided(11, {50, rows, columns}, {1100, 60, 2}, DType::fp32);
        const Batch batch{.q_indptr = at(5, DType::int32, {8}),
                          .kv_lens = at(7, DType::int32, {7}),
                          .page_table = at(6, DType::int32, {7, 30})};
        a = bind(spec, tensors, batch).arguments;
        CHECK((a.k_scale_batch_stride == 900 && a.v_scale_batch_stride == 1100));
        CHECK((a.k_scale_token_stride == (heads_first ? 3 : 50) &&
               a.k_scale_head_stride == (heads_first ? 50 : 3)));
        CHECK((a.v_scale_token_stride == (heads_first ? 2 : 60) &&
               a.v_scale_head_stride == (heads_first ? 60 : 2)));
    }
}

TEST_CASE("compressed pages are one row", "[engine][arguments]") {
    const Batch batch{.q_indptr = at(5, DType::int32, {8}),
                      .page_indptr = at(6, DType::int32, {8}),
                      .page_indices = at(7, DType::int32, {33}),
                      .last_page_len = at(8, DType::int32, {7})};
    const abi::AttentionArguments a =
        bind(paged_spec(PageOrder::NHD), paged(PageOrder::NHD), batch).arguments;
    CHECK((a.page_ids == batch.page_indices.data && a.page_indptr == batch.page_indptr.data));
    CHECK(a.last_page_len == batch.last_page_len.data);
    CHECK((a.page_row_stride == 0 && a.page_list == 33 && a.max_kv_len == 33 * 16));
}

TEST_CASE("log-sum-exp, sinks and slopes have their own memory and strides", "[engine][arguments]") {
    AttentionSpec spec = kSpec;
    spec.lse = spec.sink = spec.alibi = true;
    AttentionTensors tensors = dense();
    tensors.lse = strided(5, {3, 5, 12}, {400, 31, 2}, DType::fp32);
    tensors.sinks = at(6, DType::fp32, {12}), tensors.alibi_slopes = at(7, DType::fp32, {12});
    const abi::AttentionArguments a = bind(spec, tensors, {}).arguments;
    CHECK((a.lse == tensors.lse.data && a.sinks == tensors.sinks.data));
    CHECK(a.alibi_slopes == tensors.alibi_slopes.data);
    CHECK((a.lse_batch_stride == 400 && a.lse_token_stride == 31 && a.lse_head_stride == 2));
}

TEST_CASE("the log-sum-exp of ragged queries has no axis of sequences", "[engine][arguments]") {
    AttentionSpec spec = paged_spec(PageOrder::NHD);
    spec.lse = true;
    AttentionTensors tensors = paged(PageOrder::NHD);
    tensors.lse = strided(9, {40, 12}, {31, 2}, DType::fp32);
    const Batch batch{.q_indptr = at(5, DType::int32, {8}),
                      .kv_lens = at(7, DType::int32, {7}),
                      .page_table = at(6, DType::int32, {7, 30})};
    const abi::AttentionArguments a = bind(spec, tensors, batch).arguments;
    CHECK((a.lse_batch_stride == 0 && a.lse_token_stride == 31 && a.lse_head_stride == 2));
}

TEST_CASE("a mask is two windows", "[engine][arguments]") {
    const auto windows = [](const AttentionSpec& spec) {
        const abi::AttentionArguments a = bind(spec, dense(), {}).arguments;
        return std::pair{a.bounds.window_left, a.bounds.window_right};
    };
    AttentionSpec spec = kSpec;
    CHECK(windows(spec) == std::pair{abi::kUnbounded, abi::kUnbounded});
    spec.window_left = 7;
    CHECK(windows(spec) == std::pair{7, abi::kUnbounded});
    spec.window_right = 11;
    CHECK(windows(spec) == std::pair{7, 11});
    spec.window_left.reset(), spec.window_right = 0;
    CHECK(windows(spec) == std::pair{abi::kUnbounded, 0});
    spec.window_right.reset(), spec.mask = Mask::causal;
    CHECK(windows(spec) == std::pair{abi::kUnbounded, 0});
    spec.window_left = 0;
    CHECK(windows(spec) == std::pair{0, 0});
}

TEST_CASE("logits come to base 2 by one factor, wherever the scale is applied", "[engine][arguments]") {
    const double log2e = std::log2(std::exp(1.0));
    const auto near = [](float value, double wanted) { return std::abs(value / wanted - 1) < 1e-6; };
    AttentionSpec spec = kSpec;
    abi::AttentionArguments a = bind(spec, dense(), {}).arguments;
    CHECK((near(a.scale, 0.125) && near(a.scale_log2, 0.125 * log2e)));
    spec.scale = 0.3;
    a = bind(spec, dense(), {}).arguments;
    CHECK((near(a.scale, 0.3) && near(a.scale_log2, 0.3 * log2e)));
    CHECK((a.softcap == 0 && a.softcap_scale == 0));
    spec.softcap = 50;
    a = bind(spec, dense(), {}).arguments;
    CHECK((near(a.scale_log2, log2e) && near(a.softcap, 50) && near(a.softcap_scale, 0.3 / 50)));
    spec.softcap.reset(), spec.alibi = true;
    AttentionTensors tensors = dense();
    tensors.alibi_slopes = at(7, DType::fp32, {12});
    a = bind(spec, tensors, {}).arguments;
    CHECK((near(a.scale, 0.3) && near(a.scale_log2, log2e) && a.softcap == 0));
}

// Sequences whose tiles had no unit left for their keys were passed over, and nobody said so.
TEST_CASE("however many tiles there are, each has a unit for its keys", "[engine][arguments]") {
    AttentionSpec spec{.dtype = DType::bf16, .head_dim_qk = 8, .q_heads = 64};
    const planner::Plan plan = planner::make_plan(problem::validate(spec, {1 << 20, 1, 1}),
                                                  families::traits_of(90), planner::repository_tuning());
    constexpr std::int64_t kMostItems = (std::int64_t{1} << 31) - 1;
    const problem::BoundShape shape{.batch = 1, .q_tokens = 1, .max_q_len = 1, .max_kv_len = 1};
    const planner::Launch launch = planner::launch_of(plan, shape);
    REQUIRE(launch.split.policy == families::SplitPolicy::shares);
    for (const std::int64_t items : {std::int64_t{0}, std::int64_t{1}, std::int64_t{1} << 20,
                                     std::int64_t{1} << 26, kMostItems / 2, kMostItems}) {
        abi::AttentionArguments arguments{};
        families::set_share(planner::context_of(plan, shape, launch), 16, items, arguments);
        CAPTURE(items, arguments.start_units);
        CHECK(arguments.most_units >= 1);
        CHECK(arguments.start_units >= 0);
        CHECK(items * (std::int64_t{arguments.most_units} + arguments.start_units) <= kMostItems);
    }
}
