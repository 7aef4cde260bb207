// A call whose keys are divided: what of the workspace it uses, whose it is, and what the merge is handed.
#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "abi/attention_arguments.h"
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

constexpr std::int64_t kHeads = 8, kKvHeads = 2, kDimQk = 64, kDimVo = 128;
constexpr PlanSizes kSizes{1, 1, 65536};

// Planned for one sequence of so many keys that they are divided. Compiled once.
const Kernel& kernel() {
    static Runtime runtime(fake_options());
    static const Kernel prepared = runtime.prepare(
        {.head_dim_qk = kDimQk, .head_dim_vo = kDimVo, .q_heads = kHeads, .kv_heads = kKvHeads}, kSizes);
    return prepared;
}

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
    return kernel().workspace_bytes(bounds.batch, bounds.batch * bounds.q_len, bounds.kv_len);
}

struct Launched {
    abi::AttentionArguments attention, merge;
};

Launched launch(const Call& call) {
    const int before = fake().launches;
    call.launch();
    REQUIRE(fake().launches == before + 2);
    CHECK(std::string(launch_of(before + 1).entry).find("merge") == std::string::npos);
    CHECK(std::string(launch_of(before + 2).entry).find("merge") != std::string::npos);
    return {arguments_of<abi::AttentionArguments>(launch_of(before + 1)),
            arguments_of<abi::AttentionArguments>(launch_of(before + 2))};
}

// Every partial result has a place of its own in the workspace, and none is past its end.
void check_places(const abi::AttentionArguments& a, const char* workspace, std::size_t bytes) {
    const auto* const status = reinterpret_cast<const char*>(a.status);
    const auto* const o = reinterpret_cast<const char*>(a.partial_o);
    const auto* const ml = reinterpret_cast<const char*>(a.partial_ml);
    REQUIRE(status == workspace);
    REQUIRE(o - status >= abi::kStatusBytes);
    REQUIRE((o - status) % 128 == 0);
    REQUIRE((ml - status) % 128 == 0);
    REQUIRE(ml - o >= a.splits * a.rows * kDimVo * 4);
    REQUIRE(workspace + bytes - ml >= a.splits * a.rows * 2 * 4);
}

}  // namespace

TEST_CASE("a divided call fits the workspace that it asked for, to the byte", "[engine][workspace]") {
    const std::int64_t chunk = launch(kernel().bind(tensors(1, 1, kSizes.kv_len), {})).attention.chunk;
    REQUIRE(chunk > 0);
    for (const Bounds& bounds :
         {Bounds{1, 1, kSizes.kv_len}, Bounds{3, 1, 5000}, Bounds{2, 5, chunk + 1}, Bounds{1, 1, 256 * chunk},
          Bounds{1, 1, 256 * chunk + 1}, Bounds{5, 3, 700 * chunk + 3}}) {
        CAPTURE(bounds.batch, bounds.q_len, bounds.kv_len);
        const AttentionTensors bound = tensors(bounds.batch, bounds.q_len, bounds.kv_len);
        const std::size_t needed = needed_for(bounds);
        const InvalidRequest error = refused([&] {
            kernel().bind(bound, {}, Workspace{kScratch, needed - 1});
        });
        CHECK(error.field() == "workspace.bytes");
        CHECK(error.accepted() == "at least " + std::to_string(needed));
        const int allocations = fake().allocations;
        const auto [attention, merge] = launch(kernel().bind(bound, {}, Workspace{kScratch, needed}));
        CHECK(fake().allocations == allocations);
        CHECK(attention.rows == bounds.batch * bounds.q_len * kHeads);
        CHECK(attention.splits > 1);
        CHECK(attention.splits <= 256);
        CHECK(attention.chunk >= chunk);
        CHECK(std::int64_t{attention.chunk} * attention.splits >= bounds.kv_len);
        CHECK(std::int64_t{attention.chunk} * (attention.splits - 1) < bounds.kv_len);
        check_places(attention, kScratch, needed);
        // The merge is handed the same, with tiles of its own.
        CHECK(merge.tiles >= bounds.batch * bounds.q_len);
        abi::AttentionArguments same = attention;
        same.tiles = merge.tiles;
        CHECK(std::memcmp(&same, &merge, sizeof same) == 0);
    }
}

