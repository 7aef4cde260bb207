// Handles that hold nothing say so, whatever is asked of them.
#include <functional>
#include <initializer_list>
#include <type_traits>
#include <utility>

#include "attnsmith/attnsmith.hpp"
#include "reports/cache_operations.hpp"
#include "support/catch.hpp"

using namespace attnsmith;

namespace {

const AttentionSpec kSpec{.head_dim_qk = 64, .q_heads = 4};

}  // namespace

TEST_CASE("A runtime that was moved from says so") {
    Runtime runtime({.use_cache = false, .log_level = LogLevel::off});
    const Runtime other = std::move(runtime);
    const int sm = 90;
    for (const auto& use : std::initializer_list<std::function<void()>>{
             [&] { (void)runtime.prepare(kSpec, {}); },
             [&] { runtime.prepare_async(kSpec, {}); },
             [&] { (void)runtime.plan_json(kSpec, {}, 90); },
             [&] {
                 (void)runtime.prewarm({&kSpec, 1}, {&sm, 1});
             },
             [&] { (void)engine::run_cache_operation(runtime, "ls", "{}"); },
             [&] { (void)runtime.devices(); },
             [&] { (void)runtime.allocate(16); },
             [&] { (void)runtime.allocate_workspace(16); },
             [&] { runtime.synchronize(); },
             [&] { runtime.clear_workspace({}); },
         }) {
        CHECK_THROWS_WITH(use(), "this Runtime is empty: it was moved from");
    }
    CHECK_FALSE(runtime);
    CHECK(other);
    CHECK_THROWS_AS(engine::run_cache_operation(other, "ls", "{}"), CacheError);
}

TEST_CASE("A kernel that was never prepared says so") {
    const Kernel kernel;
    CHECK(!kernel);
    for (const auto& use : std::initializer_list<std::function<void()>>{
             [&] {
                 (void)kernel.workspace_bytes({1, 1, 1});
             },
             [&] { (void)kernel.bind(AttentionTensors{}, {}); },
             [&] { (void)kernel.spec(); },
             [&] { (void)kernel.device(); },
             [&] { (void)kernel.plan_json(); },
         }) {
        CHECK_THROWS_WITH(use(), "this Kernel is empty: it was default-constructed or moved from");
    }
}

TEST_CASE("A call that was never bound says so") {
    const Call call;
    CHECK(!call);
    for (const auto& use : std::initializer_list<std::function<void()>>{
             [&] { call.launch(); },
             [&] { (void)call.status(); },
             [&] { call.clear_status(); },
             [&] { call.synchronize(); },
             [&] { (void)call.describe(); },
         }) {
        CHECK_THROWS_WITH(use(), "this Call is empty: it was default-constructed or moved from");
    }
}

TEST_CASE("A cache that was moved from says so") {
    Runtime runtime({.use_cache = false, .log_level = LogLevel::off});
    Cache cache = runtime.cache();
    const Cache other = std::move(cache);
    for (const auto& use : std::initializer_list<std::function<void()>>{
             [&] { (void)cache.directories(); },
             [&] { (void)cache.list(); },
             [&] { (void)cache.stat(); },
             [&] { (void)cache.verify(); },
             [&] { (void)cache.gc(); },
             [&] { (void)cache.clear(); },
         }) {
        CHECK_THROWS_WITH(use(), "this Cache is empty: it was default-constructed or moved from");
    }
    CHECK_FALSE(cache);
    CHECK(other);
    CHECK_NOTHROW(other.directories());
}

TEST_CASE("A buffer without memory has no address and no bytes, and copies none") {
    Buffer buffer;
    CHECK_FALSE(buffer);
    CHECK(buffer.data() == nullptr);
    CHECK(buffer.bytes() == 0);
    CHECK(buffer.device() == -1);
    CHECK(buffer.workspace().data == nullptr);
    char byte = 0;
    CHECK_NOTHROW(buffer.upload(&byte, 0));
    CHECK_THROWS_AS(buffer.upload(&byte, 1), InvalidRequest);
    CHECK_THROWS_AS(buffer.download(&byte, 1), InvalidRequest);
}

TEST_CASE("A struct that holds a runtime and handles is made from braces") {
    struct Engine {
        Runtime runtime;
        Kernel kernel;
        Call call;
        KernelSet set;
        Buffer buffer;
    };
    const Engine engine = {};
    CHECK(engine.runtime);
    CHECK_FALSE((engine.kernel || engine.call || engine.set || engine.buffer));
    STATIC_REQUIRE(std::is_nothrow_default_constructible_v<Kernel>);
    STATIC_REQUIRE(std::is_nothrow_default_constructible_v<KernelSet>);
    STATIC_REQUIRE(std::is_nothrow_default_constructible_v<Call>);
    STATIC_REQUIRE(std::is_nothrow_default_constructible_v<Buffer>);
}

// What a temporary would give a reference to goes with it.
template <class Handle>
concept GivesItsSpec = requires {
    Handle{}.spec();
};
template <class Handle>
concept GivesItsKernels = requires {
    Handle{}.kernels();
};
template <class Handle>
concept Picks = requires {
    Handle{}.pick(PlanSizes{});
};

TEST_CASE("A temporary gives no reference to what it holds") {
    STATIC_REQUIRE_FALSE(GivesItsSpec<Kernel>);
    STATIC_REQUIRE_FALSE(GivesItsSpec<KernelSet>);
    STATIC_REQUIRE_FALSE(GivesItsKernels<KernelSet>);
    STATIC_REQUIRE_FALSE(Picks<KernelSet>);
    STATIC_REQUIRE(std::is_same_v<decltype(std::declval<const Kernel&>().spec()), const AttentionSpec&>);
}
