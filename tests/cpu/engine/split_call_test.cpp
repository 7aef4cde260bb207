// A call whose keys are divided: what of the workspace it uses, whose it is, and what is launched.
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "abi/attention_arguments.h"
#include "abi/attention_persistent.h"
#include "driver/device.hpp"
#include "engine/fake_runtime.hpp"
#include "engine/runtime_impl.hpp"
#include "problem/expect.hpp"

using namespace attnsmith;
using attnsmith::test::arguments_of;
using attnsmith::test::at;
using attnsmith::test::fake;
using attnsmith::test::fake_options;
using attnsmith::test::launch_of;
using attnsmith::test::refused;

namespace {

// Head dims that wgmma has no kernels for.
constexpr std::int64_t kHeads = 8, kKvHeads = 2, kDimQk = 40, kDimVo = 48;
constexpr PlanSizes kSizes{1, 1, 65536};

// Planned for one sequence of so many keys that they are divided. Compiled once.
const Kernel& kernel() {
    static Runtime runtime(fake_options());
    static const Kernel prepared = runtime.prepare(
        {.head_dim_qk = kDimQk, .head_dim_vo = kDimVo, .q_heads = kHeads, .kv_heads = kKvHeads}, kSizes);
    return prepared;
}

nlohmann::json plan_of(const Kernel& kernel) { return nlohmann::json::parse(kernel.plan_json()); }

// Places that are far enough apart for the longest of these.
Tensor far(int place, std::initializer_list<std::int64_t> shape) {
    return Tensor::contiguous(reinterpret_cast<void*>(std::uintptr_t{1} << 40 | std::uintptr_t(place) << 36),
                              DType::bf16, shape);
}

AttentionTensors tensors(std::int64_t batch, std::int64_t q_len, std::int64_t kv_len) {
    return {.q = far(1, {batch, q_len, kHeads, kDimQk}),
            .k = far(2, {batch, kv_len, kKvHeads, kDimQk}),
            .v = far(3, {batch, kv_len, kKvHeads, kDimVo}),
            .o = far(4, {batch, q_len, kHeads, kDimVo})};
}

// Where no tensor is.
char* const kScratch = reinterpret_cast<char*>(std::uintptr_t{0x7000000});

struct Bounds {
    std::int64_t batch, q_len, kv_len;
};

std::size_t needed_for(const Bounds& bounds) {
    return kernel().workspace_bytes({bounds.batch, bounds.batch * bounds.q_len, bounds.kv_len});
}

struct Launched {
    abi::AttentionArguments attention;
    std::int64_t ctas = 0;
};

// One kernel, which joins what its CTAs find.
Launched launch(const Call& call) {
    const int before = fake().launches;
    call.launch();
    REQUIRE(fake().launches == before + 1);
    const auto& launched = launch_of(before + 1);
    CHECK(std::string(launched.entry).find("merge") == std::string::npos);
    return {arguments_of<abi::AttentionArguments>(launched), launched.grid[0]};
}

// Two query tiles of partial results for each CTA have places of their own in the workspace, and none is past
// its end.
void check_places(const Launched& launched, const char* workspace, std::size_t bytes) {
    const auto* const status = reinterpret_cast<const char*>(launched.attention.status);
    const auto* const o = reinterpret_cast<const char*>(launched.attention.partial_o);
    const auto* const ml = reinterpret_cast<const char*>(launched.attention.partial_ml);
    const std::int64_t rows = 2 * launched.ctas * plan_of(kernel())["kernels"][0]["tile_q"].get<int>();
    REQUIRE(status == workspace);
    REQUIRE(o - status >= abi::kZeroedBytes);
    REQUIRE((o - status) % 128 == 0);
    REQUIRE((ml - status) % 128 == 0);
    REQUIRE(ml - o >= rows * kDimVo * 4);
    REQUIRE(workspace + bytes - ml >= rows * 2 * 4);
    // Each CTA has a word to count in.
    REQUIRE(launched.ctas <= abi::kMostShares);
}

}  // namespace