TEST_CASE("up to one chunk of keys nothing is divided, and the workspace is the status alone",
          "[engine][workspace]") {
    const std::int64_t chunk = launch(kernel().bind(tensors(1, 1, kSizes.kv_len), {})).attention.chunk;
    for (const std::int64_t kv_len : {std::int64_t{0}, std::int64_t{1}, chunk - 1, chunk}) {
        CAPTURE(kv_len);
        CHECK(needed_for({4, 2, kv_len}) == abi::kStatusBytes);
        const Call call = kernel().bind(tensors(4, 2, kv_len), {}, Workspace{kScratch, abi::kStatusBytes});
        const int before = fake().launches;
        call.launch();
        REQUIRE(fake().launches == before + 1);
        CHECK(arguments_of<abi::AttentionArguments>(launch_of(before + 1)).splits == 1);
    }
    CHECK(needed_for({4, 2, chunk + 1}) > abi::kStatusBytes);
}

TEST_CASE("smaller bounds never need more of a workspace", "[engine][workspace]") {
    std::mt19937 random(5);
    const auto up_to = [&](std::int64_t most) {
        return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(most + 1));
    };
    const std::int64_t chunk = launch(kernel().bind(tensors(1, 1, kSizes.kv_len), {})).attention.chunk;
    for (const std::int64_t longest :
         {2 * chunk, 255 * chunk, 256 * chunk, 256 * chunk + 1, 900 * chunk + 77}) {
        const std::size_t most = kernel().workspace_bytes(6, 12, longest);
        for (int i = 0; i < 200; ++i) {
            const Bounds bounds{1 + up_to(5), up_to(2), up_to(longest)};
            CAPTURE(longest, bounds.batch, bounds.q_len, bounds.kv_len);
            REQUIRE(needed_for(bounds) <= most);
            if (bounds.q_len == 0 || bounds.kv_len <= chunk) continue;
            const auto [attention, merge] = launch(kernel().bind(
                tensors(bounds.batch, bounds.q_len, bounds.kv_len), {}, Workspace{kScratch, most}));
            check_places(attention, kScratch, most);
        }
    }
}

TEST_CASE("no part of a divided call's workspace is memory of a tensor", "[engine][workspace]") {
    const AttentionTensors bound = tensors(2, 1, 20000);
    const Batch batch{.q_lens = at(5, DType::i32, {2}), .kv_lens = at(6, DType::i32, {2})};
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
        const auto bind_at = [&](char* data) { kernel().bind(bound, batch, Workspace{data, needed}); };
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
            kernel().bind(tensors(1, 1, kSizes.kv_len), {}, Workspace{kScratch + off, needed});
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
        const abi::AttentionArguments attention = launch(call).attention;
        const auto* const own = reinterpret_cast<const char*>(attention.status);
        check_places(attention, own, needed_for(bounds));
        CHECK(std::all_of(own, own + abi::kStatusBytes, [](char byte) { return byte == 0; }));
        CHECK_FALSE(call.status());
    }
    CHECK(fake().frees == frees + 1);
    CHECK(fake().bad_frees == 0);
}

TEST_CASE("what kernels count in outlives a status that is cleared", "[engine][workspace]") {
    alignas(256) static char scratch[1 << 20];
    const Bounds bounds{1, 1, 16000};
    REQUIRE(needed_for(bounds) <= sizeof scratch);
    std::memset(scratch, 7, sizeof scratch);
    const Call call = kernel().bind(tensors(bounds.batch, bounds.q_len, bounds.kv_len), {},
                                    Workspace{scratch, sizeof scratch});
    CHECK(call.status().q_len_clamped);
    call.clear_status();
    CHECK_FALSE(call.status());
    CHECK(std::all_of(scratch, scratch + 4, [](char byte) { return byte == 0; }));
    CHECK(std::all_of(scratch + 4, std::end(scratch), [](char byte) { return byte == 7; }));
}

// Whose merge is loaded on another thread, which has no context of its own.
TEST_CASE("a divided kernel is prepared in the caller's context alone", "[engine][workspace]") {
    Runtime runtime(fake_options());
    const driver::Api& api = *engine::impl_of(runtime).driver();
    auto* const context =
        static_cast<driver::ContextHandle>(test::fake_function<void*(int)>("fake_cuda_make_context")(0));
    const driver::ContextScope scope(api, context);
    const int retained = fake().primary_retains;
    const Kernel prepared = runtime.prepare(kernel().spec(), kSizes, 0);
    REQUIRE(prepared.workspace_bytes(1, 1, kSizes.kv_len) > abi::kStatusBytes);
    CHECK(fake().primary_retains == retained);
}
