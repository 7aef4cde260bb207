// Versions of NVRTC, which order as numbers do.
#pragma once

#include <compare>

namespace attnsmith::compiler {

struct NvrtcVersion {
    int major = 0;
    int minor = 0;
    auto operator<=>(const NvrtcVersion&) const = default;
};

}  // namespace attnsmith::compiler
