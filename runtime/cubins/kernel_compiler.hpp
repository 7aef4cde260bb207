// Has NVRTC compile kernels.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "cache/files/per_process.hpp"
#include "compiler/nvrtc.hpp"
#include "cubins/cubin.hpp"
#include "cubins/kernel_source.hpp"
#include "settings/environment.hpp"
#include "settings/log.hpp"

namespace attnsmith::engine {

// Thread-safe, also right after fork.
class KernelCompiler {
  public:
    KernelCompiler(const Settings& settings, std::shared_ptr<const Log> log);

    // Opens NVRTC where it is not open yet. Throws LibraryMissing.
    std::shared_ptr<const compiler::Nvrtc> nvrtc() const;
    cache::Version toolchain() const;  // of that NVRTC
    bool is_there() const;             // whether nvrtc() would not throw

    // What the sources are to have that compile() is given.
    TranslationOptions source_options() const { return {.line_info = !keep_source_dir_.empty()}; }
    // Throws CompileError, which is a fact of the source, and what opening NVRTC throws.
    std::shared_ptr<const Cubin> compile(const KernelSource& source) const;

  private:
    void keep_source(const KernelSource& source) const;

    struct Opened {
        std::mutex mutex;
        std::shared_ptr<const compiler::Nvrtc> nvrtc;
    };

    std::shared_ptr<const Log> log_;
    std::string keep_source_dir_;
    compiler::NvrtcOptions nvrtc_options_;
    cache::PerProcess<Opened> opened_;
};

}  // namespace attnsmith::engine
