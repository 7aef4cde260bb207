// What a tuning table is measured by, and of which families.
#include "bench/tile_speeds.hpp"

#include "bench/attention_inputs.hpp"
#include "bench/standard_attentions.hpp"
#include "problem/expect.hpp"
#include "problem/request/problem.hpp"
#include "support/catch.hpp"

using namespace attnsmith;
using families::Phase;

namespace {

std::string refusal(const AttentionSpec& spec, std::int64_t q_len, int sm) {
    return bench::tuning_refusal(problem::validate(spec, {1, q_len, 1000}), families::traits_of(sm))
        .value_or("");
}

}  // namespace

TEST_CASE("usual decodes are of more than any L2 holds", "[bench]") {
    constexpr double kL2Bytes = 50 << 20;
    int decodes = 0;
    for (const bench::TuningAttention& one : bench::tuning_attentions()) {
        const auto& [spec, sizes, sms] = one.attention.request;
        const problem::Problem problem = problem::validate(spec, sizes);
        if (bench::phase_of(problem) != Phase::decode) continue;
        ++decodes;
        CAPTURE(spec.head_dim_qk, spec.head_dim_vo);
        CHECK(bench::attention_bytes(problem) > kL2Bytes);
        CHECK(!one.max_rows);
    }
    CHECK(decodes == 18);  // of nine pairs of head dims, contiguous and paged
}

TEST_CASE("each phase is tuned on the SMs and for the specs of its family", "[bench]") {
    const AttentionSpec spec{.head_dim_qk = 32, .q_heads = 8, .kv_heads = 2};
    for (const int sm : {80, 90}) CHECK(refusal(spec, 4, sm).empty());
    CHECK(test::contains(refusal(spec, 5, 90), "head dims 32 and 32"));
    CHECK(test::contains(refusal(spec, 5, 80), "needs sm_90"));
    AttentionSpec bitwise = spec;
    bitwise.consistency = Consistency::bitwise;
    CHECK(refusal(bitwise, 1, 90) == "the tiles of mma are fixed for such a request");
    AttentionSpec high = spec;
    high.precision = Precision::high;
    CHECK(test::contains(refusal(high, 1, 90), "precision \"high\""));
}
