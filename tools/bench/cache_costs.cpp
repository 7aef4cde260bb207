#include "bench/cache_costs.hpp"

#include <fcntl.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <span>
#include <string>

#include "attnsmith/error.hpp"
#include "bench/temporary_directory.hpp"
#include "cache/entries/layout.hpp"
#include "cache/store/store.hpp"

namespace attnsmith::bench {
namespace {

namespace fs = std::filesystem;

// As large as the larger of real entries.
constexpr std::size_t kMetadataBytes = 20'000;
constexpr std::size_t kPayloadBytes = 40'000;
constexpr std::size_t kHits = 2001;
constexpr std::size_t kPublishes = 101;
constexpr std::size_t kCounts = 100'000;
constexpr cache::Version kVersion{13, 0, 88};

cache::Digest key_of(std::uint64_t i) { return cache::digest_of(std::as_bytes(std::span(&i, 1))); }

cache::Entry synthetic_entry() {
    return {.metadata = R"({"source":")" + std::string(kMetadataBytes, 's') + R"("})",
            .payload = std::vector<std::byte>(kPayloadBytes)};
}

// Not by Store::publish(), whose syncs would take minutes.
void write_entry(const std::string& directory, std::uint64_t i, const cache::Entry& entry) {
    const auto bytes = cache::encode_entry(key_of(i), kVersion, entry);
    const fs::path path = directory + "/" + cache::layout::entry_path({key_of(i), kVersion});
    fs::create_directories(path.parent_path());
    std::ofstream file(path, std::ios::binary);
    file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    file.close();
    if (!file) throw Error("cannot write " + path.string());
    ::chmod(path.c_str(), 0600);
    fs::last_write_time(path, fs::file_time_type::clock::now() - std::chrono::hours(24));
}

double milliseconds_of(const std::function<void()>& work) {
    const auto start = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

std::vector<double> times_of(std::size_t runs, const std::function<void(std::size_t run)>& work) {
    std::vector<double> times;
    for (std::size_t run = 0; run < runs; ++run) times.push_back(milliseconds_of([&] { work(run); }));
    return times;
}

void require(bool good, const char* what) {
    if (!good) throw Error(std::string("the cache's benchmark: ") + what);
}

void run_stat_command(const std::string& directory) {
    std::string words[] = {"attnsmith", "cache", "stat", "--cache", directory};
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    pid_t child = 0;
    const int error_number =
        ::posix_spawn(&child, "/proc/self/exe", &actions, nullptr, arguments.data(), environ);
    ::posix_spawn_file_actions_destroy(&actions);
    require(error_number == 0, "the command cannot be started");
    int status = 0;
    while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    require(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the command failed");
}

}  // namespace

CacheCosts measure_cache(const CacheCostOptions& options) {
    const TemporaryDirectory directory;
    const cache::Entry entry = synthetic_entry();
    for (std::uint64_t i = 0; i < options.entries; ++i) write_entry(directory.path(), i, entry);

    CacheCosts costs;
    costs.entries = options.entries;
    costs.entry_bytes = cache::encode_entry(key_of(0), kVersion, entry).size();
    const cache::Store store({.directory = directory.path(), .max_bytes = 0});
    const auto hit = [&](std::size_t run) {
        const auto candidates = store.candidates(key_of(run % options.entries));
        require(!candidates.empty() && store.load(candidates.front()).ok(), "an entry is missing");
        store.count(cache::Event::hit);
    };
    const std::size_t hits = std::min(kHits, options.entries);
    static_cast<void>(times_of(hits, hit));  // warms the page cache, and renews the stamps
    costs.hit = times_of(hits, hit);
    costs.miss = times_of(hits, [&](std::size_t run) {
        require(store.candidates(key_of(options.entries + run)).empty(), "an entry is too many");
    });
    const double counting = milliseconds_of([&] {
        for (std::size_t i = 0; i < kCounts; ++i) store.count(cache::Event::hit);
    });
    costs.count = {counting / kCounts};
    const auto runs = static_cast<std::size_t>(options.repeat);
    costs.stat = times_of(runs, [&](std::size_t) {
        require(store.stat().entries == options.entries, "entries are miscounted");
    });
    costs.stat_command = times_of(runs, [&](std::size_t) { run_stat_command(directory.path()); });

    const std::uint64_t half = store.stat().allocated_bytes / 2;
    costs.evict_half = milliseconds_of([&] {
        const cache::EvictionReport report = store.gc(half);
        require(report.kept && report.kept->bytes <= half, "half could not be evicted");
    });
    costs.publish = times_of(kPublishes, [&](std::size_t run) {
        require(store.publish(key_of(2 * options.entries + run), kVersion, entry).ok(), "publishing failed");
    });
    return costs;
}

}  // namespace attnsmith::bench
