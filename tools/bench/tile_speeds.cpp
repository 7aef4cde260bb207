#include "bench/tile_speeds.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <nlohmann/json.hpp>
#include <thread>

#include "bench/attention_inputs.hpp"
#include "bench/event_timer.hpp"
#include "bench/statistics.hpp"
#include "engine/runtime_impl.hpp"
#include "families/attention_family.hpp"
#include "families/registry/registry.hpp"
#include "planner/split.hpp"
#include "problem/json_text.hpp"

namespace attnsmith::bench {
namespace {

using families::KernelConfig;

constexpr double kRoundMs = 10;  // of one kernel
constexpr int kMostLaunches = 200;
constexpr std::size_t kFinalists = 3;
constexpr int kLeastKeys = 64;  // shorter tiles never came first
constexpr int kQuickKeyStep = 32;
struct Rounds {
    int least, most;
};
constexpr Rounds kUsualRounds = {3, 7}, kQuickRounds = {3, 3};

class Bench {
  public:
    Bench(Runtime& runtime, const problem::Problem& problem, const TileSpeedOptions& options)
        : runtime_(runtime),
          options_(options),
          ordinal_(engine::impl_of(runtime).ordinal_of(kCurrentDevice)),
          plan_(planner::make_plan(problem, engine::impl_of(runtime).traits(ordinal_),
                                   engine::impl_of(runtime).tuning)),
          inputs_(runtime, problem, options.stop),
          flops_(attention_flops(problem)),
          timer_(engine::impl_of(runtime).driver()) {}

    const planner::Plan& plan() const { return plan_; }

    // In any order.
    std::vector<TileSpeed> measure(const std::vector<KernelConfig>& kernels) {
        std::vector<Contender> contenders = load(kernels);
        for (Contender& one : contenders) warm_up(one);
        const auto [least, most] = options_.quick ? kQuickRounds : kUsualRounds;
        for (int round = 0; round < most && !options_.stop.stop_requested(); ++round) {
            if (round >= least && std::chrono::steady_clock::now() > options_.deadline) break;
            for (Contender& one : contenders) {
                if (!one.calls.empty()) one.ms.push_back(time(one, one.launches));
            }
        }
        std::vector<TileSpeed> speeds;
        for (Contender& one : contenders) {
            if (!one.ms.empty()) one.speed.tflops = flops_ / (median(one.ms) * 1e-3) / 1e12;
            speeds.push_back(std::move(one.speed));
        }
        return speeds;
    }

  private:
    struct Contender {
        TileSpeed speed;
        std::vector<Call> calls;  // none of one that failed
        int launches = 1;         // of one round
        std::vector<double> ms;
    };

    // As planning divides keys where all rows are of one tile, as decode's are.
    planner::Split split_for(const KernelConfig& kernel) const {
        const planner::Contender contender(kernel, plan_.device);
        return contender.takes_shares ? planner::shares_of(contender, plan_.device.sm_count)
                                      : planner::Split{};
    }

    // By as many threads as may compile at a time.
    std::vector<Contender> load(const std::vector<KernelConfig>& kernels) {
        std::vector<Contender> contenders(kernels.size());
        std::vector<Kernel> loaded(kernels.size());
        std::atomic<std::size_t> next = 0;
        const auto work = [&] {
            for (std::size_t i; (i = next.fetch_add(1)) < kernels.size();) {
                contenders[i].speed.kernel = kernels[i];
                if (options_.stop.stop_requested()) continue;
                try {
                    planner::Plan plan = planner::with_attention(plan_, kernels[i], split_for(kernels[i]),
                                                                 engine::impl_of(runtime_).tuning);
                    loaded[i] = engine::impl_of(runtime_).load(std::move(plan), ordinal_);
                } catch (const Error& error) {
                    contenders[i].speed.failure = error.what();
                }
            }
        };
        {
            std::vector<std::jthread> workers;
            const auto threads = static_cast<std::size_t>(engine::impl_of(runtime_).settings.compile_threads);
            try {
                for (std::size_t i = 1; i < std::min(threads, kernels.size()); ++i)
                    workers.emplace_back(work);
            } catch (const std::system_error&) {
                // No more threads to be had: those that there are do it.
            }
            work();
        }
        for (std::size_t i = 0; i < kernels.size(); ++i) {
            if (!loaded[i]) continue;
            contenders[i].calls = inputs_.bind(loaded[i]);
            const auto kernel = problem::parse_json(loaded[i].plan_json()).value().at("kernels").at(0);
            contenders[i].speed.toolchain = kernel.at("cache").at("toolchain");
            contenders[i].speed.spill_bytes = kernel.at("resources").at("compiled").at("spill_bytes");
        }
        return contenders;
    }

    void warm_up(Contender& one) {
        if (one.calls.empty() || options_.stop.stop_requested()) return;
        (void)time(one, 1);
        const double ms = time(one, 2);
        one.launches = static_cast<int>(std::clamp(kRoundMs / std::max(ms, 1e-6), 1.0, 1.0 * kMostLaunches));
    }

