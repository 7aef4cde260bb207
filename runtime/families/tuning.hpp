// Tuning tables: which tile serves which attentions best, as measured. The repository's own is part of the
// library; users' entries win over it. `attnsmith tune` makes them.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "attnsmith/spec.hpp"
#include "families/backend.hpp"
#include "families/key_bounds.hpp"

namespace attnsmith::families {

// Who says that a kernel has the tile that it has: the cost model, or an entry of the repository's or a
// user's table.
enum class TileSource : std::uint8_t { model, table, user };

std::string_view to_string(TileSource source);

// Packed query rows of a sequence and KV head, q_len * group, that decode has at most: those of an mma
// instruction, whose kernels of 16-row tiles serve it. A longer q_len is a prefill to planning.
inline constexpr int kDecodeRows = 16;

// Decode and prefill have tiles of their own, of different families.
enum class Phase : std::uint8_t { decode, prefill };

constexpr Phase phase_of(std::int64_t rows) { return rows <= kDecodeRows ? Phase::decode : Phase::prefill; }

// The attentions that an entry is for. What it leaves open may be anything.
struct TuningMatch {
    int sm = 0;
    int head_dim_qk = 0, head_dim_vo = 0;
    bool paged = false;
    int kv_bits = 16;  // of an element of K and V, whatever its type
    std::optional<MaskClass> mask{};
    std::optional<DType> dtype{};
    std::optional<bool> softcap{}, alibi{};
    std::optional<bool> gathered{};  // paged KV: whether its keys are, as gathers() has it
    // Packed query rows of a sequence and KV head up to which the entry holds.
    std::optional<int> max_rows{};

    auto operator<=>(const TuningMatch&) const = default;
};

// Whether keys come from pages row by row: tiles hold no whole 16 keys of each, and smaller boxes cost the
// copy engine more than rows cost a warp (kernel_templates/attention/NOTES.md).
bool gathers(const AttentionSpec& spec);

// With nothing left open but the rows, which are no fact of a spec. The spec is a validated one's.
TuningMatch match_of(const AttentionSpec& spec, int sm);

struct TuningTile {
    Backend backend = Backend::wgmma;
    int tile_q = 0, tile_kv = 0, stages = 0;

    auto operator<=>(const TuningTile&) const = default;
};

struct TuningEntry {
    TuningMatch match{};
    TuningTile tile{};
    TileSource source = TileSource::table;

    bool operator==(const TuningEntry&) const = default;
};

// Immutable.
class TuningTable {
  public:
    // Among entries that serve a spec equally well, those in front win, and loaded ones over constants, which
    // outlive the table.
    explicit TuningTable(std::vector<TuningEntry> loaded, std::span<const TuningEntry> constants = {})
        : loaded_(std::move(loaded)), constants_(constants) {}

    const std::vector<TuningEntry>& loaded() const { return loaded_; }

    // The entries whose tiles a spec may take, the best first: those of its own head dims, then those of
    // larger ones, the nearest first. At the same head dims users' win over the repository's, of one table
    // those that leave less open, and of these the ones for fewer rows. However many rows an entry is for.
    std::vector<TuningEntry> entries_for(const TuningMatch& wanted) const;

  private:
    std::vector<TuningEntry> loaded_;
    std::span<const TuningEntry> constants_;
};

}  // namespace attnsmith::families