TEST_CASE("a divided call fits the workspace that it asked for, to the byte", "[engine][workspace]") {
    const nlohmann::json split = plan_of(kernel())["split_kv"];
    REQUIRE(split["policy"].get<std::string>() == "shares");
    for (const Bounds& bounds : {Bounds{1, 1, kSizes.kv_len}, Bounds{1, 1, 1}, Bounds{3, 1, 129},
                                 Bounds{2, 5, 5000}, Bounds{500, 1, 1000}, Bounds{5, 3, 900000}}) {
        CAPTURE(bounds.batch, bounds.q_len, bounds.kv_len);
        const AttentionTensors bound = tensors(bounds.batch, bounds.q_len, bounds.kv_len);
        const std::size_t needed = needed_for(bounds);
        const InvalidRequest error = refused([&] {
            (void)kernel().bind(bound, {}, Workspace{kScratch, needed - 1});
        });
        CHECK(error.field() == "workspace.bytes");
        CHECK(error.accepted() == "at least " + std::to_string(needed));
        const int allocations = fake().allocations;
        const Launched launched = launch(kernel().bind(bound, {}, Workspace{kScratch, needed}));
        CHECK(fake().allocations == allocations);
        CHECK(launched.ctas >= 1);
        CHECK(launched.ctas <= split["shares"].get<std::int64_t>());
        CHECK(launched.attention.least_share > 0);
        CHECK(launched.attention.splits == 1);
        check_places(launched, kScratch, needed);
    }
}

TEST_CASE("a workspace of shares grows neither with the keys nor with the batch", "[engine][workspace]") {
    const std::size_t needed = needed_for({1, 1, kSizes.kv_len});
    REQUIRE(plan_of(kernel())["split_kv"]["workspace_bytes"].get<std::size_t>() == needed);
    for (const Bounds& bounds : {Bounds{1, 1, 4 << 20}, Bounds{1000, 1, 100}, Bounds{4096, 4, 1 << 20},
                                 Bounds{1 << 16, 1, 1}, Bounds{64, 5000, 5000}}) {
        CAPTURE(bounds.batch, bounds.q_len, bounds.kv_len);
        CHECK(needed_for(bounds) == needed);
    }
}

TEST_CASE("where there are keys for few CTAs, few are launched, and have little workspace",
          "[engine][workspace]") {
    const std::size_t most = needed_for({1, 1, kSizes.kv_len});
    // Each of the two KV heads has one tile, whose keys are enough for one share.
    const Launched launched = launch(kernel().bind(tensors(1, 1, 100), {}));
    CHECK(launched.ctas == 2);
    CHECK(needed_for({1, 1, 100}) < most / 8);
    CHECK(needed_for({1, 1, 100}) > static_cast<std::size_t>(abi::kZeroedBytes));
    // Without keys the rows are written all the same.
    CHECK(launch(kernel().bind(tensors(3, 2, 0), {})).ctas > 0);
    // Without rows nothing is launched.
    CHECK(needed_for({4, 0, 1000}) == static_cast<std::size_t>(abi::kZeroedBytes));
    const int before = fake().launches;
    kernel().bind(tensors(4, 0, 1000), {}, Workspace{kScratch, abi::kZeroedBytes}).launch();
    CHECK(fake().launches == before);
}

TEST_CASE("smaller bounds never need more of a workspace", "[engine][workspace]") {
    std::mt19937 random(5);
    const auto up_to = [&](std::int64_t most) {
        return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(most + 1));
    };
    for (const std::int64_t longest : {100, 1000, 5000, 20000, 1000000}) {
        const std::size_t most = kernel().workspace_bytes({6, 12, longest});
        for (int i = 0; i < 200; ++i) {
            const Bounds bounds{1 + up_to(5), up_to(2), up_to(longest)};
            CAPTURE(longest, bounds.batch, bounds.q_len, bounds.kv_len);
            REQUIRE(needed_for(bounds) <= most);
            if (bounds.q_len == 0) continue;
            check_places(launch(kernel().bind(tensors(bounds.batch, bounds.q_len, bounds.kv_len), {},
                                              Workspace{kScratch, most})),
                         kScratch, most);
        }
    }
}

