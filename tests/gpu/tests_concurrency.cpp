// Threads, several runtimes, launches in flight at the same time, and the same bits every time.
#include <fmt/format.h>

#include <cstring>
#include <memory>
#include <mutex>
#include <thread>

#include "catalogue.hpp"
#include "check/kernel_choice.hpp"
#include "check/storage.hpp"
#include "cuda_driver.hpp"

namespace attnsmith::gpu_tests {
namespace {

// Some problems that need different kernels.
std::vector<Case> assorted() {
    const Case small = causal(attention(DType::fp16, 64, 4, 2));
    const Case large = causal(attention(DType::bf16, 128, 8, 2));
    Case split = with_lengths(paged(large), {1, 1}, {5000, 333});
    split.spec.lse = true;
    std::vector<Case> cases{with_lengths(ragged(small), {100, 30, 1}),
                            with_lengths(paged(small), {1, 1, 1}, {300, 20, 64}),
                            with_lengths(dense(large), {130, 70}), split};
    for (std::size_t n = 0; n < cases.size(); ++n) {
        cases[n].group = "threads";
        cases[n].name = fmt::format("problem {}", n);
    }
    return cases;
}

std::string run_in_threads(Runtime& runtime, std::uint64_t seed) {
    constexpr int kThreads = 8;
    const std::vector<Case> cases = assorted();
    std::string failure;
    std::mutex mutex;
    {
        std::vector<std::jthread> pool;
        for (int t = 0; t < kThreads; ++t) {
            pool.emplace_back([&, t] {
                for (std::size_t n = 0; n < cases.size(); ++n) {
                    // Each starts elsewhere, so that some ask for the same kernel at once and some for
                    // different ones.
                    const Case& test = cases[(n + static_cast<std::size_t>(t)) % cases.size()];
                    const CaseResult result =
                        check::run_case(runtime, test, {seed + static_cast<std::uint64_t>(t), 1, 1e9, {}});
                    const std::scoped_lock lock(mutex);
                    if (!result.passed())
                        failure = fmt::format("thread {}, {}: {}", t, result.name, result.detail);
                }
            });
        }
    }
    return failure;
}

// A case's memory, a Call on it, and what a launch gave.
struct Running {
    Running(Runtime& memory, Runtime& kernels, const Case& test, std::uint64_t seed)
        : storage(memory, test, seed), kernel(kernels.prepare(test.spec, test.plan_sizes())) {
        storage.load(test.steps.at(0));
        storage.poison_outputs();
        call = kernel.bind(storage.tensors(), storage.batch());
    }

    // Empty where both launches wrote all their rows, with the same bits; two that wrote nothing agree, too.
    std::string difference(const Running& other) const {
        const auto mine = storage.read_outputs(), theirs = other.storage.read_outputs();
        for (const std::string& row : {storage.unwritten(mine), other.storage.unwritten(theirs)})
            if (!row.empty()) return row;
        return mine.o == theirs.o && mine.lse == theirs.lse ? "" : "the bits differ";
    }