    // Milliseconds of one launch. A launch that fails leaves the context unfit for any other.
    double time(const Contender& one, int launches) try {
        const double ms = timer_.ms([&](Stream stream) {
            for (int i = 0; i < launches; ++i) one.calls[next_set_++ % one.calls.size()].launch(stream);
        });
        return ms / launches;
    } catch (const DriverError& error) {
        throw Error(fmt::format("{}: {}", one.speed.kernel.name(), error.what()));
    }

    Runtime& runtime_;
    const TileSpeedOptions& options_;
    int ordinal_;
    planner::Plan plan_;
    AttentionInputs inputs_;
    double flops_;
    EventTimer timer_;
    std::size_t next_set_ = 0;
};

bool same_tile(const KernelConfig& a, const KernelConfig& b) {
    return a.tile_q() == b.tile_q() && a.tile_kv() == b.tile_kv();
}

// Those of the first heat.
std::vector<KernelConfig> entrants(const std::vector<KernelConfig>& candidates, bool quick) {
    int stages = candidates.front().stages();
    for (const KernelConfig& kernel : candidates) stages = std::min(stages, kernel.stages());
    std::vector<KernelConfig> chosen;
    for (const KernelConfig& kernel : candidates) {
        const bool passed_over =
            kernel.tile_kv() < kLeastKeys || (quick && kernel.tile_kv() % kQuickKeyStep != 0);
        if (kernel.stages() == stages && !passed_over) chosen.push_back(kernel);
    }
    return chosen.empty() ? candidates : chosen;
}

void sort_best_first(std::vector<TileSpeed>& speeds) {
    std::ranges::stable_sort(speeds, std::greater<>(), &TileSpeed::tflops);
}

// Of decode's tiles the best and what is as fast come in the order of the CTAs that an SM holds: lengths that
// differ have many starts of tiles, which other CTAs fill.
void prefer_many_ctas(std::vector<TileSpeed>& speeds) {
    constexpr double kAsFast = 0.98;
    const auto end = std::ranges::find_if(speeds, [&](const TileSpeed& one) {
        return !one.failure.empty() || one.tflops < speeds.front().tflops * kAsFast;
    });
    std::stable_sort(speeds.begin(), end, [](const TileSpeed& a, const TileSpeed& b) {
        return a.kernel.ctas_per_sm > b.kernel.ctas_per_sm;
    });
}

std::vector<KernelConfig> tunable_kernels(const problem::Problem& problem, const families::SmTraits& sm) {
    std::vector<KernelConfig> kernels;
    for (const families::Family* family : families::all_families()) {
        const families::AttentionFamily* const attention = family->attention();
        if (attention != nullptr && attention->tuned_phase() == phase_of(problem))
            std::ranges::move(attention->tunable(problem.spec, sm), std::back_inserter(kernels));
    }
    return kernels;
}

}  // namespace

families::Phase phase_of(const problem::Problem& problem) {
    return families::phase_of(problem.sizes.q_len * problem.group_size());
}

std::optional<std::string> tuning_refusal(const problem::Problem& problem, const families::SmTraits& sm) {
    std::string reasons;
    for (const families::Family* family : families::all_families()) {
        const families::AttentionFamily* const attention = family->attention();
        if (attention == nullptr || attention->tuned_phase() != phase_of(problem)) continue;
        auto reason = family->refusal(problem.spec, sm);
        if (!reason && attention->tunable(problem.spec, sm).empty())
            reason =
                fmt::format("the tiles of {} are fixed for such a request", to_string(family->backend()));
        if (!reason) return std::nullopt;
        reasons += fmt::format("{}{}", reasons.empty() ? "" : "; ", *reason);
    }
    return reasons;
}

std::vector<TileSpeed> measure_tiles(Runtime& runtime, const problem::Problem& problem,
                                     const TileSpeedOptions& options) {
    Bench bench(runtime, problem, options);
    if (options.stop.stop_requested()) return {};  // before the inputs were filled
    const std::vector<KernelConfig> candidates = tunable_kernels(problem, bench.plan().device);
    const bool decodes = phase_of(problem) == families::Phase::decode;
    std::vector<TileSpeed> speeds = bench.measure(decodes ? candidates : entrants(candidates, options.quick));
    sort_best_first(speeds);
    if (decodes) prefer_many_ctas(speeds);
    if (decodes || options.quick || options.stop.stop_requested()) return speeds;

    std::vector<KernelConfig> finalists;
    for (std::size_t i = 0; i < std::min(kFinalists, speeds.size()) && speeds[i].failure.empty(); ++i) {
        for (const KernelConfig& kernel : candidates)
            if (same_tile(kernel, speeds[i].kernel)) finalists.push_back(kernel);
    }
    std::vector<TileSpeed> best = bench.measure(finalists);
    sort_best_first(best);
    std::erase_if(speeds, [&](const TileSpeed& one) {
        return std::ranges::find(finalists, one.kernel) != finalists.end();
    });
    // What is in the final stays in front: the two heats were not run side by side.
    speeds.insert(speeds.begin(), best.begin(), best.end());
    std::ranges::stable_partition(speeds, [](const TileSpeed& one) { return one.failure.empty(); });
    return speeds;
}

}  // namespace attnsmith::bench
