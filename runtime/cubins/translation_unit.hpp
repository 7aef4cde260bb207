// From a kernel to what NVRTC is given.
#pragma once

#include <string>

#include "compiler/nvrtc.hpp"
#include "families/config.hpp"

namespace attnsmith::engine {

struct TranslationUnit {
    compiler::Program program;
    std::string entry;  // the kernel's symbol
};

struct TranslationOptions {
    bool line_info = false;  // for profilers; part of the kernel's key
};

TranslationUnit translation_unit(const families::KernelConfig& kernel,
                                 const TranslationOptions& options = {});

}  // namespace attnsmith::engine
