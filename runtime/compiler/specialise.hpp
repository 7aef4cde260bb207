// From a kernel's constants to its translation unit. Only enumerators and integers of a KernelConfig reach
// the source.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "compiler/nvrtc.hpp"
#include "planner/kernel_config.hpp"

namespace attnsmith::compiler {

struct TranslationUnit {
    Program program;
    std::string entry;  // the kernel's symbol
    // What the source's Config says, by name: of two kernels of a family, what tells them apart.
    std::vector<std::pair<std::string, std::string>> constants;
};

// The exported variable that holds the kernel's dynamic shared memory in bytes.
inline constexpr const char* kSharedBytesSymbol = "attnsmith_shared_bytes";

struct SpecialiseOptions {
    bool line_info = false;  // for profilers; part of the kernel's key
};

TranslationUnit specialise(const planner::KernelConfig& kernel, const SpecialiseOptions& options = {});

}  // namespace attnsmith::compiler
