#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <system_error>
#include <thread>
#include <utility>

#include "attnsmith/runtime.hpp"
#include "cubins/missing_kernel.hpp"
#include "cubins/needed_kernels.hpp"
#include "engine/named_specs.hpp"
#include "engine/prewarm.hpp"
#include "engine/runtime_impl.hpp"

namespace attnsmith {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kLongWait = std::chrono::seconds(2);  // for another process: worth telling

double milliseconds_since(Clock::time_point start) {
    return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

PrewarmState state_of(engine::Origin origin) {
    switch (origin) {
        case engine::Origin::memory:
        case engine::Origin::disk:
            return PrewarmState::hit;
        case engine::Origin::made:
            return PrewarmState::compiled;
        case engine::Origin::fetched:
            return PrewarmState::remote;
        case engine::Origin::waited:
            return PrewarmState::waited;
        case engine::Origin::cancelled:
            break;
    }
    return PrewarmState::cancelled;
}

// One run over a list of kernels by several threads.
class Prewarmer {
  public:
    Prewarmer(engine::Cubins& cubins, std::vector<families::KernelConfig> kernels,
              const PrewarmOptions& options)
        : cubins_(cubins), kernels_(std::move(kernels)), options_(options), results_(kernels_.size()) {
        if (!options_.compile) return;  // whatever there is is as good as it gets
        try {
            newest_ = cubins_.compiler().toolchain();
        } catch (const LibraryMissing&) {
            no_nvrtc_ = std::current_exception();  // what is in the cache is then as good as it gets
        }
    }

    // Throws where a kernel is not there yet and cannot be made: before anything is done for the first one.
    // `not_writable` says why nothing can be stored; empty, it can.
    void require_means(const std::string& not_writable) const {
        // A remote may have what is missing, which only asking for it tells.
        if (not_writable.empty() && (!no_nvrtc_ || !cubins_.remotes().empty())) return;
        const bool all_there = std::ranges::all_of(kernels_, [&](const families::KernelConfig& kernel) {
            return cubins_.find(cubins_.source_of(kernel), accept_) != nullptr;
        });
        if (all_there) return;
        if (!not_writable.empty()) throw CacheError(not_writable, cubins_.store().options().directory);
        std::rethrow_exception(no_nvrtc_);
    }

    // Throws what `progress` threw, or what went wrong outside of any kernel, once all workers have ended.
    void run(int jobs) {
        {
            std::vector<std::jthread> workers;
            const int useful = std::min<int>(jobs, static_cast<int>(kernels_.size()));
            try {
                for (int i = 1; i < useful; ++i) workers.emplace_back([this] { work(); });
            } catch (const std::system_error&) {
                // No more threads to be had: those that there are do it.
            }
            work();
        }
        if (failure_) std::rethrow_exception(failure_);
    }

    std::vector<PrewarmedKernel> results() && { return std::move(results_); }
    int pushed() const { return pushed_; }

  private:
    void work() {
        try {
            for (std::size_t i; (i = next_.fetch_add(1)) < kernels_.size();) {
                results_[i] = one(kernels_[i]);
                const std::lock_guard lock(progress_mutex_);
                ++done_;
                if (options_.progress && !failure_)
                    options_.progress(results_[i], done_, static_cast<int>(kernels_.size()));
            }
        } catch (...) {
            next_ = kernels_.size();  // the others finish what they are at
            const std::lock_guard lock(progress_mutex_);
            if (!failure_) failure_ = std::current_exception();
        }
    }

    PrewarmedKernel one(const families::KernelConfig& kernel) {
        const engine::KernelSource source = cubins_.source_of(kernel);
        PrewarmedKernel result{.name = kernel.name(), .sm = kernel.sm, .key = source.key.hex()};
        if (options_.stop.stop_requested()) return result;
        const Clock::time_point start = Clock::now();
        try {
            bool told = false;
            const engine::Obtained obtained =
                cubins_.obtain(source, accept_,
                               {.cancelled =
                                    [&](std::chrono::nanoseconds waited) {
                                        if (waited > kLongWait && !std::exchange(told, true))
                                            tell_of_wait(result);
                                        return options_.stop.stop_requested();
                                    },
                                .stop = options_.stop,
                                .on_miss = options_.compile ? OnMiss::compile : OnMiss::error,
                                .urgency = cache::Urgency::background});
            result.state = state_of(obtained.origin);
            if (!obtained.cubin) return result;
            result.cubin_bytes = obtained.cubin->bytes.size();
            // A full disk, say: there is nothing to show for the work.
            if (const std::string trouble = cubins_.ensure_stored(source, obtained); !trouble.empty())
                throw CacheError(
                    fmt::format("{}, but it could not be stored in {}: {}",
                                obtained.origin == engine::Origin::fetched ? "fetched" : "compiled",
                                cubins_.store().options().directory, trouble));
            const bool pushed =
                obtained.pushed || (options_.push && cubins_.push(source, *obtained.cubin, options_.stop));
            if (pushed) ++pushed_;
        } catch (const engine::CubinMissing& missing) {
            result.state = PrewarmState::missing;
            result.error = missing.passed_over().empty()
                               ? "the cache does not have it"
                               : fmt::format("{}", fmt::join(missing.passed_over(), "; "));
        } catch (const std::exception& error) {
            result.state = PrewarmState::failed;
            result.error = error.what();
        }
        result.milliseconds = milliseconds_since(start);
        return result;
    }

    void tell_of_wait(const PrewarmedKernel& kernel) {
        const std::lock_guard lock(progress_mutex_);
        if (options_.waiting && !failure_) options_.waiting(kernel);
    }

    engine::Cubins& cubins_;
    const std::vector<families::KernelConfig> kernels_;
    const PrewarmOptions& options_;
    cache::Version newest_{};      // of what is accepted; the default accepts all
    std::exception_ptr no_nvrtc_;  // why there is none; null where there is one
    const engine::Cubins::Accept accept_ = [this](const engine::Cubin& cubin) {
        return cubin.toolchain < newest_ ? std::optional<std::string>("it is of an older toolchain")
                                         : std::nullopt;
    };
    std::vector<PrewarmedKernel> results_;
    std::atomic<std::size_t> next_ = 0;
    std::atomic<int> pushed_ = 0;
    std::mutex progress_mutex_;
    int done_ = 0;
    std::exception_ptr failure_;  // the first
};

// Empty if there is a directory that can be written. Throws CacheError where there is none at all, or nothing
// in it either.
std::string why_not_writable(const engine::Cubins& cubins) {
    if (cubins.store().options().directory.empty()) {
        throw CacheError("prewarm needs a cache directory, but there is none: " + cubins.no_cache_because());
    }
    const cache::Statistics statistics = cubins.store().stat();
    std::string trouble = engine::why_nothing_can_be_stored(statistics);
    const bool all_empty =
        statistics.entries == 0 &&
        std::ranges::all_of(statistics.layers, [](const auto& layer) { return layer.entries == 0; });
    if (all_empty && !trouble.empty()) throw CacheError(trouble, statistics.directory);
    return trouble;
}

bool is_there(const PrewarmedKernel& kernel) {
    return kernel.state == PrewarmState::hit || kernel.state == PrewarmState::remote ||
           kernel.state == PrewarmState::compiled || kernel.state == PrewarmState::waited;
}

// Which directory or bundle has each kernel now.
void find_directories(const engine::RuntimeImpl& runtime, std::vector<PrewarmedKernel>& kernels) {
    for (PrewarmedKernel& kernel : kernels) {
        const auto key = is_there(kernel) ? cache::Digest::parse(kernel.key) : std::nullopt;
        if (!key) continue;
        const auto found = runtime.cubins.store().candidates(*key);
        if (!found.empty()) kernel.directory = runtime.settings.cache_dirs[found.front().layer];
    }
}

}  // namespace

std::string engine::why_nothing_can_be_stored(const cache::Statistics& statistics) {
    if (statistics.writable) return {};
    return "prewarm cannot write to the cache directory " + statistics.directory + ": " +
           statistics.not_writable_because;
}

PrewarmReport engine::prewarm(engine::RuntimeImpl& runtime, std::span<const AttentionSpec> specs,
                              std::span<const int> sms, const PrewarmOptions& options) {
    const Clock::time_point start = Clock::now();
    if (options.jobs < 0)
        throw InvalidRequest("jobs", std::to_string(options.jobs),
                             "a number from 1, or 0 for the number of cores");
    if (options.push) runtime.cubins.remotes().require_pushable();
    const std::string trouble = why_not_writable(runtime.cubins);
    PrewarmReport report;
    Prewarmer prewarmer(runtime.cubins,
                        engine::needed_kernels(specs, sms, runtime.tuning, report.unsupported), options);
    prewarmer.require_means(trouble);
    int jobs = options.jobs > 0 ? options.jobs : runtime.settings.compile_threads;
    // Who waits for a server takes no core, and no compile slot.
    if (!runtime.cubins.remotes().empty()) jobs = std::max(jobs, cache::HttpClient::kMaxConnections);
    prewarmer.run(jobs);
    report.pushed = prewarmer.pushed();
    report.kernels = std::move(prewarmer).results();
    report.total = static_cast<int>(report.kernels.size());
    const auto count = [&](PrewarmState state) {
        return static_cast<int>(
            std::count_if(report.kernels.begin(), report.kernels.end(),
                          [&](const PrewarmedKernel& kernel) { return kernel.state == state; }));
    };
    report.hits = count(PrewarmState::hit);
    report.compiled = count(PrewarmState::compiled);
    report.remote = count(PrewarmState::remote);
    report.waited = count(PrewarmState::waited);
    report.missing = count(PrewarmState::missing);
    report.failed = count(PrewarmState::failed);
    report.cancelled = count(PrewarmState::cancelled);
    find_directories(runtime, report.kernels);
    report.seconds = milliseconds_since(start) / 1000.0;
    return report;
}

PrewarmReport Runtime::prewarm(std::span<const AttentionSpec> specs, std::span<const int> sms,
                               const PrewarmOptions& options) const {
    return engine::prewarm(impl(), specs, sms, options);
}

PrewarmReport Runtime::prewarm(const Coverage& coverage, const std::vector<int>& sms,
                               const PrewarmOptions& options) const {
    const engine::NamedSpecs named = engine::named_specs(coverage);
    PrewarmReport report = engine::prewarm(impl(), named.specs, sms, options);
    engine::add_coverage(coverage, named, report);
    return report;
}

bool PrewarmReport::ok() const noexcept {
    return failed == 0 && missing == 0 && cancelled == 0 && unsupported.empty();
}

}  // namespace attnsmith
