// What NVRTC and the optimiser and assembler inside it read of the environment: every name that NVRTC 12.0 to
// 13.5 ask getenv() for in a compile, and what was found of each by compiling with it. (They ask for PWD and
// one called "bar" as well.)
#pragma once

namespace attnsmith::compiler {

struct EnvironmentVariable {
    const char* name;
    bool in_key;  // it may change machine code: where it is set, it is a field of a kernel's key
    const char* what;
};

inline constexpr EnvironmentVariable kNvrtcVariables[] = {
    {"NV_NVVM_VERSION", true, "which optimiser: nvvm70 and nvvm-latest give different machine code"},
    {"NVRTC_APPEND_FLAGS", true, "more options; NVRTC 13.0 reads it and passes nothing on"},
    {"NVRTCWIZ", true, "undocumented; changed nothing that was tried"},
    {"CAN_FINALIZE_DEBUG", true, "undocumented, read by the assembler; changed nothing that was tried"},
    {"FINALIZER_CUBIE", true, "undocumented, read by 13.5's assembler"},
    {"FINALIZER_USE_LEGACY_ELF_BUILDER", true, "undocumented, read by 13.5's assembler"},
    {"CUDA_CACHE_DISABLE", false, "NVRTC's own disk cache, which is switched off"},
    {"MAKEFLAGS", false, "threads that make would lend"},
    {"OPENSSL_ia32cap", false, "instructions of the host"},
    {"LLVM_IGNORED_ENV_VAR", false, "nothing, as it says"},
    {"DUMP_KNOBS_TO_FILE", false, "a file for the assembler's settings"},
    {"AS_SECURE_LOG_FILE", false, "a file for a log"},
    {"LLVM_OVERRIDE_PRODUCER", false, "a text in debugging information"},
    {"NVVM_IR_VER_CHK", false, "whether the version of intermediate code is checked"},
    {"LIBNVVM_DISABLE_CONCURRENT_API", false, "compiles one after the other"},
    {"NVRTC_DISABLE_CONCURRENT_NVVM", false, "compiles one after the other"},
    {"NVRTC_INTERNAL_GLOBAL_LOCK", false, "compiles one after the other"},
    {"NVRTC_DISABLE_PCH", false, "precompiled headers, which are not used"},
    {"NVRTC_PCH_HEAP_SIZE", false, "precompiled headers, which are not used"},
    {"EDG_BASE", false, "a folder of the front end; all headers are given to it"},
    {"EDG_MODULES_PATH", false, "a folder of C++ modules, which are not used"},
};

}  // namespace attnsmith::compiler
