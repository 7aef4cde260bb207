// Whether a kernel fits an SM, and how often.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "families/config.hpp"
#include "families/traits.hpp"

namespace attnsmith::families {

// What a kernel takes of an SM, or why it cannot run there.
struct Budget {
    int registers = 0;                  // that a thread which multiplies is expected to need
    bool queries_in_registers = false;  // whether there is room for them
    std::int64_t shared_bytes = 0;      // of a CTA, dynamic
    int ctas_per_sm = 0;
    std::optional<std::string> refusal{};

    // Of a kernel whose threads need so many registers each, as many CTAs as an SM holds.
    static Budget of(int threads, int registers, std::int64_t shared_bytes, const SmTraits& sm);
};

// A kernel, as the struct of its family's constants, and its budget: asked for once, and handed on.
template <class Kernel>
struct Planned {
    Kernel kernel{};
    Budget budget{};

    const std::optional<std::string>& refusal() const { return budget.refusal; }
};

// Why a CTA cannot have so much shared memory; nothing where it can.
std::optional<std::string> shared_memory_refusal(std::int64_t bytes, const SmTraits& sm);

// The kernel as one of its family's, for the SM or, with the suffix "a", for its architecture alone.
template <class Kernel>
KernelConfig config_of(const Family& family, const Planned<Kernel>& planned, const SmTraits& sm,
                       const char* suffix = "") {
    return {.family = &family,
            .sm = sm.sm,
            .target = "sm_" + std::to_string(sm.sm) + suffix,
            .constants = Constants::of(planned.kernel),
            .threads = planned.kernel.threads(),
            .ctas_per_sm = planned.budget.ctas_per_sm,
            .shared_bytes = planned.budget.shared_bytes};
}

}  // namespace attnsmith::families
