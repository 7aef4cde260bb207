// What prepare_async() begins: who waits for it, and what a child forked meanwhile has of it.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <future>
#include <iterator>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "cache/fixture.hpp"
#include "engine/fake_runtime.hpp"
#include "support/catch.hpp"
#include "support/variable.hpp"

using namespace attnsmith;
using cache::testing::ChildProcess;
using cache::testing::read_text;
using cache::testing::TemporaryDirectory;
using cache::testing::write_text;
using test::Variable;
using Futures = std::vector<std::shared_future<Kernel>>;

namespace {

// The stand-in for NVRTC, whose compiles do not end while a gate is shut.
struct GatedNvrtc {
    const TemporaryDirectory directory;
    const std::string gate = directory / "gate", log = directory / "log";
    const Variable block{"FAKE_NVRTC_BLOCK", gate}, count{"FAKE_NVRTC_LOG", log};

    std::size_t compiles() const { return std::ranges::count(read_text(log), '\n'); }
    // What was compiled, in order.
    std::vector<std::string> programs() const {
        std::istringstream lines(read_text(log));
        return {std::istream_iterator<std::string>(lines), {}};
    }
    void shut() const { write_text(gate, "shut"); }
    void open() const { std::filesystem::remove(gate); }
    void wait_for_compile(std::size_t number) const {
        while (compiles() < number) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
};

AttentionSpec merge(std::int64_t head_dim) {
    return {.op = Op::merge, .head_dim_vo = head_dim, .q_heads = 1};
}

RuntimeOptions options() {
    RuntimeOptions options = test::fake_options();
    options.nvrtc_path = ATTNSMITH_FAKE_NVRTC;
    options.compile_threads = 1;
    return options;
}

bool is_ready(const std::shared_future<Kernel>& future) {
    return future.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

// Empty, or the message.
std::string error_of(const std::shared_future<Kernel>& future) {
    try {
        future.get();
        return {};
    } catch (const Error& error) {
        return error.what();
    }
}

// What a child has of what its parent was preparing: 0 if all is well.
int judge_in_child(Futures& unfinished, const std::shared_future<Kernel>& finished,
                   std::optional<Runtime>& runtime) {
    ::alarm(60);
    for (const auto& future : unfinished) {
        if (!is_ready(future)) return 1;
        const std::string error = error_of(future);
        for (const char* word : {"this process was forked while", "prewarm", "spawn"})
            if (error.find(word) == error.npos) return 2;
    }
    if (finished.get().spec() != merge(8)) return 3;
    unfinished.clear();
    runtime.reset();
    return 0;
}

}  // namespace

TEST_CASE("a child forked while kernels are prepared in the background is told, and may drop them",
          "[engine][fork]") {
    const GatedNvrtc nvrtc;
    std::optional<Runtime> runtime(options());
    const auto finished = runtime->prepare_async(merge(8), {}, 0);
    finished.wait();
    nvrtc.shut();
    Futures unfinished;
    for (const std::int64_t dim : {16, 24, 32, 40, 48})
        unfinished.push_back(runtime->prepare_async(merge(dim), {}, 0));
    nvrtc.wait_for_compile(2);
    ChildProcess child([&] { return judge_in_child(unfinished, finished, runtime); });
    CHECK(child.wait() == 0);
    ChildProcess later([&] {
        // A grandchild has what the child has.
        ChildProcess grandchild([&] { return judge_in_child(unfinished, finished, runtime); });
        return grandchild.wait();
    });
    CHECK(later.wait() == 0);
    CHECK_FALSE(is_ready(unfinished[0]));
    nvrtc.open();
    for (const auto& future : unfinished) CHECK_NOTHROW(future.get());
}

TEST_CASE("a child may be forked at any time while kernels are prepared in the background",
          "[engine][fork]") {
    const Variable quick("FAKE_NVRTC_MS", "1");
    for (int round = 0; round < 20; ++round) {
        Runtime runtime(options());
        Futures futures;
        for (const std::int64_t dim : {8, 16, 24, 32, 40, 48, 56, 64})
            futures.push_back(runtime.prepare_async(merge(dim), {}, 0));
        // From before the first is ready to when most are.
        std::this_thread::sleep_for(std::chrono::milliseconds(round));
        ChildProcess child([&] {
            ::alarm(60);
            for (const auto& future : futures) {
                const std::string error = error_of(future);
                if (!error.empty() && error.find("forked while") == error.npos) return 1;
            }
            futures.clear();
            return 0;
        });
        CHECK(child.wait() == 0);
        for (const auto& future : futures) CHECK_NOTHROW(future.get());
    }
}

TEST_CASE("a future that is dropped waits for nobody, and its Runtime does when it goes", "[engine]") {
    const GatedNvrtc nvrtc;
    nvrtc.shut();
    std::optional<Runtime> runtime(options());
    for (const std::int64_t dim : {8, 16, 24}) runtime->prepare_async(merge(dim), {}, 0);
    nvrtc.wait_for_compile(1);
    CHECK(nvrtc.compiles() == 1);
    nvrtc.open();
    runtime.reset();
    CHECK(nvrtc.compiles() == 3);
}

TEST_CASE("a kernel that a caller waits for is compiled before those of the background and of a prewarm",
          "[engine][background]") {
    const GatedNvrtc nvrtc;
    for (const std::int64_t head_dim : {512, 256}) (void)Runtime(options()).prepare(merge(head_dim), {}, 0);
    const std::vector<std::string> waited_for = nvrtc.programs();
    const TemporaryDirectory cache;
    RuntimeOptions with_cache = options();
    with_cache.use_cache = true;
    with_cache.cache_dirs = {cache / "cache"};
    Runtime runtime(with_cache);
    nvrtc.shut();
    Futures queued;
    for (std::int64_t head_dim = 8; head_dim <= 256; head_dim += 8)
        queued.push_back(runtime.prepare_async(merge(head_dim), {}, 0));
    nvrtc.wait_for_compile(3);
    std::vector<AttentionSpec> specs;
    for (std::int64_t head_dim = 264; head_dim <= 480; head_dim += 8) specs.push_back(merge(head_dim));
    std::jthread prewarming([&] { (void)runtime.prewarm(specs, std::vector{90}, {.jobs = 4}); });
    std::jthread caller([&] { (void)runtime.prepare(merge(512), {}, 0); });
    std::jthread joining([&] { (void)runtime.prepare(merge(256), {}, 0); });  // that of the last future
    std::this_thread::sleep_for(std::chrono::milliseconds(200));              // until all of them wait
    nvrtc.open();
    for (const auto& future : queued) future.wait();
    prewarming.join();
    std::vector<std::string> programs = nvrtc.programs();
    REQUIRE(programs.size() == 2 + queued.size() + specs.size() + 1);
    // The third was under way; each of the two next ones is waited for.
    CHECK(std::is_permutation(waited_for.begin(), waited_for.end(), programs.begin() + 3));
}
