#include "families/attention_wgmma/budget.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "families/fitting.hpp"

namespace attnsmith::families::attention_wgmma {
namespace {

// With cuts a tile's last row is looked at beside its first, for which 32 were too few.
int producer_registers(const Kernel& kernel) {
    if (kernel.operand_stage == abi::OperandStage::dequant_in_place) return 72;
    if (kernel.shares || kernel.is_wide()) return 56;
    return kernel.consumers == 2 || kernel.absolute_cuts ? 40 : 32;
}

// CTAs that an SM holds: of those that draw tiles one, which is persistent.
int ctas_of(const Kernel& kernel, std::int64_t shared_bytes, const SmTraits& sm) {
    constexpr int kWanted = 2;  // one computes while the other waits
    if (!kernel.shares || registers_of(kernel) > registers_by_role(kernel, kWanted).consumer) return 1;
    const int ceiling = registers_ceiling(kernel.threads(), kWanted);
    return std::clamp(resident_ctas(sm, kernel.threads(), ceiling, shared_bytes), 1, kWanted);
}

std::optional<std::string> refusal_of(const Kernel& kernel, const Budget& budget, int most_registers,
                                      const SmTraits& sm) {
    if (auto reason = shared_memory_refusal(budget.shared_bytes, sm)) return reason;
    if (budget.registers > most_registers)
        return fmt::format("needs about {} registers a thread; {} consumer warpgroups have {}",
                           budget.registers, kernel.consumers, most_registers);
    // ptxas 13.0 takes no product of more registers than a thread is launched with.
    constexpr int kBesideSums = 30;
    const int launched = registers_ceiling(kernel.threads(), budget.ctas_per_sm);
    const int product = std::max(abi::padded_head_dim(kernel.head_dim_vo), kernel.tile_kv) / 2 + kBesideSums;
    if (!kernel.is_wide() && product > launched)
        return fmt::format("a product needs {} registers a thread, which is launched with {}", product,
                           launched);
    return std::nullopt;
}

}  // namespace

int registers_of(const Kernel& kernel) {
    // Fitted to NVRTC 13.0, 12.8 and 12.4: what is accepted does not spill (tests/cpu/compiler).
    const int addresses_and_state = kernel.shares ? 40 : kernel.consumers == 2 ? 32 : 28;
    if (kernel.is_wide()) return abi::padded_head_dim(kernel.head_dim_vo) / 4 + addresses_and_state;
    const int scores = kernel.softcap && kernel.alibi   ? kernel.tile_kv / 8
                       : kernel.softcap || kernel.alibi ? kernel.tile_kv / 32
                                                        : 0;
    const int output = abi::padded_head_dim(kernel.head_dim_vo) / 2;
    const int logits = kernel.tile_kv / 2;
    const int probabilities = kernel.tile_kv / 4;  // 16 bits each
    const int queries = kernel.queries_in_registers ? abi::padded_head_dim(kernel.head_dim_qk) / 4 : 0;
    // What rows have found, until O of it is there; and with ALiBi their slopes and places meanwhile.
    const int cuts = !kernel.absolute_cuts ? 0 : kernel.alibi ? 24 : 16;
    // Factors of products and the queries; of two consumers, which have few, what both transforms keep, too.
    const bool transforms = kernel.softcap && kernel.alibi && kernel.consumers == 2;
    const int widened = !abi::is_quantized(kernel.operand_stage) ? 0 : transforms ? 32 : 12;
    return output + logits + probabilities + queries + scores + addresses_and_state + cuts + widened;
}

RoleRegisters registers_by_role(const Kernel& kernel, int ctas) {
    constexpr int kWarpgroup = 128;  // threads
    RoleRegisters registers{.producer = producer_registers(kernel),
                            .scores = kernel.is_wide() ? 104 : 0,
                            .dequantizer = abi::dequant_registers(kernel.shape())};
    const int launched = registers_ceiling(kernel.threads(), ctas) * (kernel.threads() / kWarpgroup);
    const int left = launched - registers.producer - registers.scores - registers.dequantizer;
    registers.consumer = std::min(240, left / (kernel.consumers - (kernel.is_wide() ? 1 : 0)) / 8 * 8);
    return registers;
}

RoleBudget budget_of(Kernel kernel, const SmTraits& sm) {
    Budget budget{.shared_bytes = abi::persistent_layout(kernel.shape()).total};
    kernel.queries_in_registers = false;
    budget.ctas_per_sm = ctas_of(kernel, budget.shared_bytes, sm);
    const RoleRegisters registers = registers_by_role(kernel, budget.ctas_per_sm);
    kernel.queries_in_registers = !kernel.is_wide();
    if (registers_of(kernel) > registers.consumer) kernel.queries_in_registers = false;
    budget.queries_in_registers = kernel.queries_in_registers;
    budget.registers = registers_of(kernel);
    budget.refusal = refusal_of(kernel, budget, registers.consumer, sm);
    return {budget, registers};
}

}  // namespace attnsmith::families::attention_wgmma