    check::Storage storage;
    Kernel kernel;
    Call call;
};

RuntimeOptions without_cache() {
    RuntimeOptions options;
    options.use_cache = false;
    return options;
}

std::string fresh_runtime_in_threads(const Context& context) {
    Runtime runtime(without_cache());
    return run_in_threads(runtime, context.seed);
}

std::string shared_runtime_in_threads(const Context& context) {
    return run_in_threads(context.runtime, context.seed);
}

std::string two_runtimes(const Context& context) {
    Runtime other(without_cache());
    for (const Case& test : assorted()) {
        Running first(context.runtime, context.runtime, test, context.seed);
        Running second(context.runtime, other, test, context.seed);
        first.call.launch();
        second.call.launch();
        context.runtime.synchronize();
        if (const std::string what = first.difference(second); !what.empty())
            return fmt::format("{}, two runtimes: {}", test.name, what);
    }
    return {};
}

std::string call_outlives_runtime(const Context& context) {
    const Case test = assorted().back();
    Running first(context.runtime, context.runtime, test, context.seed);
    auto gone = std::make_unique<Runtime>(without_cache());
    Running second(context.runtime, *gone, test, context.seed);
    gone.reset();
    second.kernel = Kernel();
    first.call.launch();
    second.call.launch();
    context.runtime.synchronize();
    if (second.call.status()) return "the status is not clean";
    return first.difference(second);
}

std::string calls_in_flight(const Context& context) {
    constexpr int kCalls = 6;
    const CurrentContext current;
    for (const Case& test : assorted()) {
        Running alone(context.runtime, context.runtime, test, context.seed);
        alone.call.launch();
        context.runtime.synchronize();
        std::vector<std::unique_ptr<TestStream>> streams;
        std::vector<std::unique_ptr<Running>> running;
        for (int n = 0; n < kCalls; ++n) {
            streams.push_back(std::make_unique<TestStream>());
            running.push_back(
                std::make_unique<Running>(context.runtime, context.runtime, test, context.seed));
        }
        for (int round = 0; round < 10; ++round)
            for (std::size_t n = 0; n < running.size(); ++n) running[n]->call.launch(streams[n]->get());
        for (const auto& stream : streams) stream->synchronize();
        for (const auto& one : running)
            if (const std::string what = one->difference(alone); !what.empty())
                return fmt::format("{}, launches in flight together: {}", test.name, what);
    }
    return {};
}

// What the library does beside its launches, on a thread that captures nothing: statuses of a call whose
// stream is `other` and of the default stream, a call with a workspace of its own from bind to free, and
// copies. Gives what went wrong.
std::string work_beside_capture(const Context& context, const Running& running, const TestStream& other) {
    try {
        const CurrentContext current;
        running.call.clear_status(other.get());
        if (running.call.status(other.get())) return "the status of a stream is not clean";
        if (running.call.status()) return "the status of the default stream is not clean";
        {
            const Call owning = running.kernel.bind(running.storage.tensors(), running.storage.batch());
            owning.launch(other.get());
            if (owning.status(other.get())) return "the status of an owning call is not clean";
        }
        Buffer buffer = context.runtime.allocate(4096);
        const std::vector<std::byte> in(4096, std::byte{42});
        std::vector<std::byte> out(4096);
        buffer.upload(in.data(), in.size());
        buffer.download(out.data(), out.size());
        return in == out ? "" : "a buffer gives back other bytes";
    } catch (const std::exception& error) {
        return std::string("threw: ") + error.what();
    }
}

// A capture in CUDA's strictest mode outlives all that, and what it replays is right.
std::string beside_a_capture(const Context& context) {
    const CurrentContext current;
    for (const Case& test : assorted()) {
        Running alone(context.runtime, context.runtime, test, context.seed);
        Running captured(context.runtime, context.runtime, test, context.seed);
        Call bound_within;
        const TestStream stream, other;
        std::string what;
        const CapturedGraph graph(stream, [&] {
            captured.call.launch(stream.get());
            std::jthread([&] { what = work_beside_capture(context, alone, other); }).join();
            bound_within = captured.kernel.bind(captured.storage.tensors(), captured.storage.batch());
        });
        if (!what.empty()) return fmt::format("{}, beside a capture: {}", test.name, what);
        alone.call.launch();
        context.runtime.synchronize();
        graph.launch(stream);
        stream.synchronize();
        if (const std::string bits = captured.difference(alone); !bits.empty())
            return fmt::format("{}, replayed: {}", test.name, bits);
        captured.storage.poison_outputs();
        bound_within.launch(stream.get());
        if (bound_within.status(stream.get())) return "the status is not clean";
        if (const std::string bits = captured.difference(alone); !bits.empty())
            return fmt::format("{}, bound within a capture: {}", test.name, bits);
    }
    return {};
}

// The status word goes where the caller wants it, in the stream's order, and in a graph.
std::string status_word_in_a_graph(const Context& context) {
    const CurrentContext current;
    const Case test = assorted().back();
    Running running(context.runtime, context.runtime, test, context.seed);
    Buffer word = context.runtime.allocate(sizeof(std::uint32_t));
    const TestStream stream;
    const CapturedGraph graph(stream, [&] {
        running.call.launch(stream.get());
        running.call.copy_status(static_cast<std::uint32_t*>(word.data()), stream.get());
        running.call.clear_status(stream.get());
    });
    const std::uint32_t before = 77;
    word.upload(&before, sizeof before);
    graph.launch(stream);
    stream.synchronize();
    std::uint32_t after = 0;
    word.download(&after, sizeof after);
    return after == 0 ? "" : fmt::format("the copied word is {}", after);
}

// Queries of few rows, so that there are more tiles than a GPU holds CTAs and yet few bytes to compare after
// each launch; one sequence has several tiles, and one no keys.
Case many_short_tiles(Case test) {
    std::vector<std::int64_t> q_lens{300}, kv_lens{700};
    for (std::int64_t n = 1; n < 48; ++n) {
        q_lens.push_back(n * 37 % 25);
        kv_lens.push_back(n == 20 ? 0 : n * 53 % 400);
    }
    test = with_lengths(std::move(test), q_lens, kv_lens);
    test.spec.lse = true;
    return test;
}

void add_repeats(Catalogue& catalogue) {
    constexpr int kLaunches = 1000;
    const auto with = [&](const std::string& name, Case test) {
        test.launches = kLaunches;
        add(catalogue, "repeat", fmt::format("{} launches of {}", kLaunches, name), test);
    };
    const std::vector<Case> cases = assorted();
    for (std::size_t n = 0; n < cases.size(); ++n) with(fmt::format("problem {}", n), cases[n]);
    // Kernels whose CTAs take tile after tile, in an order that is another one each time.
    const auto with_wgmma = [&](const std::string& name, const Case& test) {
        for (const check::KernelChoice& choice : check::kernel_choices(test.spec)) {
            if (!choice.wgmma) continue;
            Case chosen = test;
            chosen.kernel = choice;
            with(name + ", " + to_string(choice), chosen);
        }
    };
    for (const std::int64_t dim : {64, 128, 256}) {
        const Case base = causal(attention(DType::bf16, dim, dim == 256 ? 4 : 8, dim == 64 ? 8 : 4));
        with_wgmma(fmt::format("ragged {}", dim), many_short_tiles(ragged(base)));
        with_wgmma(fmt::format("paged {}", dim), many_short_tiles(paged(base)));
    }
    Case tall =
        with_lengths(dense(causal(attention(DType::bf16, 64, 8, 8))), std::vector<std::int64_t>(12, 200));
    tall.spec.lse = true;
    with_wgmma("dense 64", tall);
}

}  // namespace

void add_concurrency(Catalogue& catalogue) {
    add(catalogue, "threads", "one runtime, kernels known", shared_runtime_in_threads);
    add(catalogue, "threads", "one runtime, nothing known", fresh_runtime_in_threads);
    add(catalogue, "threads", "calls in flight on several streams", calls_in_flight);
    add(catalogue, "graph", "another thread works beside a capture", beside_a_capture);
    add(catalogue, "graph", "the status word in a graph", status_word_in_a_graph);
    add(catalogue, "runtimes", "two in one process", two_runtimes);
    add(catalogue, "runtimes", "a call outlives its runtime", call_outlives_runtime);
    add_repeats(catalogue);
}

}  // namespace attnsmith::gpu_tests
