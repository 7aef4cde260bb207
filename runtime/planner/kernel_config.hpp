// One kernel, described by the constants of its machine code. Equal configs are the same kernel.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

#include "attnsmith/types.hpp"

namespace attnsmith::planner {

enum class Family : std::uint8_t { attention_mma, attention_wgmma, merge_splits, merge_states };
enum class Backend : std::uint8_t { mma, wgmma, cuda_core };

std::string_view to_string(Family family);  // also the name of the template's file
std::string_view to_string(Backend backend);

struct KernelConfig {
    Family family = Family::attention_mma;
    Backend backend = Backend::mma;
    int sm = 0;
    std::string target{};  // NVRTC's name: "sm_90", or "sm_90a" for a kernel that needs it

    DType dtype = DType::bf16;
    DType index_dtype = DType::i32;
    int head_dim_qk = 0;
    int head_dim_vo = 0;
    int alignment = 16;
    bool paged = false;
    bool softcap = false;
    bool alibi = false;

    int tile_q = 0;   // packed query rows of a CTA; of merge_states, rows [token][head]
    int tile_kv = 0;  // keys
    int stages = 0;   // tiles of K and of V in shared memory
    int warps_q = 0;
    int warps_kv = 0;
    int producer_warps = 0;  // that only load: of wgmma
    bool queries_in_registers = false;

    int ctas_per_sm = 0;            // that registers and shared memory are budgeted for
    std::int64_t shared_bytes = 0;  // dynamic

    int threads() const { return (warps_q * warps_kv + producer_warps) * 32; }
    // Packed query rows that a tile holds for groups of so many query heads: of wgmma, whole tokens of each
    // warpgroup. REQUIRES of wgmma: 1 <= group <= abi::kWgmmaRows.
    int rows_per_tile(std::int64_t group) const;
    // Registers that leave room for ctas_per_sm: allocated by warps in units of 256, 255 a thread at most.
    int registers_ceiling() const;
    // "attention mma bf16 128x128 paged 64x64 stages 2": for people; unique within a kernel set.
    std::string name() const;

    auto operator<=>(const KernelConfig&) const = default;
};

}  // namespace attnsmith::planner
