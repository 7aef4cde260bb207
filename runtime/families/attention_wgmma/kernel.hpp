// The kernels of the wgmma family: their constants, and how query rows are laid into their tiles.
#pragma once

#include <cstdint>

#include "abi/attention_persistent.h"
#include "abi/wgmma.h"
#include "families/attention.hpp"
#include "families/attention_family.hpp"

namespace attnsmith::families::attention_wgmma {

// What keys and values of 8 bits are multiplied as, and widened to.
inline constexpr DType kWidenedTo = DType::fp16;

struct Kernel : AttentionConstants {
    int consumers = 0;    // warpgroups that multiply; in wide kernels three for the same rows
    bool gather = false;  // rows of KV are loaded one by one, not in boxes by TMA
    bool shares = false;  // CTAs take equal shares of the keys; else they draw tiles
    // A thread's, that setmaxnreg gives to each role, in steps of eight. Together no more than what the CTA
    // was launched with: the consumers would wait for the rest for ever.
    int consumer_registers = 0, producer_registers = 0;
    int score_registers = 0;  // in wide kernels, the warpgroup's that makes the weights

    template <class Self, class Visitor>
    static void visit(Self& self, Visitor& visitor) {
        AttentionConstants::visit(self, visitor);
        visitor.integer("consumers", self.consumers);
        visitor.flag("gather", self.gather);
        visitor.flag("shares", self.shares);
        visitor.integer("consumer_registers", self.consumer_registers);
        visitor.integer("producer_registers", self.producer_registers);
        visitor.integer("score_registers", self.score_registers);
    }

    int producer_warps() const { return abi::producer_warps(shape()); }
    bool reads_workspace() const { return operand_stage == abi::OperandStage::dequant_ahead; }
    int threads() const { return (consumers * 4 + producer_warps()) * 32; }
    bool is_wide() const { return abi::is_wide(shape()); }
    abi::PersistentShape shape() const { return abi::persistent_shape(*this, storage_bytes(*this)); }
};

// Keys of a TMA box: tile_kv, or what tiles and pages have as their greatest common divisor.
int box_keys(const Kernel& kernel, std::int64_t page_size);

// How the query rows of a KV head are laid into tiles.
struct QueryTiling {
    std::int64_t shares = 1;  // parts of the head's group, each with tiles of its own
    std::int64_t group = 1;   // query heads of a part, which are packed with the tokens; the last has fewer
    std::int64_t rows = 1;    // packed query rows of a tile

    // Counts those of all parts, for one sequence.
    std::int64_t tiles(std::int64_t q_len) const;
    bool operator==(const QueryTiling&) const = default;
};

// With the fewest parts. A sequence of the length that tiling_of() was asked for has no fewer tiles by these
// than by what that finds; a shorter one may have.
QueryTiling largest_parts(int tile_q, std::int64_t group);

// For sequences of up to that much work. The rows of a warpgroup are whole tokens of a part: a smaller part
// may leave fewer of them unused. But then a tile has more tokens, and goes through the keys of them all.
QueryTiling tiling_of(int tile_q, const HeadWork& work);

// Why the family serves no such attention on the SM.
std::optional<std::string> refusal(const AttentionSpec& spec, const SmTraits& sm);

// By rising rows: each for what has more than the one before. With the first of the table's tiles for the
// spec and so many rows that is legal; ranges may share a tile. REQUIRES: no refusal.
std::vector<Candidate> candidates(const AttentionSpec& spec, const SmTraits& sm, const TuningTable& tuning,
                                  std::vector<Refusal>& rejected);

// AttentionFamily::most_rows_of_other_families().
std::optional<int> most_rows_of_other_families(const AttentionSpec& spec, std::span<const Candidate> own);

// Every kernel that is legal; none where rows are cut at absolute positions, since bits follow from the tile.
std::vector<KernelConfig> tunable(const AttentionSpec& spec, const SmTraits& sm);

// Whether a byte of K and V has so many logits that the kernel for few rows does not keep up with the memory.
bool is_narrow(const Kernel& kernel);

// What ranks the kernel, of which an SM holds `ctas_per_sm`.
AttentionCost cost_of(const Kernel& kernel, const SmTraits& sm, int ctas_per_sm);

SourceParts source(const KernelConfig& config);

Bound bind(const KernelConfig& config, const LaunchContext& context, const Binding& binding);

}  // namespace attnsmith::families::attention_wgmma
