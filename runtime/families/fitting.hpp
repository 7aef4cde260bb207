// Whether a kernel fits an SM, and how often.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "families/config.hpp"
#include "families/traits.hpp"

namespace attnsmith::families {

// A kernel, as the struct of its family's constants, and what it takes of an SM.
template <class Kernel>
struct Fitted {
    Kernel kernel{};
    std::int64_t shared_bytes = 0;  // of a CTA, dynamic
    int ctas_per_sm = 0;
};

// Why a CTA cannot have so much shared memory; nothing where it can.
std::optional<std::string> shared_memory_refusal(std::int64_t bytes, const SmTraits& sm);

// Fills in what an SM holds of the kernel, whose shared memory is known and whose threads need so many
// registers each. Why it holds none.
template <class Kernel>
std::optional<std::string> fit(Fitted<Kernel>& fitted, int registers, const SmTraits& sm) {
    if (auto reason = shared_memory_refusal(fitted.shared_bytes, sm)) return reason;
    fitted.ctas_per_sm = resident_ctas(sm, fitted.kernel.threads(), registers, fitted.shared_bytes);
    if (fitted.ctas_per_sm == 0) return "no CTA fits an SM of sm_" + std::to_string(sm.sm);
    return std::nullopt;
}

// The kernel as one of its family's, for the SM or, with the suffix "a", for its architecture alone.
template <class Kernel>
KernelConfig config_of(const Family& family, const Fitted<Kernel>& fitted, const SmTraits& sm,
                       const char* suffix = "") {
    return {.family = &family,
            .sm = sm.sm,
            .target = "sm_" + std::to_string(sm.sm) + suffix,
            .constants = Constants::of(fitted.kernel),
            .threads = fitted.kernel.threads(),
            .ctas_per_sm = fitted.ctas_per_sm,
            .shared_bytes = fitted.shared_bytes};
}

}  // namespace attnsmith::families
