// NVRTC, opened at run time: CUDA C++ in, machine code out. Needs no GPU and no driver.
//
// Thread safety: an Nvrtc may be used from any number of threads; compiles run side by side. Reads no
// environment; NVRTC itself does (compiler/environment.hpp). Everything that enters NVRTC throws Error in a
// child that was forked while a thread was inside it. Signals stay the program's (compiler/signals.hpp).
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "attnsmith/error.hpp"
#include "compiler/nvrtc_candidates.hpp"
#include "compiler/nvrtc_version.hpp"

namespace attnsmith::compiler {

// A file that the program can #include, by exactly this name.
struct Header {
    std::string_view name;
    std::string_view text;
};

struct Program {
    std::string name;  // of the translation unit, in messages
    std::string source;
    std::vector<Header> headers;
    std::string target;  // "sm_90a": given to NVRTC as --gpu-architecture
    // Everything else that decides the machine code. compile() adds only options that do not
    // (compile_options()).
    std::vector<std::string> options;
};

struct Compiled {
    std::vector<std::byte> cubin;
    std::string log;          // warnings, and what ptxas said under --ptxas-options=-v
    double milliseconds = 0;  // wall time in NVRTC
};

class Nvrtc {
  public:
    // Throws LibraryMissing, with all that was tried and why each was refused.
    static std::shared_ptr<const Nvrtc> open(const NvrtcOptions& options = {});
    ~Nvrtc();
    Nvrtc(const Nvrtc&) = delete;
    Nvrtc& operator=(const Nvrtc&) = delete;

    const std::string& path() const noexcept;  // of the file, as the loader resolved it
    NvrtcVersion version() const noexcept;
    const std::vector<int>& supported_archs() const noexcept;  // 90 for sm_90 and its variants, ascending

    // major.minor.build, e.g. "13.0.88". The first call compiles an empty program to learn the build (20 ms).
    const std::string& toolchain() const;

    // Throws Unsupported (this NVRTC does not know the target), CompileError (anything that NVRTC says of the
    // program).
    Compiled compile(const Program& program) const;

    // What compile() gives to NVRTC for this program, its own additions included.
    std::vector<std::string> compile_options(const Program& program) const;

  private:
    struct Impl;
    explicit Nvrtc(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
};

// The lines of a source with their numbers, as CompileError shows them.
std::string number_lines(std::string_view source);

}  // namespace attnsmith::compiler
