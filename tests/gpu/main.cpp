// attnsmith-gpu-tests: runs the suite on the GPU and writes the ledger. Its own program rather than a Catch2
// one, so that a machine without a GPU reports each case as skipped by name, and so that the ledger has
// errors and times.
#include <fmt/format.h>
#include <regex.h>

#include <atomic>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <future>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <string_view>
#include <thread>

#include "catalogue.hpp"
#include "check/journal.hpp"
#include "check/judge.hpp"
#include "check/kernel_choice.hpp"
#include "cuda_driver.hpp"
#include "ledger.hpp"

namespace attnsmith::gpu_tests {
namespace {

constexpr int kSkipped = 77;  // ctest's SKIP_RETURN_CODE
constexpr int kBadUsage = 2;

constexpr std::string_view kUsage =
    "attnsmith-gpu-tests [--filter REGEX] [--group NAME] [--seed N] [--threads N] [--list] [--quick] "
    "[--verbose]\n"
    "                    [--models DIR] [--ledger FILE --sources HEX] [--journal FILE --sources HEX] "
    "[--prepare]\n"
    "  --filter   cases whose group/name matches          --quick    about 8 cases a group\n"
    "  --ledger   writes what ran; the whole suite only   --sources  what run_ledger.sh computes\n"
    "  --journal  keeps what passes as it does; a later run goes on from there, with the same seed\n"
    "  --prepare  fills the kernel cache, and runs nothing\n"
    "Without a GPU every case is skipped and the exit code is 77.\n";

struct Options {
    std::optional<std::string> filter, group, ledger, journal;
    std::string sources, models = ATTNSMITH_TEST_MODELS;
    std::optional<std::uint64_t> given_seed;
    std::uint64_t seed = 0;
    int threads = 0;
    bool list = false, quick = false, prepare = false, verbose = false, help = false;
};

struct BadUsage : std::runtime_error {
    using std::runtime_error::runtime_error;
};

template <typename Number>
Number number(std::string_view name, const std::string& text) {
    Number value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size())
        throw BadUsage(fmt::format("{}: \"{}\" is not a number", name, text));
    return value;
}

Options parse(int count, char** words) {
    Options options;
    for (int n = 1; n < count; ++n) {
        const std::string word = words[n];
        const auto value = [&] {
            if (++n == count) throw BadUsage(word + " needs a value");
            return std::string(words[n]);
        };
        if (word == "--filter")
            options.filter = value();
        else if (word == "--group")
            options.group = value();
        else if (word == "--ledger")
            options.ledger = value();
        else if (word == "--journal")
            options.journal = value();
        else if (word == "--sources")
            options.sources = value();
        else if (word == "--models")
            options.models = value();
        else if (word == "--seed")
            options.given_seed = number<std::uint64_t>(word, value());
        else if (word == "--threads")
            options.threads = number<int>(word, value());
        else if (word == "--list")
            options.list = true;
        else if (word == "--quick")
            options.quick = true;
        else if (word == "--prepare")
            options.prepare = true;
        else if (word == "--verbose")
            options.verbose = true;
        else if (word == "--help")
            options.help = true;
        else
            throw BadUsage("no such option: " + word);
    }
    // A ledger of a part would read as one of the whole.
    if (options.ledger && (options.filter || options.group || options.quick || options.prepare))
        throw BadUsage("--ledger is for the whole suite: leave out --filter, --group, --quick and --prepare");
    if (options.ledger && options.sources.empty()) throw BadUsage("--ledger needs --sources");
    if (options.journal && options.sources.empty()) throw BadUsage("--journal needs --sources");
    const std::optional<std::uint64_t> begun =
        options.journal ? check::Journal::seed_of(*options.journal) : std::nullopt;
    options.seed = options.given_seed ? *options.given_seed : begun ? *begun : std::random_device()();
    return options;
}

// A POSIX extended regular expression. (With sanitizers GCC 12 warns inside std::regex.)
class Filter {
  public:
    explicit Filter(const std::string& pattern) {
        if (const int error = regcomp(&compiled_, pattern.c_str(), REG_EXTENDED | REG_NOSUB); error != 0) {
            char text[200];
            regerror(error, &compiled_, text, sizeof text);
            throw BadUsage(fmt::format("--filter {}: {}", pattern, text));
        }
    }
    ~Filter() { regfree(&compiled_); }
    Filter(const Filter&) = delete;
    Filter& operator=(const Filter&) = delete;

    bool matches(const std::string& name) const {
        return regexec(&compiled_, name.c_str(), 0, nullptr, 0) == 0;
    }

