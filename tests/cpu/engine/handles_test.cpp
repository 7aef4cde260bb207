// Handles that hold nothing say so, whatever is asked of them.
#include <functional>
#include <initializer_list>
#include <utility>

#include "attnsmith/attnsmith.hpp"
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
             [&] { runtime.prepare(kSpec, {}); },
             [&] { runtime.prepare_async(kSpec, {}); },
             [&] { (void)runtime.plan_json(kSpec, {}, 90); },
             [&] {
                 runtime.prewarm({&kSpec, 1}, {&sm, 1});
             },
             [&] { (void)runtime.cache_json("ls"); },
             [&] { (void)runtime.devices(); },
             [&] { (void)runtime.allocate(16); },
             [&] { runtime.synchronize(); },
             [&] { runtime.clear_workspace({}); },
         }) {
        CHECK_THROWS_WITH(use(), "this Runtime is empty: it was moved from");
    }
    CHECK_THROWS_AS(other.cache_json("ls"), CacheError);
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
    CHECK_NOTHROW(other.directories());
}
