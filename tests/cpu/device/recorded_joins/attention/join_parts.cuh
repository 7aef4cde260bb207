// Stands in for kernel_templates/attention/join_parts.cuh where shares are found on the host
// (shares_test.cpp): instead of floats, the workspace has what they are a result of.
#pragma once

#include <map>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

#include "attention/tiles.cuh"

namespace attnsmith {

// Units of a row's keys.
struct Known {
    int32 batch, token, head, first, end;
    bool operator==(const Known&) const = default;
};
using Knowledge = std::vector<Known>;  // in the order in which it was joined

struct StoredColumns {
    int32 batch, token, head, column;
    Knowledge o, ml;
};

struct Workspace {
    std::mutex mutex;
    std::map<std::pair<int64, int32>, Knowledge> o;   // by place and column
    std::map<std::pair<int32, int64>, Knowledge> ml;  // by set and place
    int32 longest_join = 0;                           // results that a thread, or its lanes together, read
};
inline Workspace workspace;
inline thread_local std::vector<StoredColumns> stored;  // as O, by this thread

template <class Config>
inline constexpr int32 kPartsAtOnce = 3;

struct JoinedColumns {
    Knowledge o, maximum, sum;
    int32 parts = 0;

    void add(const Knowledge& more_o, const Knowledge& more_ml) {
        o.insert(o.end(), more_o.begin(), more_o.end());
        maximum.insert(maximum.end(), more_ml.begin(), more_ml.end());
        sum = maximum;
    }

    void add_lanes(int32 lanes, float) {
        static std::vector<JoinedColumns*> said(1024);
        said[threadIdx.x] = this;
        __syncwarp();
        if (static_cast<int32>(threadIdx.x) % lanes == 0) {
            for (int32 lane = 1; lane < lanes; ++lane) {
                const JoinedColumns& other = *said[threadIdx.x + static_cast<unsigned>(lane)];
                add(other.o, other.maximum);
                parts += other.parts;
            }
            const std::lock_guard lock(workspace.mutex);
            workspace.longest_join = std::max(workspace.longest_join, parts);
        }
        __syncwarp();
    }
};

// What is not there is known of no row.
template <class Config, class Place>
JoinedColumns join_parts(const abi::AttentionArguments&, int32 set, int32 parts, int32 column,
                         const Place& place) {
    const Knowledge nothing{{-1, -1, -1, 0, 0}};
    const auto found = [&](const auto& map, const auto& key) {
        const auto at = map.find(key);
        return at == map.end() ? nothing : at->second;
    };
    JoinedColumns joined;
    for (int32 p = 0; p < parts; ++p) {
        const int64 at = place(p);
        const std::lock_guard lock(workspace.mutex);
        joined.add(found(workspace.o, std::pair{at, column}), found(workspace.ml, std::pair{set, at}));
        ++joined.parts;
    }
    return joined;
}

template <class Config, int Alignment>
struct Epilogue {
    const abi::AttentionArguments& args;
    const Sequence& sequence;

    void store_eight(const PackedRow& row, int32 place, int32 column, const Knowledge& o,
                     const Knowledge& maximum, const Knowledge&, int32 set = 0) const {
        if (place < 0) {
            stored.push_back({sequence.batch, row.token, row.head, column, o, maximum});
            return;
        }
        const std::lock_guard lock(workspace.mutex);
        workspace.o[{place, column}] = o;
        if (column == 0) workspace.ml[{set, place}] = maximum;
    }
};

}  // namespace attnsmith
