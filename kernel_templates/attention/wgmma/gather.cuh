// Keys of pages that a TMA box cannot hold, because a tile has no whole 16 rows of each: they are found and
// copied row by row.
#pragma once

#include "attention/pages.cuh"
#include "attention/wgmma/pipeline.cuh"
#include "common/copy.cuh"

namespace attnsmith {

// What a gathered row is where there is none to read.
template <int Chunks>
__device__ uint4 zero_row[Chunks];

// Rows of K, or of V. One warp does it for all, with few registers, so each four rows have to be few
// instructions.
template <class Config, bool Values>
struct WgmmaGather {
    using PageId = typename Config::Index;
    static constexpr int kElementBytes = sizeof(typename Config::KeyValue);
    static constexpr int kChunkElements = 16 / kElementBytes;
    static constexpr int kHeadDim = Values ? Config::head_dim_vo : Config::head_dim_qk;
    static constexpr int kPanels = abi::wgmma_panels(kHeadDim, kElementBytes);
    static constexpr int kPanelColumns = abi::wgmma_panel_columns(kElementBytes);
    static constexpr int kKeys = Config::tile_kv;
    static constexpr int kChunks = abi::kWgmmaPanelBytes / 16;  // of a panel's row, a lane each
    static constexpr int kSourceBytes = sizeof(uint64);
    static_assert(!Config::gather || kKeys % 32 == 0);

    const abi::WgmmaArguments& args;
    const WgmmaPipeline<Config>& pipeline;
    const int32 lane = threadIdx.x % 32;

    // Finds the rows of block n, of a KV head of the tensor. A lane finds one row in 32, and requests all
    // pages before it looks at one.
    __device__ void look_up(const WorkTile& work, int32 head, int32 n) const {
        constexpr int kRows = kKeys / 32;
        const abi::AttentionArguments& attention = args.attention;
        const PageId* const page_ids = pages_of<PageId>(attention, work.sequence);
        const void* const zeros = zero_row<kHeadDim / kChunkElements>;
        const uint32 first_key = n * kKeys + lane;
        const uint32 first_read = work.mask.read.first, count = work.mask.read.end - work.mask.read.first;
        PageId ids[kRows];
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
            const uint32 key = first_key + i * 32;
            ids[i] = *(key - first_read < count ? page_ids + page_of(attention, key)
                                                : static_cast<const PageId*>(zeros));
        }
        const uint64 page_bytes =
            kElementBytes * (Values ? attention.v_batch_stride : attention.k_batch_stride);
        const uint64 token_bytes =
            kElementBytes * (Values ? attention.v_token_stride : attention.k_token_stride);
        const uint64 base =
            reinterpret_cast<uint64>(Values ? attention.v : attention.k) +
            kElementBytes * head * (Values ? attention.v_head_stride : attention.k_head_stride);
        bool out_of_range = false;
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
            const uint32 key = first_key + i * 32;
            const bool read = key - first_read < count, is_there = has_page(attention, ids[i]);
            const uint64 row = base + uint32(ids[i]) * page_bytes +
                               (key - page_of(attention, key) * attention.page_size) * token_bytes;
            store_shared_8_bytes(source(i * 32 + lane),
                                 read && is_there ? row : reinterpret_cast<uint64>(zeros));
            out_of_range |= read && !is_there;
        }
        if (out_of_range) report(attention, abi::kStatusPageOutOfRange);
        __syncwarp();
    }

    // Copies the rows that were found, eight lanes each.
    __device__ void copy_rows(SharedAddress target) const {
        const int32 chunk = lane % kChunks, first_row = lane / kChunks;
        // Rows r and r + 8 are swizzled alike.
        SharedAddress to[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int32 row = i * 4 + first_row;
            to[i] = target + row * abi::kWgmmaPanelBytes + (chunk ^ row) * 16;
        }
        const SharedAddress from = source(first_row);
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
                    (uint64(rows[i / 2][i % 2 * 2 + 1]) << 32 | rows[i / 2][i % 2 * 2]) + chunk * 16;
                const SharedAddress row = to[i % 2] + (step + i) / 2 * (8 * abi::kWgmmaPanelBytes);
#pragma unroll
                for (int panel = 0; panel < kPanels; ++panel) {
                    const bool is_in = (panel + 1) * kPanelColumns <= kHeadDim ||
                                       panel * kPanelColumns + chunk * kChunkElements < kHeadDim;
                    copy_16_bytes<16>(
                        row + panel * WgmmaPipeline<Config>::kLayout.kv_panel,
                        reinterpret_cast<const char*>(row_source) + panel * abi::kWgmmaPanelBytes, is_in);
                }
            }
        }
    }

  private:
    // Where row r's address is; those of r and r + 4 are read together.
    __device__ SharedAddress source(uint32 row) const {
        return pipeline.row_sources(Values) + (row / 8 * 8 + row % 4 * 2 + row / 4 % 2) * kSourceBytes;
    }
};

}  // namespace attnsmith