  private:
    regex_t compiled_{};
};

// A few of each group, spread over it.
void thin_out(Catalogue& catalogue) {
    constexpr int kQuickCases = 8;
    std::map<std::string, int> sizes, seen;
    for (const TestCase& test : catalogue) ++sizes[test.group];
    std::erase_if(catalogue, [&](const TestCase& test) {
        const int step = (sizes[test.group] + kQuickCases - 1) / kQuickCases;
        return seen[test.group]++ % step != 0;
    });
}

Catalogue select(Catalogue catalogue, const Options& options) {
    if (options.group)
        std::erase_if(catalogue, [&](const TestCase& test) { return test.group != *options.group; });
    if (options.filter) {
        const Filter filter(*options.filter);
        std::erase_if(catalogue, [&](const TestCase& test) { return !filter.matches(test.full_name()); });
    }
    if (options.quick) thin_out(catalogue);
    return catalogue;
}

void report(const CaseResult& result, const Options& options) {
    const std::string name = result.full_name();
    if (result.outcome == check::Outcome::failed) {
        fmt::print("FAIL {} ({:.0f} ms)\n    {}\n", name, result.milliseconds, result.detail);
    } else if (result.outcome == check::Outcome::skipped) {
        fmt::print("SKIP {} ({})\n", name, result.detail);
    } else if (options.verbose) {
        fmt::print(
            "ok   {} ({:.0f} ms; max error {:.2g}; of allowed: element {:.2f}, pooled {:.2f}, lse "
            "{:.2f}, rounding {:.2f}){}{}\n",
            name, result.milliseconds, result.max_abs_error, result.element_ratio, result.pooled_ratio,
            result.lse_ratio, result.rounding_ratio, result.detail.empty() ? "" : " ", result.detail);
    }
    std::fflush(stdout);
}

CaseResult skip(const TestCase& test, const char* why) {
    CaseResult result;
    result.detail = why;
    result.group = test.group;
    result.name = test.name;
    result.outcome = check::Outcome::skipped;
    return result;
}

std::vector<CaseResult> skip_all(const Catalogue& catalogue, const Options& options) {
    std::vector<CaseResult> results;
    for (const TestCase& test : catalogue) {
        results.push_back(skip(test, "no GPU"));
        report(results.back(), options);
    }
    return results;
}

// Prepares all kernels in the catalogue's order, with some threads; a case waits for its own only.
class Ahead {
  public:
    Ahead(Runtime& runtime, const Catalogue& catalogue) : ready_(catalogue.size()) {
        // Each waits for the runtime's compile pool most of the time.
        const std::size_t threads = 4 * std::max(1u, std::thread::hardware_concurrency());
        for (std::size_t t = 0; t < std::min(threads, catalogue.size()); ++t)
            pool_.emplace_back([&](const std::stop_token& stop) { work(runtime, catalogue, stop); });
    }

    void wait(std::size_t n) { ready_[n].get_future().wait(); }
    void wait_for_all() {
        for (std::promise<void>& ready : ready_) ready.get_future().wait();
    }

  private:
    void work(Runtime& runtime, const Catalogue& catalogue, const std::stop_token& stop) {
        for (std::size_t n = next_++; n < catalogue.size() && !stop.stop_requested(); n = next_++) {
            // What is thrown is thrown again, and reported, when the case runs.
            try {
                if (catalogue[n].ahead) catalogue[n].ahead(runtime);
            } catch (const std::exception&) {
            }
            ready_[n].set_value();
        }
    }

    std::atomic<std::size_t> next_ = 0;
    std::vector<std::promise<void>> ready_;
    std::vector<std::jthread> pool_;  // last: stops before what it uses is gone
};

// Runs the cases, several at a time where they may: one spends most of its time on its inputs and on the fp64
// reference. Those that run alone come behind all others. The results are in the catalogue's order.
class Suite {
  public:
    Suite(Runtime& runtime, const Catalogue& catalogue, const Options& options, check::Journal* journal)
        : catalogue_(catalogue),
          options_(options),
          journal_(journal),
          context_{runtime, options.seed, options.threads > 0 ? options.threads : kThreadsOfCase},
          ahead_(runtime, catalogue),
          results_(catalogue.size()) {}

    std::vector<CaseResult> run() {
        {
            const int at_once =
                std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / kThreadsOfCase);
            std::vector<std::jthread> workers;
            for (int n = 0; n < at_once; ++n) workers.emplace_back([this] { work(); });
        }
        for (std::size_t n = 0; n < catalogue_.size(); ++n)
            if (catalogue_[n].runs_alone) run(n);
        std::vector<CaseResult> results;
        for (std::optional<CaseResult>& result : results_) results.push_back(*std::move(result));
        return results;
    }

  private:
    static constexpr int kThreadsOfCase = 2;

    void work() {
        for (std::size_t n = next_++; n < catalogue_.size(); n = next_++)
            if (!catalogue_[n].runs_alone) run(n);
    }

