#include "engine/cubins.hpp"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "compiler/cubin_info.hpp"
#include "engine/cubin_entry.hpp"

namespace attnsmith::engine {
namespace {

// Raised when the same fields come to mean other machine code: old entries are then left alone.
constexpr std::int64_t kKeyFormat = 1;

cache::Options store_options(const Settings& settings, std::shared_ptr<const Log> log) {
    cache::Options options;
    if (!settings.cache_dirs.empty()) {
        options.directory = settings.cache_dirs.front();
        options.read_only_layers.assign(settings.cache_dirs.begin() + 1, settings.cache_dirs.end());
    }
    options.warn = [log](std::string_view line) { (*log)(LogLevel::warn, "cache: {}", line); };
    return options;
}

// ptxas' report and the exported constant, checked against what was asked for.
planner::CompiledResources inspect(const planner::KernelConfig& kernel, const std::string& entry,
                                   const compiler::Compiled& compiled) {
    planner::CompiledResources resources;
    for (const compiler::EntryResources& report : compiler::parse_ptxas_log(compiled.log)) {
        if (report.entry != entry) continue;
        resources.registers_per_thread = report.registers_per_thread;
        resources.spill_bytes = report.spill_store_bytes + report.spill_load_bytes;
    }
    const auto info = compiler::CubinInfo::parse(compiled.cubin);
    std::optional<std::uint32_t> shared;
    if (info) shared = info->read_u32(compiler::kSharedBytesSymbol);
    if (!info || !info->has_entry(entry) || !shared) {
        throw CompileError(fmt::format("{}: NVRTC gave a cubin without {} and {}", kernel.name(), entry,
                                       compiler::kSharedBytesSymbol),
                           compiled.log, {}, {});
    }
    if (*shared != kernel.shared_bytes) {
        throw Error(fmt::format("{}: the kernel lays out {} bytes of shared memory, the plan {}",
                                kernel.name(), *shared, kernel.shared_bytes));
    }
    resources.shared_bytes = *shared;
    resources.cubin_bytes = static_cast<std::int64_t>(compiled.cubin.size());
    resources.compile_ms = compiled.milliseconds;
    return resources;
}

std::string refused_everywhere(const planner::KernelConfig& kernel, const std::string& reason) {
    return fmt::format(
        "{} was compiled for {}, but this driver does not take it: {}; update the driver, or use an NVRTC "
        "of a CUDA version that it knows (ATTNSMITH_NVRTC_PATH)",
        kernel.name(), kernel.target, reason);
}

}  // namespace

Cubins::Cubins(const Settings& settings, std::shared_ptr<const Log> log)
    : log_(std::move(log)),
      no_cache_because_(settings.no_cache_because),
      keep_source_dir_(settings.keep_source_dir),
      nvrtc_options_(settings.nvrtc),
      store_(store_options(settings, log_)),
      compile_slots_(settings.compile_threads) {}

std::shared_ptr<const compiler::Nvrtc> Cubins::nvrtc() {
    const std::lock_guard lock(nvrtc_mutex_);
    if (!nvrtc_) {
        nvrtc_ = compiler::Nvrtc::open(nvrtc_options_);
        (*log_)(LogLevel::info, "NVRTC {}.{} is {}", nvrtc_->version().major, nvrtc_->version().minor,
                nvrtc_->path());
    }
    return nvrtc_;
}

cache::Version Cubins::toolchain() {
    const auto version = cache::Version::parse(nvrtc()->toolchain());
    if (!version)
        throw Error(fmt::format("NVRTC calls itself {}, which is no version", nvrtc()->toolchain()));
    return *version;
}

KernelSource Cubins::source_of(const planner::KernelConfig& kernel) const {
    KernelSource source;
    source.kernel = kernel;
    source.unit = compiler::specialise(kernel, {.line_info = !keep_source_dir_.empty()});
    const compiler::Program& program = source.unit.program;
    cache::FieldHasher hasher;
    hasher.add("key format", kKeyFormat);
    hasher.add("target", program.target);
    for (const std::string& option : program.options) hasher.add("option", option);
    hasher.add("source", program.source);
    for (const compiler::Header& header : program.headers) {
        hasher.add("header name", header.name);
        hasher.add("header text", header.text);
    }
    source.key = hasher.digest();
    source.fields_json = hasher.fields_json();
    return source;
}

std::shared_ptr<const Cubin> Cubins::find(const KernelSource& source) const {
    return find_stored(source, [](const Cubin&) { return std::nullopt; });
}

std::shared_ptr<const Cubin> Cubins::load(const cache::Candidate& candidate) const {
    cache::Result<cache::Entry> entry = store_.load(candidate);
    if (!entry) return nullptr;
    auto cubin = from_entry(candidate, std::move(entry).value());
    if (!cubin)
        (*log_)(LogLevel::warn, "cache: {}: its metadata is not a kernel's; passed over", candidate.path);
    return cubin;
}

std::shared_ptr<const Cubin> Cubins::find_stored(const KernelSource& source, const Accept& accept) const {
    for (const cache::Candidate& candidate : store_.candidates(source.key)) {
        auto cubin = load(candidate);
        if (!cubin) continue;
        const auto refusal = accept(*cubin);
        if (!refusal) return cubin;
        (*log_)(LogLevel::info, "cache: {}: passed over: {}", candidate.path, *refusal);
    }
    return nullptr;
}

Obtained Cubins::obtain(const KernelSource& source, const Accept& accept) {
    {
        std::unique_lock lock(compiles_mutex_);
        const auto found = compiles_.find(source.key);
        if (found != compiles_.end() &&
            found->second.wait_for(std::chrono::seconds(0)) == std::future_status::ready) {
            const Compile compile = found->second;
            lock.unlock();
            auto cubin = compile.get();  // throws what the compile threw
            if (!accept(*cubin)) return {std::move(cubin), Origin::memory};
        }
    }
    if (auto cubin = find_stored(source, accept)) {
        (*log_)(LogLevel::debug, "{}: {} from the cache", source.kernel.name(), source.key.hex());
        return {std::move(cubin), Origin::disk};
    }
    return compile_once(source, accept);
}

Obtained Cubins::compile_once(const KernelSource& source, const Accept& accept) {
    std::promise<std::shared_ptr<const Cubin>> promise;
    Compile others;
    {
        const std::lock_guard lock(compiles_mutex_);
        const auto [at, first] = compiles_.try_emplace(source.key);
        if (first) {
            at->second = promise.get_future().share();
        } else {
            others = at->second;
        }
    }
    if (others.valid()) {
        auto cubin = others.get();
        if (const auto refusal = accept(*cubin))
            throw Unsupported(refused_everywhere(source.kernel, *refusal), {});
        return {std::move(cubin), Origin::waited};
    }
    try {
        Obtained obtained = compile_under_lock(source, accept);
        promise.set_value(obtained.cubin);
        return obtained;
    } catch (const LibraryMissing&) {
        // Not a property of the kernel: NVRTC may be installed while this process runs.
        promise.set_exception(std::current_exception());
        const std::lock_guard lock(compiles_mutex_);
        compiles_.erase(source.key);
        throw;
    } catch (...) {
        promise.set_exception(std::current_exception());
        throw;
    }
}

Obtained Cubins::compile_under_lock(const KernelSource& source, const Accept& accept) {
    const cache::Lock lock = store_.lock(source.key);
    if (lock.state() == cache::LockState::timed_out) {
        (*log_)(LogLevel::warn,
                "cache: waited {:.0f} s for another process to compile {}; compiling it here too",
                std::chrono::duration<double>(lock.waited()).count(), source.kernel.name());
    }
    // Between the look before and this lock another process may have come and gone, whether it was waited for
    // or not.
    if (auto cubin = find_stored(source, accept)) return {std::move(cubin), Origin::waited};
    auto cubin = compile(source);
    if (const auto refusal = accept(*cubin))
        throw Unsupported(refused_everywhere(source.kernel, *refusal), {});
    return {std::move(cubin), Origin::compiled};
}

std::shared_ptr<const Cubin> Cubins::compile(const KernelSource& source) {
    const planner::KernelConfig& kernel = source.kernel;
    const auto library = nvrtc();
    keep_source(source);
    compile_slots_.acquire();
    compiler::Compiled compiled;
    try {
        compiled = library->compile(source.unit.program);
    } catch (...) {
        compile_slots_.release();
        throw;
    }
    compile_slots_.release();
    auto cubin = std::make_shared<Cubin>();
    cubin->key = source.key;
    cubin->toolchain = toolchain();
    cubin->entry = source.unit.entry;
    cubin->resources = inspect(kernel, source.unit.entry, compiled);
    cubin->bytes = std::move(compiled.cubin);
    (*log_)(LogLevel::info, "compiled {} for {} in {:.0f} ms, {} registers", kernel.name(), kernel.target,
            cubin->resources.compile_ms, cubin->resources.registers_per_thread);
    if (cubin->resources.spill_bytes > 0) {
        (*log_)(LogLevel::warn, "{} for {} spills {} bytes", kernel.name(), kernel.target,
                cubin->resources.spill_bytes);
    }
    publish(source, *cubin, compiled.log);
    return cubin;
}

void Cubins::publish(const KernelSource& source, const Cubin& cubin, const std::string& log) const {
    if (store_.options().directory.empty()) return;
    const cache::Status status = store_.publish(source.key, cubin.toolchain, to_entry(source, cubin, log));
    if (!status.ok())
        (*log_)(LogLevel::debug, "cache: {} was not stored: {}", source.kernel.name(), status.to_string());
}

// Best effort: a debugging aid must not fail a launch.
void Cubins::keep_source(const KernelSource& source) const {
    if (keep_source_dir_.empty()) return;
    std::error_code ignored;
    std::filesystem::create_directories(keep_source_dir_, ignored);
    const std::string path = fmt::format("{}/{}.cu", keep_source_dir_, source.key.hex());
    std::ofstream file(path);
    file << source.unit.program.source;
    if (!file.flush()) (*log_)(LogLevel::warn, "cannot keep the source in {}", path);
}

}  // namespace attnsmith::engine
