// How the keys of an attention are divided over CTAs.
#pragma once

#include <limits>

#include "families/work.hpp"
#include "planner/plan.hpp"

namespace attnsmith::planner {

inline constexpr std::int64_t kMostSplits = 256;

struct SplitChoice {
    Split split{};
    double clocks = 0;  // of the attention and, where it leaves one to do, of the merge
};

inline constexpr double kNoLimit = std::numeric_limits<double>::infinity();

// The best split for one kernel: how long its chunks are, or whether it takes shares. Where none takes as
// little as `limit`, it is any, with clocks above the limit. Allocates nothing.
SplitChoice best_split(const Contender& attention, int sm_count, const families::Work& work,
                       double limit = kNoLimit);

// The same for the kernels of a plan of a set, of which any sizes may be launched.
Split planned_split(const Plan& plan, const families::Work& work);

// As many shares as the device holds CTAs.
Split shares_of(const Contender& attention, int sm_count);

// That of a launch with these bounds: as planned, but with as many chunks as the keys have, or as many shares
// as can have work. Of a plan of a set, as planned for the bounds.
Split split_of(const Plan& plan, const problem::BoundShape& shape);

// Rows of partial results that a launch of this split has room for: enough for any smaller bounds, too.
std::int64_t partial_rows(const Plan& plan, const problem::BoundShape& shape, const Split& split);

// What a share may leave among the partial results: the end of one query tile, which with absolute cuts is in
// pieces, and the start of another.
struct SharePlaces {
    std::int64_t count, rows;  // places of a share, and rows of each
};
SharePlaces share_places(const Plan& plan, const problem::BoundShape& shape);

}  // namespace attnsmith::planner
