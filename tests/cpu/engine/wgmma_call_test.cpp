// A call of a wgmma kernel over the stub driver: one persistent launch with the maps, or with the merge after
// it.
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cstring>

#include "abi/attention_persistent.h"
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
    fake().param_bytes = sizeof(abi::PersistentArguments);
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

    abi::PersistentArguments arguments;
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

TEST_CASE("a call whose keys are widened ahead is two launches, and one where its bounds have too many",
          "[engine][wgmma][widen]") {
    fake() = {};
    Runtime runtime(fake_options());
    AttentionSpec spec = kSpec;
    spec.kv_dtype = DType::e4m3;
    const Kernel prepared = runtime.prepare(spec, {1, 8192, 8192});
    const KernelSet set = runtime.prepare_set(spec);
    const Kernel& picked = set.pick({1, 8192, 8192});
    for (const Kernel* kernel : {&prepared, &picked}) {
        const auto bind = [&](std::int64_t batch, std::int64_t kv_len) {
            AttentionTensors of = tensors(batch, 64, kv_len);
            of.k = at(1000, DType::e4m3, {batch, kv_len, 8, 128});
            of.v = at(2000, DType::e4m3, {batch, kv_len, 8, 128});
            return kernel->bind(of, {});
        };
        const Call within = bind(1, 65536);  // whose keys a set divides for so few queries
        CHECK(within.describe().find("widen e4m3 128x128: 8192 CTAs") == 0);
        CHECK(within.describe().find("attention wgmma bf16 128x128 widened") != std::string::npos);
        fake().launches = 0;
        within.launch();
        CHECK(fake().launches == (kernel == &prepared ? 2 : 3));
        // 256 MiB are 65536 keys.
        const Call beyond = bind(2, 65536);
        CHECK(beyond.describe().find("widen") == std::string::npos);
        fake().launches = 0;
        beyond.launch();
        CHECK(fake().launches <= 2);
        CHECK(kernel->workspace_bytes({256, 4096, 131072}) < std::size_t{600} << 20);
        CHECK(kernel->workspace_bytes({256, 4096, 131072}) >= kernel->workspace_bytes({1, 64, 65536}));
    }
}