// As the kernels of wgmma divide keys.
TEST_CASE("of a call in chunks a second kernel merges what the first finds", "[engine][workspace]") {
    Runtime runtime(fake_options());
    const Kernel kernel = runtime.prepare({.head_dim_qk = 128, .q_heads = 8, .kv_heads = 2}, {1, 128, 16384});
    const nlohmann::json plan = plan_of(kernel);
    REQUIRE(plan["split_kv"]["policy"].get<std::string>() == "chunks");
    const std::int64_t chunk = plan["split_kv"]["chunk"];
    for (const std::int64_t kv_len : {chunk + 1, std::int64_t{16384}, 256 * chunk + 1}) {
        CAPTURE(kv_len);
        const AttentionTensors bound{.q = far(1, {1, 128, 8, 128}),
                                     .k = far(2, {1, kv_len, 2, 128}),
                                     .v = far(3, {1, kv_len, 2, 128}),
                                     .o = far(4, {1, 128, 8, 128})};
        const std::size_t needed = kernel.workspace_bytes({1, 128, kv_len});
        CHECK(refused([&] {
                  (void)kernel.bind(bound, {}, Workspace{kScratch, needed - 1});
              }).field() == "workspace.bytes");
        const int before = fake().launches;
        kernel.bind(bound, {}, Workspace{kScratch, needed}).launch();
        REQUIRE(fake().launches == before + 2);
        CHECK(std::string(launch_of(before + 2).entry).find("merge") != std::string::npos);
        const auto attention = arguments_of<abi::PersistentArguments>(launch_of(before + 1)).attention;
        const auto merge = arguments_of<abi::AttentionArguments>(launch_of(before + 2));
        CHECK((attention.splits > 1 && attention.splits <= 256));
        CHECK(std::int64_t{attention.chunk} * attention.splits >= kv_len);
        CHECK(std::int64_t{attention.chunk} * (attention.splits - 1) < kv_len);
        CHECK((merge.splits == attention.splits && merge.chunk == attention.chunk));
        CHECK((merge.rows == attention.rows && merge.rows == 128 * 8));
        CHECK((merge.partial_o == attention.partial_o && merge.partial_ml == attention.partial_ml));
        const auto* const o = reinterpret_cast<const char*>(merge.partial_o);
        const auto* const ml = reinterpret_cast<const char*>(merge.partial_ml);
        CHECK(o - kScratch >= abi::kZeroedBytes);
        CHECK(ml - o >= merge.splits * merge.rows * 128 * 4);
        CHECK(kScratch + needed - ml >= merge.splits * merge.rows * 2 * 4);
    }
    // Up to one chunk nothing is divided.
    for (const std::int64_t kv_len : {std::int64_t{0}, std::int64_t{1}, chunk})
        CHECK(kernel.workspace_bytes({1, 128, kv_len}) == static_cast<std::size_t>(abi::kZeroedBytes));
}

