// Many processes, each of many threads, ask for the same cold kernels at once: each kernel is compiled once,
// over all of them, and everybody gets it.
//
//   attnsmith-multiprocess stand_in    64 processes of 8 threads, 20 kernels, a stand-in for NVRTC
//   attnsmith-multiprocess nvrtc       8 processes of 4 threads, 4 kernels, the real one; 77: there is none
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <set>
#include <sstream>
#include <thread>

#include "cache/fixture.hpp"
#include "cubins/cubins.hpp"
#include "planner/plan.hpp"
#include "planner/repository_tuning.hpp"
#include "support/nvrtc.hpp"

using namespace attnsmith;
using cache::testing::ChildProcess;
using cache::testing::TemporaryDirectory;

namespace {

struct Race {
    int processes;
    int threads;
    std::size_t kernels;
    compiler::NvrtcOptions nvrtc;
};

constexpr int kSkipped = 77;
constexpr unsigned kSeconds = 240;  // by then a child that hangs is ended

engine::Settings settings_of(const Race& race, const std::string& directory) {
    engine::Settings settings;
    settings.cache_dirs = {directory};
    settings.nvrtc = race.nvrtc;
    settings.compile_threads = 2;
    return settings;
}

// One write, so that the lines of many processes do not mix.
void append(const std::string& file, std::string_view line) {
    const int out = ::open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    const std::string text = fmt::format("{}\n", line);
    if (out < 0 || ::write(out, text.data(), text.size()) < 0) std::abort();
    ::close(out);
}

std::shared_ptr<const engine::Log> log_to(const std::string& file) {
    return std::make_shared<const engine::Log>(
        LogLevel::warn, [file](LogLevel, std::string_view line) { append(file, line); });
}

// Kernels of op merge are quick to compile, and their shared bytes are in the source.
std::vector<engine::KernelSource> sources(std::size_t count, const engine::Cubins& cubins) {
    std::vector<engine::KernelSource> found;
    std::set<cache::Digest> keys;
    for (std::int64_t dim = 8; dim <= 256; dim += 8) {
        const AttentionSpec spec{.op = Op::merge, .head_dim_vo = dim, .q_heads = 1};
        const auto set =
            planner::kernel_set(problem::validate(spec, {}).spec, 90, planner::repository_tuning());
        for (const families::KernelConfig& kernel : set.kernels()) {
            engine::KernelSource source = cubins.source_of(kernel);
            if (found.size() < count && keys.insert(source.key).second) found.push_back(std::move(source));
        }
    }
    if (found.size() != count) throw std::runtime_error("there are not that many merge kernels");
    return found;
}

// One process: all its threads want all kernels, each in an order of its own.
int take_part(const Race& race, const std::string& directory, const std::vector<engine::KernelSource>& wanted,
              int process) {
    ::alarm(kSeconds);
    engine::Cubins cubins(settings_of(race, directory + "/cache"), log_to(directory + "/warnings"));
    std::atomic<int> served{0};
    {
        std::vector<std::jthread> threads;
        for (int thread = 0; thread < race.threads; ++thread) {
            threads.emplace_back([&, thread] {
                const auto first = static_cast<std::size_t>(process * race.threads + thread);
                for (std::size_t i = 0; i < wanted.size(); ++i) {
                    const engine::KernelSource& source = wanted[(first + i) % wanted.size()];
                    const engine::Obtained obtained =
                        cubins.obtain(source, [](const engine::Cubin&) { return std::nullopt; });
                    if (obtained.origin == engine::Origin::made)
                        append(directory + "/made", source.key.hex());
                    const engine::Cubin& cubin = *obtained.cubin;
                    if (cubin.key == source.key && cubin.entry == source.unit.entry) ++served;
                }
            });
        }
    }
    return served == race.threads * static_cast<int>(wanted.size()) ? 0 : 1;
}

std::vector<std::string> lines_of(const std::string& file) {
    std::istringstream text(cache::testing::read_text(file));
    std::vector<std::string> lines;
    for (std::string line; std::getline(text, line);) lines.push_back(line);
    return lines;
}

int failures = 0;

void check(bool good, const std::string& what) {
    fmt::print("{}: {}\n", good ? "ok" : "FAILED", what);
    if (!good) ++failures;
}

void check_each_once(const Race& race, const std::vector<std::string>& lines, std::string_view what) {
    check(lines.size() == race.kernels && std::set(lines.begin(), lines.end()).size() == race.kernels,
          fmt::format("{} {}, for {} kernels", what, lines.size(), race.kernels));
}

void run(const Race& race, const TemporaryDirectory& temporary) {
    const std::string directory = temporary.path().string();
    engine::Cubins here(settings_of(race, directory + "/cache"), log_to(directory + "/warnings"));
    const auto wanted = sources(race.kernels, here);
    const auto start = std::chrono::steady_clock::now();
    std::vector<ChildProcess> processes;
    processes.reserve(static_cast<std::size_t>(race.processes));
    for (int i = 0; i < race.processes; ++i) {
        processes.emplace_back([&, i] { return take_part(race, directory, wanted, i); });
    }
    int good = 0;
    for (ChildProcess& process : processes) good += process.wait() == 0 ? 1 : 0;
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;

    check(good == race.processes,
          fmt::format("{} of {} processes of {} threads got all {} kernels, in {:.1f} s", good,
                      race.processes, race.threads, race.kernels, took.count()));
    const auto warnings = lines_of(directory + "/warnings");
    check(warnings.empty(),
          fmt::format("{} warnings{}", warnings.size(), warnings.empty() ? "" : ": " + warnings.front()));
    check(here.store().verify().bad.empty() && here.store().list().entries.size() == race.kernels,
          fmt::format("{} entries, none of them bad", here.store().list().entries.size()));
    const cache::Statistics statistics = here.store().stat();
    check(statistics.staging == 0 && statistics.quarantined == 0, "nothing is left over");
    check_each_once(race, lines_of(directory + "/made"), "processes say that they compiled");
}

int run_with_stand_in() {
    const TemporaryDirectory temporary;
    const std::string compiles = temporary / "compiles";
    ::setenv("FAKE_NVRTC_LOG", compiles.c_str(), 1);
    ::setenv("FAKE_NVRTC_MS", "100", 1);
    const Race race{64, 8, 20, {.path = ATTNSMITH_FAKE_NVRTC, .extra_folders = {}}};
    run(race, temporary);
    check_each_once(race, lines_of(compiles), "the compiler was called");
    return failures == 0 ? 0 : 1;
}

int run_with_nvrtc() {
    const Race race{8, 4, 4, test::nvrtc_options()};
    try {
        compiler::Nvrtc::open(race.nvrtc);
    } catch (const LibraryMissing& missing) {
        fmt::print("SKIPPED: {}\n", missing.what());
        return kSkipped;
    }
    const TemporaryDirectory temporary;
    run(race, temporary);
    return failures == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
    const std::string_view mode = argc == 2 ? argv[1] : "";
    if (mode == "stand_in") return run_with_stand_in();
    if (mode == "nvrtc") return run_with_nvrtc();
    fmt::print(stderr, "usage: {} stand_in|nvrtc\n", argv[0]);
    return 2;
}