    void run(std::size_t n) {
        const TestCase& test = catalogue_[n];
        ahead_.wait(n);
        if (options_.verbose) {  // so that a kernel that never ends is known by name
            const std::lock_guard lock(output_);
            fmt::print("run  {}\n", test.full_name());
            std::fflush(stdout);
        }
        // What is thrown outside of run_case(), too: a stream that cannot be created, a capture that fails.
        CaseResult result = lost_ ? skip(test, "the device is lost")
                                  : check::judge(test.group, test.name,
                                                 [&](CaseResult& judged) { judged = test.run(context_); });
        if (result.device_lost) lost_ = true;
        const std::lock_guard lock(output_);
        report(result, options_);
        const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start_;
        if (journal_ != nullptr) journal_->add(result, elapsed.count());
        results_[n] = std::move(result);
    }

    const Catalogue& catalogue_;
    const Options& options_;
    check::Journal* const journal_;  // null: none
    const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
    const Context context_;
    Ahead ahead_;
    std::atomic<std::size_t> next_ = 0;
    std::atomic<bool> lost_ = false;
    std::mutex output_;
    std::vector<std::optional<CaseResult>> results_;
};

int finish(const std::vector<CaseResult>& results) {
    for (const CaseResult& result : results)
        if (result.outcome == check::Outcome::failed) fmt::print("failed: {}\n", result.full_name());
    const Totals totals = count(results);
    fmt::print("{} passed, {} failed, {} skipped\n", totals.passed, totals.failed, totals.skipped);
    if (totals.failed > 0) return 1;
    return totals.passed == 0 && totals.skipped > 0 ? kSkipped : 0;
}

// In the catalogue's order, those from a journal among them. `seconds`: what these took.
std::vector<CaseResult> run_all(Runtime& runtime, const Catalogue& catalogue, const Options& options,
                                const std::string& gpu, double& seconds) {
    if (!options.journal) return Suite(runtime, catalogue, options, nullptr).run();
    check::Journal journal(*options.journal, {options.sources, gpu, driver_version(), options.seed});
    seconds = journal.seconds_before();
    Catalogue left;
    std::vector<std::optional<CaseResult>> before;
    for (const TestCase& test : catalogue) {
        const CaseResult* const passed = journal.passed(test.full_name());
        before.push_back(passed ? std::optional(*passed) : std::nullopt);
        if (passed == nullptr) left.push_back(test);
    }
    fmt::print("{} of them passed before, by the journal\n", catalogue.size() - left.size());
    const std::vector<CaseResult> ran = Suite(runtime, left, options, &journal).run();
    std::vector<CaseResult> results;
    auto next = ran.begin();
    for (std::optional<CaseResult>& one : before) results.push_back(one ? *std::move(one) : *next++);
    return results;
}

int run(const Options& options) {
    const Catalogue catalogue = select(make_catalogue(options.models, options.seed), options);
    if (options.list) {
        for (const TestCase& test : catalogue) fmt::print("{}\n", test.full_name());
        return 0;
    }
    if (catalogue.empty()) throw BadUsage("no case matches");
    Runtime runtime;
    const std::vector<DeviceInfo> devices = runtime.devices();
    if (devices.empty()) return finish(skip_all(catalogue, options));
    const std::string gpu =
        fmt::format("{} (sm_{}, {} SMs)", devices[0].name, devices[0].sm, devices[0].sm_count);
    fmt::print("{} cases on {}, driver {}, seed {}\n", catalogue.size(), gpu, driver_version(), options.seed);
    if (options.prepare) {
        Ahead(runtime, catalogue).wait_for_all();
        return 0;
    }
    const auto start = std::chrono::steady_clock::now();
    double seconds = 0;
    const std::vector<CaseResult> results = run_all(runtime, catalogue, options, gpu, seconds);
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    seconds += elapsed.count();
    fmt::print("{:.1f} s, seed {}\n", seconds, options.seed);
    if (options.ledger)
        write_ledger(*options.ledger, {options.sources, gpu, driver_version(), options.seed, seconds},
                     results);
    return finish(results);
}

}  // namespace
}  // namespace attnsmith::gpu_tests

int main(int count, char** words) {
    using namespace attnsmith::gpu_tests;
    try {
        const Options options = parse(count, words);
        if (options.help) {
            fmt::print("{}", kUsage);
            return 0;
        }
        return run(options);
    } catch (const BadUsage& error) {
        fmt::print(stderr, "attnsmith-gpu-tests: {}\n{}", error.what(), kUsage);
        return kBadUsage;
    } catch (const std::exception& error) {
        fmt::print(stderr, "attnsmith-gpu-tests: {}\n", error.what());
        return 1;
    }
}
