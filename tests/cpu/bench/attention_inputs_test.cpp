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
