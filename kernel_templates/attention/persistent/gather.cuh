// Keys of pages that a TMA box cannot hold, because a tile has no whole 16 rows of each: they are found and
// copied row by row.
#pragma once

#include "attention/persistent/pipeline.cuh"
#include "common/copy.cuh"
#include "sequences/pages.cuh"

namespace attnsmith {

// What a gathered row is where there is none to read.
template <int Chunks>
__device__ uint4 zero_row[Chunks];

// Rows of K, or of V. One warp does it for all, with few registers, so each four rows have to be few
// instructions.
template <class Config, bool Values>
struct RowGather {
    using Loaded = LoadedColumns<Config, Values>;
    using PageId = typename Config::Index;
    using KeyTile = typename PersistentPipeline<Config>::KeyTile;
    static constexpr int kElementBytes = sizeof(typename Config::KeyValue);
    static constexpr int kChunkElements = 16 / kElementBytes;
    static constexpr int kHeadDim = Loaded::kHeadDim, kPanels = Loaded::kPanels;
    static constexpr int kPanelColumns = abi::panel_elements(kElementBytes);
    static constexpr int kKeys = Config::tile_kv;
    static constexpr int kChunks = abi::kPanelBytes / 16;  // of a panel's row, a lane each
    static constexpr int kSourceBytes = sizeof(uint64);
    static_assert(!Config::gather || kKeys % 32 == 0);

    const abi::PersistentArguments& args;
    const PersistentPipeline<Config>& pipeline;
    const int32 lane = threadIdx.x % 32;

    // Finds the rows of block n, of a KV head of the tensor. A lane finds one row in 32, and requests all
    // pages before it looks at one.
    __device__ void look_up(const WorkTile& work, int32 head, int32 n) const {
        constexpr int kRows = kKeys / 32;
        const abi::AttentionArguments& attention = args.attention;
        const PageId* const page_ids = pages_of<PageId>(attention, work.sequence);
        const void* const zeros = zero_row<Loaded::kRowColumns / kChunkElements>;
        const uint32 first_key = n * kKeys + lane;
        const uint32 first_read = work.mask.read.first, count = work.mask.read.end - work.mask.read.first;
        PageId ids[kRows];
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
            const uint32 key = first_key + i * 32;
            ids[i] = *(key - first_read < count ? page_ids + page_of(attention, key)
                                                : static_cast<const PageId*>(zeros));
        }
        const TensorRows rows = Loaded::kAreValues ? values() : keys();
        const TensorRows position = has_own_position() ? keys() : TensorRows{};
        bool out_of_range = false;
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
            const uint32 key = first_key + i * 32;
            const bool read = key - first_read < count, is_there = has_page(attention, ids[i]);
            const uint32 slot = key - page_of(attention, key) * attention.page_size;
            const auto store = [&](SharedAddress target, const TensorRows& tensor) {
                const uint64 row = tensor.first + kElementBytes * head * tensor.head_stride +
                                   uint32(ids[i]) * (kElementBytes * uint64(tensor.page_stride)) +
                                   slot * (kElementBytes * uint64(tensor.token_stride));
                store_shared_8_bytes(target, read && is_there ? row : reinterpret_cast<uint64>(zeros));
            };
            store(source(Values, i * 32 + lane), rows);
            if (has_own_position()) store(source(kPosition, i * 32 + lane), position);
            out_of_range |= read && !is_there;
        }
        if (out_of_range) report(attention, abi::kStatusPageOutOfRange);
        __syncwarp();
    }

    // Copies the rows that were found.
    __device__ void copy_rows(const KeyTile& target) const {
        copy_panels<kHeadDim>(target, Values, Loaded::kFirstColumn * kElementBytes);
        if constexpr (Loaded::kHasPosition)
            copy_panels<Config::head_dim_qk>(target.panel(kPanels),
                                             has_own_position() ? kPosition : int(Values),
                                             has_own_position() ? 0 : Config::head_dim_vo * kElementBytes);
    }

  private:
    static constexpr int kPosition = 2;  // of the lists of rows, behind those of K and V

    // A tensor in pages: its first byte, and strides in elements.
    struct TensorRows {
        uint64 first;
        int64 page_stride, token_stride, head_stride;
    };
    __device__ TensorRows keys() const {
        const abi::AttentionArguments& a = args.attention;
        return {reinterpret_cast<uint64>(a.k), a.k_batch_stride, a.k_token_stride, a.k_head_stride};
    }
    __device__ TensorRows values() const {
        const abi::AttentionArguments& a = args.attention;
        return {reinterpret_cast<uint64>(a.v), a.v_batch_stride, a.v_token_stride, a.v_head_stride};
    }
    __device__ bool has_own_position() const { return Loaded::has_own_position(args); }

    // So many columns of each row of a list, from a byte of it on, eight lanes a row.
    template <int Columns>
    __device__ void copy_panels(const KeyTile& target, int list, int32 first_byte) const {
        const int32 chunk = lane % kChunks, first_row = lane / kChunks;
        // Rows r and r + 8 are swizzled alike.
        SharedAddress to[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            to[i] = target.chunk(i * 4 + first_row, chunk);
        }
        const SharedAddress from = source(list, first_row);
        constexpr int kAtOnce = 4;  // loads from shared memory and copies to it do not mix well
#pragma unroll
        for (int step = 0; step < kKeys / 4; step += kAtOnce) {
            uint32 rows[kAtOnce / 2][4];
#pragma unroll
            for (int i = 0; i < kAtOnce / 2; ++i)
                load_shared_16_bytes(rows[i], from + (step / 2 + i) * (8 * kSourceBytes));
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i) {
                const uint64 row_source =
                    (uint64(rows[i / 2][i % 2 * 2 + 1]) << 32 | rows[i / 2][i % 2 * 2]) + chunk * 16 +
                    first_byte;
                const SharedAddress row = to[i % 2] + (step + i) / 2 * (8 * abi::kPanelBytes);
#pragma unroll
                for (int panel = 0; panel < abi::panels_of(Columns, kElementBytes); ++panel) {
                    const bool is_in = (panel + 1) * kPanelColumns <= Columns ||
                                       panel * kPanelColumns + chunk * kChunkElements < Columns;
                    copy_16_bytes<16>(row + panel * KeyTile::kPanel,
                                      reinterpret_cast<const char*>(row_source) + panel * abi::kPanelBytes,
                                      is_in);
                }
            }
        }
    }

    // Where row r's address is in a list; those of r and r + 4 are read together.
    __device__ SharedAddress source(int list, uint32 row) const {
        return pipeline.row_sources(list) + (row / 8 * 8 + row % 4 * 2 + row / 4 % 2) * kSourceBytes;
    }
};

}  // namespace attnsmith
