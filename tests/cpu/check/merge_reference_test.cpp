// The fp64 merge that the GPU suite trusts: attention over parts of the keys, merged, is attention over all.
#include <cmath>
#include <limits>
#include <vector>

#include "check/merge.hpp"
#include "check/random.hpp"
#include "check/reference.hpp"
#include "check/small_floats.hpp"
#include "support/catch.hpp"

using namespace attnsmith;
using namespace attnsmith::check;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::int64_t kDim = 16;

std::vector<std::uint16_t> random_rows(Random& random, std::int64_t rows) {
    std::vector<std::uint16_t> bits;
    for (std::int64_t i = 0; i < rows * kDim; ++i) bits.push_back(encode(DType::fp16, random.uniform(-2, 2)));
    return bits;
}

}  // namespace

TEST_CASE("merged parts of the keys are all of them", "[check][merge]") {
    Random random(1);
    constexpr std::int64_t kKeys = 50;
    const auto q = random_rows(random, 1), k = random_rows(random, kKeys), v = random_rows(random, kKeys);
    const AttentionSpec spec{.dtype = DType::fp16, .head_dim_qk = kDim, .q_heads = 1, .lse = true};
    const auto attend = [&](std::int64_t begin, std::int64_t end) {
        const auto rows = [](const std::vector<std::uint16_t>& bits, std::int64_t from) {
            return [&bits, from](std::int64_t, std::int64_t token, std::int64_t) {
                return bits.data() + (from + token) * kDim;
            };
        };
        return compute_reference(
            {spec, {{1, end - begin}}, rows(q, 0), rows(k, begin), rows(v, begin), {}, {}}, {{0, 0}}, 1);
    };
    const Reference whole = attend(0, kKeys);
    for (const std::vector<std::int64_t>& ends :
         {std::vector<std::int64_t>{50}, {25, 50}, {1, 2, 49, 50}, {0, 30, 30, 50}}) {
        MergeRows row{DType::fp16, kDim, {}, {}};
        std::int64_t begin = 0;
        for (const std::int64_t end : ends) {
            const Reference part = attend(begin, end);
            row.o.push_back(part.out);
            row.lse.push_back(part.lse[0]);
            begin = end;
        }
        const MergedRow merged = reference_merge(row);
        CHECK(std::fabs(merged.lse - whole.lse[0]) < 1e-12);
        for (std::size_t d = 0; d < kDim; ++d) {
            CHECK(std::fabs(merged.o[d] - whole.out[d]) < 1e-12);
            CHECK(std::fabs(merged.low[d] - whole.out[d]) < 1e-2);
        }
    }
}

TEST_CASE("merged rows without keys, and with a NaN", "[check][merge]") {
    const double nan = std::numeric_limits<double>::quiet_NaN();
    const MergedRow none = reference_merge({DType::bf16, 1, {{nan}, {nan}}, {-kInfinity, -kInfinity}});
    CHECK(none.o[0] == 0.0);
    CHECK(none.lse == -kInfinity);
    const MergedRow one = reference_merge({DType::bf16, 1, {{nan}, {3.0}}, {-kInfinity, 1e4}});
    CHECK(one.o[0] == 3.0);
    CHECK(one.lse == 1e4);
    for (const std::vector<double>& lse : {std::vector<double>{nan, 5.0}, {5.0, nan}, {-kInfinity, nan}})
        CHECK(std::isnan(reference_merge({DType::bf16, 1, {{1.0}, {2.0}}, lse}).lse));
}
