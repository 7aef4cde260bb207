#include "engine/cubins/cubins.hpp"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "cache/files/size_signal.hpp"
#include "compiler/cubin_info.hpp"
#include "engine/cubins/cubin_entry.hpp"

namespace attnsmith::engine {
namespace {

// Raised when the same fields come to mean other machine code, or entries are written otherwise: old ones
// are then left alone.
constexpr std::int64_t kKeyFormat = 3;

cache::Options logging_store(const Settings& settings, std::shared_ptr<const Log> log) {
    cache::Options options = store_options(settings);
    options.warn = [log](std::string_view line) { (*log)(LogLevel::warn, "cache: {}", line); };
    return options;
}

planner::CompiledResources resources_of(const KernelSource& source, const compiler::Compiled& compiled) {
    planner::CompiledResources resources;
    for (const compiler::EntryResources& report : compiler::parse_ptxas_log(compiled.log)) {
        if (report.entry != source.unit.entry) continue;
        resources.registers_per_thread = report.registers_per_thread;
        resources.spill_bytes = report.spill_store_bytes + report.spill_load_bytes;
    }
    resources.shared_bytes = source.kernel.shared_bytes;  // what_is_wrong() compares the cubin's own
    resources.cubin_bytes = static_cast<std::int64_t>(compiled.cubin.size());
    resources.compile_ms = compiled.milliseconds;
    return resources;
}

std::string refused_everywhere(const families::KernelConfig& kernel, const std::string& reason) {
    return fmt::format(
        "{} was compiled for {}, but this driver does not take it: {}; update the driver, or use an NVRTC "
        "of a CUDA version that it knows (ATTNSMITH_NVRTC_PATH)",
        kernel.name(), kernel.target, reason);
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
      keep_source_dir_(settings.keep_source_dir),
      with_source_(settings.cache_source),
      exact_toolchain_(settings.exact_toolchain),
      nvrtc_options_(settings.nvrtc),
      store_(logging_store(settings, log_)),
      flights_(store_, settings.compile_threads) {}

std::shared_ptr<const compiler::Nvrtc> Cubins::nvrtc() const {
    Compiler& compiler = compiler_.get();
    const std::lock_guard lock(compiler.mutex);
    auto& nvrtc = compiler.nvrtc;
    if (!nvrtc) {
        nvrtc = compiler::Nvrtc::open(nvrtc_options_);
        (*log_)(LogLevel::info, "NVRTC {}.{} is {}", nvrtc->version().major, nvrtc->version().minor,
                nvrtc->path());
    }
    return nvrtc;
}

cache::Version Cubins::toolchain() const {
    const auto version = cache::Version::parse(nvrtc()->toolchain());
    if (!version)
        throw Error(fmt::format("NVRTC calls itself {}, which is no version", nvrtc()->toolchain()));
    return *version;
}

KernelSource Cubins::source_of(const families::KernelConfig& kernel) const {
    KernelSource source;
    source.kernel = kernel;
    source.unit = translation_unit(kernel, {.line_info = !keep_source_dir_.empty()});
    const compiler::Program& program = source.unit.program;
    cache::FieldHasher hasher;
    hasher.add("key format", kKeyFormat);
    hasher.add("entry format", std::int64_t{cache::kEntryFormat});
    hasher.add("target", program.target);
    for (const std::string& option : program.options) hasher.add("option", option);
    for (const auto& [name, value] : compiler_environment()) hasher.add("environment " + name, value);
    // They are in the source, too: here they tell people what differs between two kernels.
    for (const families::Constant& constant : kernel.constants.list())
        hasher.add(fmt::format("constant {}", constant.name), constant.text());
    hasher.add("source", program.source);
    for (const compiler::Header& header : program.headers)
        hasher.add(fmt::format("header {}", header.name), header.text);
    source.key = hasher.digest();
    source.fields_json = hasher.fields_json();
    return source;
}

std::shared_ptr<const Cubin> Cubins::find(const KernelSource& source) const {
    return find(source, [](const Cubin&) { return std::nullopt; });
}

Cubins::Loaded Cubins::load(const KernelSource& source, const cache::Candidate& candidate) const {
    cache::Result<cache::Entry> entry = store_.load(candidate);
    if (!entry) return {nullptr, entry.status().message};
    ReadEntry read = read_for(source, candidate, std::move(entry).value());
    if (read.cubin) return {std::move(read.cubin), {}};
    // It stays there, being whole, and is met at each look; its place is taken by what is compiled instead.
    const LogLevel level = told_of_unusable_.exchange(true) ? LogLevel::debug : LogLevel::warn;
    (*log_)(level, "cache: {}: {}; passed over", candidate.path, read.fault);
    return {nullptr, std::move(read.fault)};
}

std::shared_ptr<const Cubin> Cubins::find(const KernelSource& source, const Accept& accept) const {
    return find(source, accept, [](const cache::Candidate&, const std::string&) {});
}

std::shared_ptr<const Cubin> Cubins::find(const KernelSource& source, const Accept& accept,
                                          const PassedOver& passed_over) const {
    const cache::Version only = exact_toolchain_ ? toolchain() : cache::Version{};
    for (const cache::Candidate& candidate : store_.candidates(source.key)) {
        if (exact_toolchain_ && candidate.version != only) continue;
        Loaded loaded;
        try {
            loaded = load(source, candidate);
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
    taken.cubin = find(source, accept, [&](const cache::Candidate& candidate, const std::string& reason) {
        taken.passed_over.push_back(fmt::format("{}: {}", candidate.path, reason));
    });
    store_.count(taken.cubin ? cache::Event::hit : cache::Event::miss_error);
    if (taken.cubin) return taken;
    store_.count(cache::Event::miss);
    for (const cache::Status& layer : store_.passed_over()) taken.passed_over.push_back(layer.to_string());
    return taken;
}

Obtained Cubins::obtain(const KernelSource& source, const Accept& accept, const Cancelled& cancelled) {
    std::string refusal, trouble;
    bool stored = false;
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
    job.make = [&] { return std::make_shared<const Compiled>(compile(source)); };
    job.publish = [&](const cache::SingleFlight::Value& value) {
        const auto compiled = compiled_of(value);
        if (!compiled->cubin) return;
        trouble = publish(source, *compiled->cubin);
        stored = trouble.empty();
    };
    job.cancelled = cancelled;

    const auto obtained = flights_.obtain(source.key, job);
    if (obtained.origin == Origin::cancelled) return {nullptr, obtained.origin};
    const auto compiled = compiled_of(obtained.value);
    if (compiled->error) std::rethrow_exception(compiled->error);
    if (!obtained.accepted) throw Unsupported(refused_everywhere(source.kernel, refusal), {});
    return {compiled->cubin, obtained.origin, stored || obtained.origin == Origin::disk, std::move(trouble)};
}

Cubins::Compiled Cubins::compile(const KernelSource& source) const {
    const families::KernelConfig& kernel = source.kernel;
    const auto library = nvrtc();
    auto cubin = std::make_shared<Cubin>();
    cubin->key = source.key;
    cubin->toolchain = toolchain();  // before the work that would be lost with it
    cubin->entry = source.unit.entry;
    keep_source(source);
    try {
        compiler::Compiled compiled = library->compile(source.unit.program);
        cubin->resources = resources_of(source, compiled);
        cubin->bytes = std::move(compiled.cubin);
        if (const auto wrong = what_is_wrong(source, *cubin)) {
            throw CompileError(fmt::format("{}: of NVRTC's cubin, {}", kernel.name(), *wrong), compiled.log,
                               {}, {});
        }
        (*log_)(LogLevel::info, "compiled {} for {} in {:.0f} ms, {} registers", kernel.name(), kernel.target,
                cubin->resources.compile_ms, cubin->resources.registers_per_thread);
        if (cubin->resources.spill_bytes > 0) {
            (*log_)(LogLevel::warn, "{} for {} spills {} bytes", kernel.name(), kernel.target,
                    cubin->resources.spill_bytes);
        }
        cubin->log = std::move(compiled.log);
        return {std::move(cubin), {}};
    } catch (const CompileError&) {
        return {nullptr, std::current_exception()};
    }
}

// Read and not only listed: what is broken and cannot be replaced is not stored.
bool Cubins::is_stored(const KernelSource& source, const cache::Version& toolchain) const {
    const auto candidates = store_.candidates(source.key);
    return std::any_of(candidates.begin(), candidates.end(), [&](const cache::Candidate& candidate) {
        return candidate.version == toolchain && load(source, candidate).cubin != nullptr;
    });
}

std::string Cubins::ensure_stored(const KernelSource& source, const Obtained& obtained) const {
    constexpr const char* kGone = "it was there and is no more";
    if (obtained.stored) return {};
    flights_.settle(source.key);
    const auto is_there = [&] { return is_stored(source, obtained.cubin->toolchain); };
    if (is_there()) return {};
    const std::string trouble =
        obtained.origin == Origin::made ? obtained.not_stored_because : publish(source, *obtained.cubin);
    if (obtained.origin != Origin::made && is_there()) return {};
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

// Best effort: a debugging aid must not fail a launch.
void Cubins::keep_source(const KernelSource& source) const {
    if (keep_source_dir_.empty()) return;
    std::error_code ignored;
    std::filesystem::create_directories(keep_source_dir_, ignored);
    const std::string path = fmt::format("{}/{}.cu", keep_source_dir_, source.key.hex());
    const cache::SizeSignalHeld held;
    std::ofstream file(path);
    file << source.unit.program.source;
    if (!file.flush()) (*log_)(LogLevel::warn, "cannot keep the source in {}", path);
}

}  // namespace attnsmith::engine