TEST_CASE("no part of a divided call's workspace is memory of a tensor", "[engine][workspace]") {
    const AttentionTensors bound = tensors(2, 1, 20000);
    const Batch batch{.q_lens = at(5, DType::int32, {2}), .kv_lens = at(6, DType::int32, {2})};
    const std::size_t needed = needed_for({2, 1, 20000});
    REQUIRE(needed > 1 << 16);
    REQUIRE(needed % 256 == 0);
    const std::pair<const char*, const Tensor*> others[] = {{"q", &bound.q},
                                                            {"k", &bound.k},
                                                            {"v", &bound.v},
                                                            {"o", &bound.o},
                                                            {"batch.q_lens", &batch.q_lens},
                                                            {"batch.kv_lens", &batch.kv_lens}};
    for (const auto& [name, tensor] : others) {
        CAPTURE(name);
        char* const begin = static_cast<char*>(tensor->data);
        const auto bind_at = [&](char* data) { (void)kernel().bind(bound, batch, Workspace{data, needed}); };
        CHECK_NOTHROW(bind_at(begin - needed));
        // Its last partial result, and the status with all but it.
        for (char* const data : {begin - needed + 256, begin - 256}) {
            const InvalidRequest error = refused([&] { bind_at(data); });
            CHECK(error.field() == "workspace.data");
            CHECK(error.value() == std::string("memory that overlaps ") + name);
        }
    }
}

TEST_CASE("a workspace begins at a multiple of 256 bytes", "[engine][workspace]") {
    const std::size_t needed = needed_for({1, 1, kSizes.kv_len});
    for (const int off : {1, 4, 16, 64, 128, 192}) {
        const InvalidRequest error = refused([&] {
            (void)kernel().bind(tensors(1, 1, kSizes.kv_len), {}, Workspace{kScratch + off, needed});
        });
        CHECK(error.field() == "workspace.data");
        CHECK(error.accepted() == "a multiple of 256");
    }
}

TEST_CASE("a call's own workspace is as large as one that is given, and its status is clear",
          "[engine][workspace]") {
    const Bounds bounds{3, 2, 30000};
    const int frees = fake().frees;
    {
        const Call call = kernel().bind(tensors(bounds.batch, bounds.q_len, bounds.kv_len), {});
        CHECK(fake().last_allocation == needed_for(bounds));
        const Launched launched = launch(call);
        const auto* const own = reinterpret_cast<const char*>(launched.attention.status);
        check_places(launched, own, needed_for(bounds));
        CHECK(std::all_of(own, own + abi::kZeroedBytes, [](char byte) { return byte == 0; }));
        CHECK_FALSE(call.status());
    }
    CHECK(fake().frees == frees + 1);
    CHECK(fake().bad_frees == 0);
}

TEST_CASE("what kernels count in outlives a status that is cleared", "[engine][workspace]") {
    alignas(256) static char scratch[1 << 20];
    const Bounds bounds{1, 1, 100};
    REQUIRE(needed_for(bounds) <= sizeof scratch);
    std::memset(scratch, 7, sizeof scratch);
    const Call call = kernel().bind(tensors(bounds.batch, bounds.q_len, bounds.kv_len), {},
                                    Workspace{scratch, sizeof scratch});
    CHECK(call.status().q_len_clamped());
    call.clear_status();
    CHECK_FALSE(call.status());
    CHECK(std::all_of(scratch, scratch + 4, [](char byte) { return byte == 0; }));
    CHECK(std::all_of(scratch + 4, std::end(scratch), [](char byte) { return byte == 7; }));
}

// However many kernels it takes, of which others than the first are loaded on other threads, which have no
// context of their own.
TEST_CASE("a divided kernel is prepared in the caller's context alone", "[engine][workspace]") {
    Runtime runtime(fake_options());
    const driver::Api& api = *engine::impl_of(runtime).driver();
    auto* const context =
        static_cast<driver::ContextHandle>(test::fake_function<void*(int)>("fake_cuda_make_context")(0));
    const driver::ContextScope scope(api, context);
    const int retained = fake().primary_retains;
    const Kernel prepared =
        runtime.prepare({.head_dim_qk = 128, .q_heads = 8, .kv_heads = 2}, {1, 128, 16384}, 0);
    REQUIRE(prepared.workspace_bytes({1, 128, 16384}) > static_cast<std::size_t>(abi::kZeroedBytes));
    CHECK(fake().primary_retains == retained);
}
