// The kernels that a tuning table chooses for a spec.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "attnsmith/error.hpp"
#include "families/family.hpp"

namespace attnsmith::families {

// Makes the kernel of a tile, or says why there can be none.
using MakeKernel = std::function<std::optional<std::string>(const TuningTile& tile, KernelConfig& kernel)>;

// Those of the table's entries for one backend, by rising rows: each for what has more than the one before,
// with the first of the tiles for so many rows that there can be a kernel of. Ranges may share a tile. Why
// tiles in front of it were passed over goes to `rejected`.
std::vector<Candidate> tuned_candidates(Backend backend, const AttentionSpec& spec, const SmTraits& sm,
                                        const TuningTable& tuning, const MakeKernel& make,
                                        std::vector<Refusal>& rejected);

}  // namespace attnsmith::families
