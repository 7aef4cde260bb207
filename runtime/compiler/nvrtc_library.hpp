// Finding and opening libnvrtc: used by nvrtc.cpp alone.
#pragma once

#include <nvrtc.h>

#include <memory>
#include <string>
#include <vector>

#include "compiler/nvrtc_candidates.hpp"
#include "compiler/nvrtc_version.hpp"

namespace attnsmith::compiler {

// X(field, symbol): all of them are there since NVRTC 11.2; 12.0 is what we ask for.
#define ATTNSMITH_NVRTC_ENTRIES(X)           \
    X(version, nvrtcVersion)                 \
    X(arch_count, nvrtcGetNumSupportedArchs) \
    X(archs, nvrtcGetSupportedArchs)         \
    X(error_string, nvrtcGetErrorString)     \
    X(create_program, nvrtcCreateProgram)    \
    X(destroy_program, nvrtcDestroyProgram)  \
    X(compile_program, nvrtcCompileProgram)  \
    X(log_size, nvrtcGetProgramLogSize)      \
    X(log, nvrtcGetProgramLog)               \
    X(cubin_size, nvrtcGetCUBINSize)         \
    X(cubin, nvrtcGetCUBIN)                  \
    X(ptx_size, nvrtcGetPTXSize)             \
    X(ptx, nvrtcGetPTX)

struct NvrtcLibrary {
#define ATTNSMITH_FIELD(field, symbol) decltype(&::symbol) field = nullptr;
    ATTNSMITH_NVRTC_ENTRIES(ATTNSMITH_FIELD)
#undef ATTNSMITH_FIELD

    std::unique_ptr<void, void (*)(void*)> handle{nullptr, nullptr};
    std::unique_ptr<void, void (*)(void*)> builtins{nullptr, nullptr};
    std::string path;  // of the file that the loader took
    NvrtcVersion found;
};

// The first candidate that serves. Throws LibraryMissing.
NvrtcLibrary open_nvrtc_library(const NvrtcOptions& options);

}  // namespace attnsmith::compiler
