#include "families/fitting.hpp"

#include <fmt/format.h>

namespace attnsmith::families {

std::optional<std::string> shared_memory_refusal(std::int64_t bytes, const SmTraits& sm) {
    if (bytes <= sm.shared_bytes_per_block) return std::nullopt;
    return fmt::format("needs {} bytes of shared memory; a block of sm_{} has {}", bytes, sm.sm,
                       sm.shared_bytes_per_block);
}

Budget Budget::of(int threads, int registers, std::int64_t shared_bytes, const SmTraits& sm) {
    Budget budget{.registers = registers, .shared_bytes = shared_bytes};
    budget.refusal = shared_memory_refusal(shared_bytes, sm);
    if (budget.refusal) return budget;
    budget.ctas_per_sm = resident_ctas(sm, threads, registers, shared_bytes);
    if (budget.ctas_per_sm == 0) budget.refusal = fmt::format("no CTA fits an SM of sm_{}", sm.sm);
    return budget;
}

}  // namespace attnsmith::families
