// A call of a wgmma kernel over the stub driver: one persistent launch with the maps, or with the merge after
// it.
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cstring>

#include "abi/attention_wgmma.h"
#include "engine/fake_runtime.hpp"
#include "planner/plan.hpp"
#include "planner/repository_tuning.hpp"

using namespace attnsmith;
using attnsmith::test::at;
using attnsmith::test::fake;
using attnsmith::test::fake_options;

namespace {

AttentionTensors tensors(std::int64_t batch, std::int64_t q_len, std::int64_t kv_len,
                         std::int64_t q_heads = 32, std::int64_t kv_heads = 8) {
    return {.q = at(1, DType::bf16, {batch, q_len, q_heads, 128}),
            .k = at(2, DType::bf16, {batch, kv_len, kv_heads, 128}),
            .v = at(3, DType::bf16, {batch, kv_len, kv_heads, 128}),
            .o = at(4, DType::bf16, {batch, q_len, q_heads, 128})};
}

// What the merge is handed that follows a wgmma kernel.
abi::AttentionArguments launch_and_merge(const Call& call) {
    CHECK(call.describe().find("attention wgmma") == 0);
    fake().param_bytes = sizeof(abi::AttentionArguments);
    call.launch();
    REQUIRE(fake().launches == 2);
    abi::AttentionArguments merge;
    std::memcpy(&merge, fake().last_launch.parameter, sizeof merge);
    return merge;
}

const AttentionSpec kSpec{.dtype = DType::bf16, .head_dim_qk = 128, .q_heads = 32, .kv_heads = 8};

}  // namespace

TEST_CASE("a wgmma call launches a CTA an SM with the maps of its tensors", "[engine][wgmma]") {
    fake() = {};
    Runtime runtime(fake_options());
    const Kernel kernel = runtime.prepare(kSpec, {2, 1000, 1000});
    fake().param_bytes = sizeof(abi::WgmmaArguments);
    const Call call = kernel.bind(tensors(2, 1000, 1000), {});
    const planner::Plan plan = planner::make_plan(problem::validate(kSpec, {2, 1000, 1000}),
                                                  families::traits_of(90), planner::repository_tuning());
    const families::KernelConfig& planned = plan.kernel(planner::Role::attention);
    REQUIRE(planned.backend() == families::Backend::wgmma);
    CHECK(call.describe().find(fmt::format("{}: 132 CTAs of {} threads", planned.name(), planned.threads)) ==
          0);
    const int allocations = fake().allocations;
    call.launch();
    CHECK(fake().launches == 1);
    CHECK(fake().allocations == allocations);
    CHECK(fake().last_launch.grid[0] == 132);
    CHECK(fake().last_launch.block[0] == static_cast<unsigned>(planned.threads));

    abi::WgmmaArguments arguments;
    std::memcpy(&arguments, fake().last_launch.parameter, sizeof arguments);
    CHECK(arguments.attention.tiles == 2 * ((4000 + planned.tile_q() - 1) / planned.tile_q()));
    CHECK(arguments.warpgroup_tokens == 16);
    CHECK(arguments.box_keys == planned.tile_kv());
    fake_cuda_tensor_map map;
    std::memcpy(&map, &arguments.v, sizeof map);
    CHECK(map.address == 0x3000000);
    CHECK(map.extents[3] == 2);
}

TEST_CASE("where KV is split, a merge follows a wgmma kernel", "[engine][wgmma]") {
    fake() = {};
    Runtime runtime(fake_options());
    const Kernel kernel = runtime.prepare(kSpec, {1, 128, 4096});
    const Call call = kernel.bind(tensors(1, 128, 4096), {});
    CHECK(call.describe().find(" chunks of ") != std::string::npos);
    CHECK(call.describe().find("; merge bf16 128: ") != std::string::npos);
    const abi::AttentionArguments merge = launch_and_merge(call);
    CHECK(merge.tiles == 128);
    CHECK(merge.o == at(4, DType::bf16, {1}).data);
}

TEST_CASE("a merge has the caller's groups, however the attention divides them", "[engine][wgmma]") {
    fake() = {};
    Runtime runtime(fake_options());
    AttentionSpec spec = kSpec;
    spec.q_heads = 128, spec.kv_heads = 1;
    const Kernel kernel = runtime.prepare(spec, {1, 16, 16384});
    const Call call = kernel.bind(tensors(1, 16, 16384, 128, 1), {});
    CHECK(nlohmann::json::parse(kernel.plan_json())["kernels"][0]["kv_head_shares"] == 2);
    const abi::AttentionArguments merge = launch_and_merge(call);
    CHECK(merge.kv_heads == 1);
    CHECK(merge.group == 128);
    CHECK(merge.tiles == 16 * 128 / 4);
    CHECK(fake().last_launch.grid[0] == 16 * 128 / 4);
}
