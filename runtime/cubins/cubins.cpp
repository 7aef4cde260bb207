#include "cubins/cubins.hpp"
#include "cubins/store_options.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>

#include "cubins/cubin_entry.hpp"
#include "cubins/missing_kernel.hpp"
#include "problem/error_details.hpp"

namespace attnsmith::engine {
namespace {

cache::Options logging_store(const Settings& settings, std::shared_ptr<const Log> log) {
    cache::Options options = store_options(settings);
    options.warn = [log](std::string_view line) { (*log)(LogLevel::warn, "cache: {}", line); };
    return options;
}

std::string refused_everywhere(const families::KernelConfig& kernel, const std::string& reason) {
    return fmt::format(
        "{} was compiled for {}, but this driver does not take it: {}; update the driver, or use an NVRTC "
        "of a CUDA version that it knows (ATTNSMITH_NVRTC_PATH)",
        kernel.name(), kernel.target, reason);
}

// Ends a flight whose kernel would have to be compiled, where none may be.
struct NotCompiled {};

[[noreturn]] void throw_missing(const KernelSource& source, Remotes::Fetched fetched) {
    if (fetched.is_nowhere) throw CubinMissing(source.key, std::move(fetched.said), false);
    throw CacheError(fmt::format("it could not be fetched from {}", fmt::join(fetched.said, "; ")));
}

}  // namespace

// What single flight keeps of a key. An error is a fact of the source, and remembered as a cubin is; it is
// never stored.
struct Cubins::Compiled {
    std::shared_ptr<const Cubin> cubin;  // null where compiling failed
    std::exception_ptr error;
};

Cubins::Cubins(const Settings& settings, std::shared_ptr<const Log> log)
    : log_(std::move(log)),
      no_cache_because_(settings.no_cache_because),
      with_source_(settings.cache_source),
      exact_toolchain_(settings.exact_toolchain),
      push_compiled_(settings.push_compiled),
      compiler_(settings, log_),
      store_(logging_store(settings, log_)),
      remotes_(settings, store_, log_),
      flights_(store_, settings.compile_threads) {}

std::shared_ptr<const Cubin> Cubins::find(const KernelSource& source) const {
    return find(
        source, [](const Cubin&) { return std::nullopt; }, [](const cache::Candidate&, const std::string&) {},
        Purpose::look);
}

Cubins::Loaded Cubins::load(const KernelSource& source, const cache::Candidate& candidate,
                            Purpose purpose) const {
    cache::Result<cache::Entry> entry =
        purpose == Purpose::use ? store_.load(candidate) : store_.look_at(candidate);
    if (!entry) return {nullptr, entry.status().message};
    ReadEntry read = read_for(source, candidate, std::move(entry).value());
    if (read.cubin) return {std::move(read.cubin), {}};
    // It stays there, being whole, and is met at each look; its place is taken by what is compiled instead.
    const LogLevel level = told_of_unusable_.exchange(true) ? LogLevel::debug : LogLevel::warn;
    (*log_)(level, "cache: {}: {}; passed over", candidate.path, read.fault);
    return {nullptr, std::move(read.fault)};
}

std::shared_ptr<const Cubin> Cubins::find(const KernelSource& source, const Accept& accept) const {
    return find(
        source, accept, [](const cache::Candidate&, const std::string&) {}, Purpose::use);
}

std::shared_ptr<const Cubin> Cubins::find(const KernelSource& source, const Accept& accept,
                                          const PassedOver& passed_over, Purpose purpose) const {
    const cache::Version only = exact_toolchain_ ? compiler_.toolchain() : cache::Version{};
    for (const cache::Candidate& candidate : store_.candidates(source.key)) {
        if (exact_toolchain_ && candidate.version != only) continue;
        Loaded loaded;
        try {
            loaded = load(source, candidate, purpose);
        } catch (const std::bad_alloc&) {
            (*log_)(LogLevel::debug, "cache: {}: there is no memory for it", candidate.path);
            loaded.fault = "there is no memory for it";
        }
        if (!loaded.cubin) {
            passed_over(candidate, loaded.fault);
            continue;
        }
        const auto refusal = accept(*loaded.cubin);
        if (!refusal) return std::move(loaded.cubin);
        (*log_)(LogLevel::info, "cache: {}: passed over: {}", candidate.path, *refusal);
        passed_over(candidate, *refusal);
    }
    return nullptr;
}

Cubins::Taken Cubins::take_stored(const KernelSource& source, const Accept& accept) const {
    Taken taken;
    const PassedOver note = [&](const cache::Candidate& candidate, const std::string& reason) {
        taken.passed_over.push_back(fmt::format("{}: {}", candidate.path, reason));
    };
    taken.cubin = find(source, accept, note, Purpose::use);
    if (taken.cubin) {
        store_.count(cache::Event::hit);
        return taken;
    }
    store_.count(cache::Event::miss);
    Remotes::Fetched fetched = remotes_.fetch(source, accept, only_toolchain(), false, {});
    taken.cubin = std::move(fetched.cubin);
    if (taken.cubin) return taken;
    store_.count(cache::Event::miss_error);
    std::ranges::move(fetched.said, std::back_inserter(taken.passed_over));
    std::ranges::copy(remotes_.passed_over(), std::back_inserter(taken.passed_over));
    for (const cache::Status& layer : store_.passed_over()) taken.passed_over.push_back(layer.to_string());
    return taken;
}

std::optional<cache::Version> Cubins::only_toolchain() const {
    if (!exact_toolchain_) return std::nullopt;
    return compiler_.toolchain();
}

Obtained Cubins::obtain(const KernelSource& source, const Accept& accept, const ObtainOptions& options) {
    const std::stop_token& stop = options.stop;
    std::string refusal, trouble;
    bool stored = false;
    const bool compiles = options.on_miss == OnMiss::compile;
    std::optional<Remotes::Fetched> fetched;
    const auto fetch = [&] {
        fetched = remotes_.fetch(source, accept, only_toolchain(), compiles && compiler_.is_there(), stop);
        if (!fetched->cubin) return;
        trouble = std::move(fetched->not_stored_because);
        stored = trouble.empty();
    };
    const auto compiled_of = [](const cache::SingleFlight::Value& value) {
        return std::static_pointer_cast<const Compiled>(value);
    };
    cache::SingleFlight::Job job;
    job.accept = [&](const cache::SingleFlight::Value& value) {
        const auto compiled = compiled_of(value);
        if (!compiled->cubin) return false;
        const auto reason = accept(*compiled->cubin);
        if (reason) refusal = *reason;
        return !reason;
    };
    job.look = [&]() -> cache::SingleFlight::Value {
        auto cubin = find(source, accept);
        return cubin ? std::make_shared<const Compiled>(Compiled{std::move(cubin), {}}) : nullptr;
    };
    if (!remotes_.empty()) {
        job.fetch = [&]() -> cache::SingleFlight::Value {
            fetch();
            if (!fetched->cubin) return nullptr;
            return std::make_shared<const Compiled>(Compiled{fetched->cubin, {}});
        };
    }
    job.make = [&]() -> cache::SingleFlight::Value {
        if (compiles) return std::make_shared<const Compiled>(compile(source));
        throw NotCompiled();
    };
    job.publish = [&](const cache::SingleFlight::Value& value) {
        const auto compiled = compiled_of(value);
        if (!compiled->cubin) return;
        trouble = publish(source, *compiled->cubin);
        stored = trouble.empty();
    };
    job.cancelled = options.cancelled;
    job.urgency = options.urgency;

    cache::SingleFlight::Obtained obtained;
    try {
        obtained = flights_.obtain(source.key, job);
    } catch (const LibraryMissing& missing) {
        if (!fetched || fetched->said.empty()) throw;
        throw problem::ErrorDetails::and_instead(
            missing, fmt::format("no remote has the kernel: {}", fmt::join(fetched->said, "; ")));
    } catch (const NotCompiled&) {
        // Another process was at it, and went without the kernel: it may not have come to ask.
        if (!fetched) fetch();
        if (fetched->cubin) return {fetched->cubin, Origin::fetched, stored, std::move(trouble)};
        if (stop.stop_requested()) return {nullptr, Origin::cancelled};
        store_.count(cache::Event::miss_error);
        throw_missing(source, *std::move(fetched));
    }
    if (obtained.origin == Origin::cancelled) return {nullptr, obtained.origin};
    const auto compiled = compiled_of(obtained.value);
    if (compiled->error) std::rethrow_exception(compiled->error);
    if (!obtained.accepted) throw Unsupported(refused_everywhere(source.kernel, refusal), {});
    // After whoever waits for the kernel has it, and outside of its lock.
    const bool pushed = push_compiled_ && obtained.origin == Origin::made &&
                        remotes_.offer(source.key, compiled->cubin->toolchain,
                                       to_entry(source, *compiled->cubin, with_source_), stop);
    return {compiled->cubin, obtained.origin, stored || obtained.origin == Origin::disk, std::move(trouble),
            pushed};
}

bool Cubins::push(const KernelSource& source, const Cubin& cubin, const std::stop_token& stop) const {
    return remotes_.push(source.key, cubin.toolchain, to_entry(source, cubin, with_source_), stop);
}

Cubins::Compiled Cubins::compile(const KernelSource& source) const {
    try {
        return {compiler_.compile(source), {}};
    } catch (const CompileError&) {
        return {nullptr, std::current_exception()};
    }
}

// Read and not only listed: what is broken and cannot be replaced is not stored.
bool Cubins::is_stored(const KernelSource& source, const cache::Version& toolchain) const {
    const auto candidates = store_.candidates(source.key);
    return std::any_of(candidates.begin(), candidates.end(), [&](const cache::Candidate& candidate) {
        return candidate.version == toolchain && load(source, candidate, Purpose::use).cubin != nullptr;
    });
}

std::string Cubins::ensure_stored(const KernelSource& source, const Obtained& obtained) const {
    constexpr const char* kGone = "it was there and is no more";
    if (obtained.stored) return {};
    flights_.settle(source.key);
    const auto is_there = [&] { return is_stored(source, obtained.cubin->toolchain); };
    if (is_there()) return {};
    const bool was_tried = obtained.origin == Origin::made || obtained.origin == Origin::fetched;
    const std::string trouble = was_tried ? obtained.not_stored_because : publish(source, *obtained.cubin);
    if (!was_tried && is_there()) return {};
    return trouble.empty() ? kGone : trouble;
}

// Best effort: the kernel is there all the same.
std::string Cubins::publish(const KernelSource& source, const Cubin& cubin) const {
    if (store_.options().directory.empty()) return "there is no cache directory";
    try {
        const cache::Status status =
            store_.publish(source.key, cubin.toolchain, to_entry(source, cubin, with_source_));
        if (status.ok()) return {};
        (*log_)(LogLevel::debug, "cache: {} was not stored: {}", source.kernel.name(), status.to_string());
        return status.to_string();
    } catch (const std::exception& error) {
        return error.what();  // no memory, say
    }
}

}  // namespace attnsmith::engine
