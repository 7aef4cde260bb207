// A kernel's source and its key: the digest of all that decides the machine code.
#pragma once

#include <string>

#include "cache/digest/digest.hpp"
#include "cubins/translation_unit.hpp"

namespace attnsmith::engine {

// Tens of kilobytes to write and to hash, so callers make it once and hand it on.
struct KernelSource {
    families::KernelConfig kernel;
    TranslationUnit unit;
    cache::Digest key;
    std::string fields_json;  // what went into the key, labelled
};

KernelSource kernel_source(const families::KernelConfig& kernel, const TranslationOptions& options);

}  // namespace attnsmith::engine
