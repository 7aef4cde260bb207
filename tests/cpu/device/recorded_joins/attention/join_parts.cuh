// Stands in for kernel_templates/attention/join_parts.cuh where shares are found on the host
// (shares_test.cpp): what would be joined is written down.
#pragma once

#include <vector>

#include "abi/attention_share.h"
#include "attention/tiles.cuh"

namespace attnsmith {

struct JoinedColumns {
    float maximum = 0, sum = 0;
    float o[8] = {};
};

struct JoinedRow {
    int32 batch, token, head;
    std::vector<int64> places;  // of its parts, in their order
};
inline thread_local std::vector<JoinedRow> joined_rows;  // by this thread
inline thread_local std::vector<int64> joined_places;    // of the row that it has at hand

template <class Config, class Place>
JoinedColumns join_parts(const abi::AttentionArguments&, int32 parts, int32, const Place& place) {
    joined_places.clear();
    for (int32 p = 0; p < parts; ++p) joined_places.push_back(place(p));
    return {};
}

template <class Config, int Alignment>
struct Epilogue {
    const abi::AttentionArguments& args;
    const Sequence& sequence;

    void store_eight(const PackedRow& row, int32, int32 column, const float (&)[8], float, float) const {
        if (column == 0) joined_rows.push_back({sequence.batch, row.token, row.head, joined_places});
    }
};

}  // namespace attnsmith
