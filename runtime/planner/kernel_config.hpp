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

// What a sequence has for a KV head to do.
struct HeadWork {
    std::int64_t group = 1;  // query heads to the KV head
    std::int64_t q_len = 1;
    std::int64_t keys = 1;  // that a query of average position sees
    int bounds = 0;         // on the keys by the mask: left, right. With each, other tokens see other keys

    std::int64_t rows() const { return q_len * group; }  // packed query rows
};

// How the query rows of a KV head are laid into tiles.
struct QueryTiling {
    std::int64_t shares = 1;  // equal parts of the head's group, each with tiles of its own
    std::int64_t group = 1;   // query heads of a part, which are packed with the tokens
    std::int64_t rows = 1;    // packed query rows of a tile

    // Of all parts, for one sequence.
    std::int64_t tiles(std::int64_t q_len) const;
    bool operator==(const QueryTiling&) const = default;
};

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
    bool gather = false;  // of wgmma: rows of KV are loaded one by one, not in boxes by TMA

    int ctas_per_sm = 0;            // that registers and shared memory are budgeted for
    std::int64_t shared_bytes = 0;  // dynamic

    int threads() const { return (warps_q * warps_kv + producer_warps) * 32; }
    // For sequences of up to that much work.
    QueryTiling query_tiling(const HeadWork& work) const;
    // Registers that leave room for ctas_per_sm: allocated by warps in units of 256, 255 a thread at most.
    int registers_ceiling() const;
    // "attention mma bf16 128x128 paged 64x64 stages 2": for people; unique within a kernel set.
    std::string name() const;

    auto operator<=>(const KernelConfig&) const = default;
};

}  // namespace attnsmith::planner
