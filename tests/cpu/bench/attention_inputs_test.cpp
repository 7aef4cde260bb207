#include "bench/attention_inputs.hpp"

#include <stop_token>

#include "bench/tile_speeds.hpp"
#include "engine/fake_runtime.hpp"
#include "problem/request/problem.hpp"
#include "support/catch.hpp"

using namespace attnsmith;

namespace {

problem::Problem prefill() {
    AttentionSpec spec;
    spec.head_dim_qk = spec.head_dim_vo = 128;
    spec.q_heads = spec.kv_heads = 2;
    return problem::validate(spec, PlanSizes{.batch = 1, .q_len = 64, .kv_len = 64});
}

}  // namespace

TEST_CASE("inputs are filled until somebody stops it", "[bench]") {
    Runtime runtime(test::fake_options());
    const int before = test::fake().async_copies;
    const bench::AttentionInputs filled(runtime, prefill());
    const int after = test::fake().async_copies;
    CHECK(after > before);

    std::stop_source stop;
    stop.request_stop();
    const bench::AttentionInputs stopped(runtime, prefill(), stop.get_token());
    CHECK(bench::measure_tiles(runtime, prefill(), {.stop = stop.get_token()}).empty());
    CHECK(test::fake().async_copies == after);
}

TEST_CASE("inputs have the scales of tokens that the spec says, and count their bytes", "[bench]") {
    Runtime runtime(test::fake_options());
    AttentionSpec spec;
    spec.head_dim_qk = spec.head_dim_vo = 128;
    spec.q_heads = 8, spec.kv_heads = 2;
    spec.kv_dtype = DType::e4m3;
    spec.kv = KvStorage::paged, spec.page_size = 16;
    const PlanSizes sizes{.batch = 2, .q_len = 1, .kv_len = 100};
    const auto bytes = [&](KvScale scale) {
        spec.kv_scale = scale;
        return bench::attention_bytes(problem::validate(spec, sizes));
    };
    for (const KvScale scale : {KvScale::token_head, KvScale::block128}) {
        CHECK(bytes(scale) - bytes(KvScale::none) == 2 * 100 * 2 * 2 * 4);  // of k and of v
        spec.kv_scale = scale;
        for (const KvStorage kv : {KvStorage::dense, KvStorage::ragged, KvStorage::paged}) {
            AttentionSpec stored = spec;
            stored.kv = kv, stored.page_size = kv == KvStorage::paged ? 16 : 0;
            const problem::Problem problem = problem::validate(stored, sizes);
            const bench::AttentionInputs inputs(runtime, problem);
            CHECK_NOTHROW(inputs.bind(runtime.prepare(stored, sizes)));
        }
    }
    // Rows of 656 bytes.
    AttentionSpec latents{.op = Op::mla, .head_dim_ckv = 512, .head_dim_kpe = 64, .q_heads = 16};
    latents.scale = 0.1;
    const auto of_latents = [&] { return bench::attention_bytes(problem::validate(latents, sizes)); };
    const double plain = of_latents();
    latents.kv_dtype = DType::e4m3, latents.kv_scale = KvScale::block128;
    CHECK(plain - of_latents() == 2 * 100 * (1152 - 656));
    const bench::AttentionInputs inputs(runtime, problem::validate(latents, sizes));
    CHECK_NOTHROW(inputs.bind(runtime.prepare(latents, sizes)));
}
