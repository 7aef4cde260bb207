// The caller's own allocator of device memory.
#include <cstdlib>
#include <map>

#include "engine/fake_runtime.hpp"
#include "problem/expect.hpp"

using namespace attnsmith;
using attnsmith::test::at;
using attnsmith::test::fake;
using attnsmith::test::fake_options;
using attnsmith::test::refused;

namespace {

// What was handed out and did not come back.
struct Pool {
    std::map<void*, std::size_t> live;
    int device = -1, frees = 0, wrong_frees = 0;
    std::size_t offset = 0;
    bool empty = false;

    RuntimeOptions options() {
        RuntimeOptions options = fake_options();
        options.device_allocate = [this](std::size_t bytes, int of) -> void* {
            device = of;
            if (empty) return nullptr;
            auto* const memory = static_cast<char*>(std::aligned_alloc(256, (bytes + 511) / 256 * 256));
            live[memory + offset] = bytes;
            return memory + offset;
        };
        options.device_free = [this](void* memory, std::size_t bytes, int of) {
            ++frees;
            const auto found = live.find(memory);
            if (found == live.end() || found->second != bytes || of != device) {
                ++wrong_frees;
                return;
            }
            live.erase(found);
            std::free(static_cast<char*>(memory) - offset);
        };
        return options;
    }
};

const AttentionSpec kSpec{.dtype = DType::bf16, .head_dim_qk = 64, .q_heads = 4};

Call bound(const Kernel& kernel) {
    return kernel.bind({.q = at(1, DType::bf16, {1, 64, 4, 64}),
                        .k = at(2, DType::bf16, {1, 64, 4, 64}),
                        .v = at(3, DType::bf16, {1, 64, 4, 64}),
                        .o = at(4, DType::bf16, {1, 64, 4, 64})},
                       {});
}

}  // namespace

TEST_CASE("workspaces and buffers come from the caller's allocator and go back to it", "[engine]") {
    fake() = {};
    Pool pool;
    {
        Call call;
        Buffer buffer;
        {
            Runtime runtime(pool.options());
            const Kernel kernel = runtime.prepare(kSpec, {1, 64, 64});
            call = bound(kernel);
            REQUIRE(pool.live.size() == 1);
            CHECK(pool.live.begin()->second == kernel.workspace_bytes({1, 64, 64}));
            CHECK(pool.device == 0);
            buffer = runtime.allocate(1000);
            CHECK(pool.live.at(buffer.data()) == 1000);
            CHECK(runtime.allocate(0).data() == nullptr);
        }
        CHECK_FALSE(call.status());  // the workspace's head was zeroed
        CHECK(pool.live.size() == 2);
    }
    CHECK(pool.live.empty());
    CHECK(pool.frees == 2);
    CHECK(pool.wrong_frees == 0);
    CHECK(fake().allocations == 0);
    CHECK(fake().frees == 0);
}

TEST_CASE("an allocator that gives nothing is named with the bytes", "[engine]") {
    fake() = {};
    Pool pool;
    pool.empty = true;
    const Runtime runtime(pool.options());
    try {
        (void)runtime.allocate(4711);
        FAIL("it was taken");
    } catch (const DriverError& error) {
        CHECK(error.call() == "RuntimeOptions::device_allocate");
        CHECK(error.driver_code() == 2);
        CHECK(std::string(error.what()).find("4711 bytes") != std::string::npos);
    }
    CHECK(pool.frees == 0);
}

TEST_CASE("an address that is not aligned is refused and given back", "[engine]") {
    fake() = {};
    Pool pool;
    pool.offset = 128;
    const Runtime runtime(pool.options());
    const InvalidRequest error = refused([&] { (void)runtime.allocate(64); });
    CHECK(error.field() == "RuntimeOptions::device_allocate");
    CHECK(error.accepted() == "a multiple of 256");
    CHECK(pool.live.empty());
    CHECK(pool.wrong_frees == 0);
}

TEST_CASE("device_allocate and device_free are given together", "[engine]") {
    Pool pool;
    RuntimeOptions only_allocate = pool.options(), only_free = pool.options();
    only_allocate.device_free = nullptr;
    only_free.device_allocate = nullptr;
    CHECK(refused([&] { const Runtime runtime(only_allocate); }).field() == "device_free");
    CHECK(refused([&] { const Runtime runtime(only_free); }).field() == "device_allocate");
}
