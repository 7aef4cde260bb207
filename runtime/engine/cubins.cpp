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

cache::Options logging_store(const Settings& settings, std::shared_ptr<const Log> log) {
    cache::Options options = store_options(settings);
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

CompileSlots::Slot::Slot(CompileSlots& slots) : slots_(slots) {
    std::unique_lock lock(slots_.mutex_);
    slots_.changed_.wait(lock, [&] { return slots_.free_ > 0; });
    --slots_.free_;
}

CompileSlots::Slot::~Slot() {
    {
        const std::lock_guard lock(slots_.mutex_);
        ++slots_.free_;
    }
    slots_.changed_.notify_one();
}

bool Cubins::is_ready(const Compile& compile) {
    return compile.valid() && compile.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

// Null where it failed.
std::shared_ptr<const Cubin> Cubins::cubin_of(const Compile& compile) {
    try {
        return compile.get().cubin;
    } catch (...) {
        return nullptr;
    }
}

// Null where it failed for a reason that need not be everyone's.
std::shared_ptr<const Cubin> Cubins::wait_for(const Compile& compile) {
    try {
        return compile.get().cubin;
    } catch (const CompileError&) {
        throw;
    } catch (...) {
        return nullptr;
    }
}

Cubins::Cubins(const Settings& settings, std::shared_ptr<const Log> log)
    : log_(std::move(log)),
      no_cache_because_(settings.no_cache_because),
      keep_source_dir_(settings.keep_source_dir),
      nvrtc_options_(settings.nvrtc),
      store_(logging_store(settings, log_)),
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
    hasher.add("entry format", std::int64_t{cache::kEntryFormat});
    hasher.add("target", program.target);
    for (const std::string& option : program.options) hasher.add("option", option);
    // They are in the source, too: here they tell people what differs between two kernels.
    for (const auto& [name, value] : source.unit.constants) hasher.add("constant " + name, value);
    hasher.add("source", program.source);
    for (const compiler::Header& header : program.headers)
        hasher.add(fmt::format("header {}", header.name), header.text);
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
    for (;;) {
        const Compile known = find_compile(source.key);
        std::optional<std::string> refusal;
        if (is_ready(known)) {
            const auto cubin = cubin_of(known);
            if (cubin && !(refusal = accept(*cubin))) return {cubin, Origin::memory};
        }
        if (auto cubin = find_stored(source, accept)) {
            (*log_)(LogLevel::debug, "{}: {} from the cache", source.kernel.name(), source.key.hex());
            return {std::move(cubin), Origin::disk};
        }
        if (is_ready(known)) {
            if (known.get().origin == Origin::compiled)  // throws the CompileError that is remembered
                throw Unsupported(refused_everywhere(source.kernel, refusal.value_or("")), {});
            forget(source.key);  // it came from another process's older toolchain, and is gone from the disk
        } else if (known.valid()) {
            if (auto cubin = wait_for(known); cubin && !accept(*cubin)) return {cubin, Origin::waited};
        } else if (auto obtained = compile_first(source, accept)) {
            return *std::move(obtained);
        }
    }
}

Cubins::Compile Cubins::find_compile(const cache::Digest& key) const {
    const std::lock_guard lock(compiles_mutex_);
    const auto found = compiles_.find(key);
    return found == compiles_.end() ? Compile{} : found->second;
}

void Cubins::forget(const cache::Digest& key) {
    const std::lock_guard lock(compiles_mutex_);
    compiles_.erase(key);
}

// Nullopt: another thread was first.
std::optional<Obtained> Cubins::compile_first(const KernelSource& source, const Accept& accept) {
    std::promise<Compiled> promise;
    {
        const std::lock_guard lock(compiles_mutex_);
        if (!compiles_.try_emplace(source.key, promise.get_future().share()).second) return std::nullopt;
    }
    Compiled compiled;
    try {
        compiled = compile_once(source, accept);
        promise.set_value(compiled);
    } catch (const CompileError&) {
        promise.set_exception(std::current_exception());
        throw;
    } catch (...) {
        forget(source.key);  // before those who wait are woken, so that they do not find it again
        promise.set_exception(std::current_exception());
        throw;
    }
    if (compiled.origin == Origin::compiled) {
        if (const auto refusal = accept(*compiled.cubin))
            throw Unsupported(refused_everywhere(source.kernel, *refusal), {});
    }
    return Obtained{compiled.cubin, compiled.origin};
}

// Over all processes. Whoever waits for another process's compile holds no slot, so that others compile.
Cubins::Compiled Cubins::compile_once(const KernelSource& source, const Accept& accept) {
    std::optional<CompileSlots::Slot> slot(std::in_place, compile_slots_);
    std::optional<cache::Lock> lock;
    if (!store_.options().directory.empty()) {
        lock = store_.try_lock(source.key);
        if (lock->state() == cache::LockState::timed_out) {
            slot.reset();
            lock = store_.lock(source.key);
        }
        if (lock->state() == cache::LockState::timed_out) {
            (*log_)(LogLevel::warn,
                    "cache: waited {:.0f} s for another process to compile {}; compiling it here too",
                    std::chrono::duration<double>(lock->waited()).count(), source.kernel.name());
        }
        // Between the look before and the lock another process may have come and gone.
        if (auto cubin = find_stored(source, accept)) return {std::move(cubin), Origin::waited};
    }
    if (!slot) slot.emplace(compile_slots_);
    return {compile(source), Origin::compiled};
}

std::shared_ptr<const Cubin> Cubins::compile(const KernelSource& source) {
    const planner::KernelConfig& kernel = source.kernel;
    const auto library = nvrtc();
    keep_source(source);
    compiler::Compiled compiled = library->compile(source.unit.program);
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

bool Cubins::ensure_stored(const KernelSource& source, const Cubin& cubin) const {
    const auto is_stored = [&] {
        const auto candidates = store_.candidates(source.key);
        return std::any_of(candidates.begin(), candidates.end(), [&](const cache::Candidate& candidate) {
            return candidate.version == cubin.toolchain;
        });
    };
    if (is_stored()) return true;
    publish(source, cubin, {});  // the compile's log is not kept that long
    return is_stored();
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
