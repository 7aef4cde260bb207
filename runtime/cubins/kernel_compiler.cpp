#include "cubins/kernel_compiler.hpp"

#include <filesystem>
#include <fstream>

#include "cache/files/size_signal.hpp"
#include "compiler/cubin_info.hpp"
#include "cubins/cubin_entry.hpp"

namespace attnsmith::engine {
namespace {

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

}  // namespace

KernelCompiler::KernelCompiler(const Settings& settings, std::shared_ptr<const Log> log)
    : log_(std::move(log)), keep_source_dir_(settings.keep_source_dir), nvrtc_options_(settings.nvrtc) {}

std::shared_ptr<const compiler::Nvrtc> KernelCompiler::nvrtc() const {
    Opened& opened = opened_.get();
    const std::lock_guard lock(opened.mutex);
    auto& nvrtc = opened.nvrtc;
    if (!nvrtc) {
        nvrtc = compiler::Nvrtc::open(nvrtc_options_);
        (*log_)(LogLevel::info, "NVRTC {}.{} is {}", nvrtc->version().major, nvrtc->version().minor,
                nvrtc->path());
    }
    return nvrtc;
}

bool KernelCompiler::is_there() const {
    try {
        return nvrtc() != nullptr;
    } catch (const LibraryMissing&) {
        return false;
    }
}

cache::Version KernelCompiler::toolchain() const {
    const auto version = cache::Version::parse(nvrtc()->toolchain());
    if (!version)
        throw Error(fmt::format("NVRTC calls itself {}, which is no version", nvrtc()->toolchain()));
    return *version;
}

std::shared_ptr<const Cubin> KernelCompiler::compile(const KernelSource& source) const {
    const families::KernelConfig& kernel = source.kernel;
    const auto library = nvrtc();
    auto cubin = std::make_shared<Cubin>();
    cubin->key = source.key;
    cubin->toolchain = toolchain();  // before the work that would be lost with it
    cubin->entry = source.unit.entry;
    keep_source(source);
    compiler::Compiled compiled = library->compile(source.unit.program);
    cubin->resources = resources_of(source, compiled);
    cubin->bytes = std::move(compiled.cubin);
    if (const auto wrong = what_is_wrong(source, *cubin)) {
        throw CompileError(fmt::format("{}: of NVRTC's cubin, {}", kernel.name(), *wrong), compiled.log, {},
                           {});
    }
    (*log_)(LogLevel::info, "compiled {} for {} in {:.0f} ms, {} registers", kernel.name(), kernel.target,
            cubin->resources.compile_ms, cubin->resources.registers_per_thread);
    if (cubin->resources.spill_bytes > 0) {
        (*log_)(LogLevel::warn, "{} for {} spills {} bytes", kernel.name(), kernel.target,
                cubin->resources.spill_bytes);
    }
    cubin->log = std::move(compiled.log);
    return cubin;
}

// Best effort: a debugging aid must not fail a launch.
void KernelCompiler::keep_source(const KernelSource& source) const {
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
