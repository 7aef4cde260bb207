// A case of attention to run on the GPU, by description: what is asked, how long the sequences are, how the
// tensors lie in memory and what numbers they hold. run_case() (check/run_case.hpp) does the rest.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "attnsmith/runtime.hpp"
#include "check/reference.hpp"

namespace attnsmith::check {

enum class QStorage : std::uint8_t { dense, ragged };
// How a paged sequence's pages are listed: a padded table with kv_lens, or compressed rows.
enum class PageList : std::uint8_t { padded, compressed };
// Memory order of q, k, v and o, outermost axis first. Ragged tensors have no batch axis: thd or htd.
enum class MemoryOrder : std::uint8_t { bshd, bhsd, sbhd };

// How tensors lie in memory. Paddings are in elements, of a k and v of 8 bits in pairs of them, and are added
// to each stride, a different multiple to each, so that no two strides are related by accident; what lies in
// the gaps is NaN.
struct Layout {
    MemoryOrder order = MemoryOrder::bshd;    // of q, k and v
    MemoryOrder o_order = MemoryOrder::bshd;  // of o
    bool packed_qkv =
        false;  // one buffer: a token's q heads, then its k heads, then its v heads. Needs q and kv
                // with the same tokens (dense: the same capacity) and head_dim_vo == head_dim_qk
    bool one_kv_tensor = false;  // k and v are halves of one tensor (pages: [pages, 2, ...]; else heads)
    bool latents_apart = false;  // of op mla: the position's columns are tensors of their own
    bool latent_heads = false;   // of op mla: k and kpe have an axis of one KV head
    bool kv_as_bytes = false;    // k and v of 8 bits are given as tensors of uint8
    // Scales of each token lie behind each head's columns, and of latents with scales of blocks the columns
    // of the position behind these; rows are whole multiples of the alignment. Else they are tensors of their
    // own.
    bool inline_scales = false;
    std::int64_t scale_pad = 0;      // of scales of each token in tensors of their own, as `pad`
    bool scales_transposed = false;  // their token and head axes are the other way round in memory than k's
    std::int64_t pad = 0;            // of q, k and v
    std::int64_t o_pad = 0;
    std::int64_t lse_pad = 0;      // after each innermost row of lse
    bool lse_heads_first = false;  // lse is [b, h, s] or [h, tokens] in memory
    std::int64_t table_pad = 0;    // between rows of a padded page table
    std::int64_t base = 0;  // 16-bit elements between an aligned address and each tensor's first element
    // Axes whose stride is 0, as a broadcast (expand) leaves them: of q, and of k and v.
    std::vector<int> q_broadcast{}, kv_broadcast{};
};

enum class Values : std::uint8_t {
    normal,        // all N(0, 1)
    peaked,        // q and k N(0, 1) times 2: logits of several units, so that the maximum moves
    equal_logits,  // every key of a head is the same
    zero_queries,
    large_v,  // |v| from 1e4 to 6e4, one sign for each component so that nothing cancels
    // Logits computed without rounding in fp32, whatever the order, because every product and partial sum is
    // representable: an error that appears is the softmax's own.
    offset_1e4,  // all logits near +1e4, apart by units
    offset_minus_1e4,
    // The same with unit spread about larger logits, where a rounded product of logit and log2(e) would be
    // off by far more than that.
    offset_3e4,
    offset_1e5,  // 131072
    offset_1e6,  // 2^20
    spread_1e4,  // logits from -1e4 to 1e4
    spread_1e6,  // ... in steps so large that the softmax picks the maximum (or averages ties)
    spread_1e9,
    spread_1e12,  // beyond fp16's inputs: bf16 only
    spread_1e30,  // likewise
};

// The index arrays as they go to the device; a case may spoil them to show that the kernel survives.
struct IndexArrays {
    std::vector<std::int64_t> q_indptr, q_lens, kv_indptr, kv_lens;
    std::vector<std::int64_t> page_table;  // [rows, columns]
    std::vector<std::int64_t> table_rows;  // empty: sequence s has row s
    std::vector<std::int64_t> page_indptr, page_indices, last_page_len;
    std::int64_t columns = 0;
    std::int64_t pages = 0;  // how many the pool has

    std::int64_t row_of(std::int64_t sequence) const {
        return table_rows.empty() ? sequence : table_rows.at(static_cast<std::size_t>(sequence));
    }
};

// A number put into one place after the step's values were drawn.
struct Planted {
    enum class Where : std::uint8_t { q, k, v };
    Where where = Where::q;
    std::int64_t sequence = 0, token = 0;
    std::int64_t head = -1;  // -1: all
    std::int64_t component = 0;
    double value = 0;
};

// A scale of one token that is put into its place once its columns were quantised with the one before.
struct SpoiledScale {
    bool of_key = true;  // of latents there is no other
    std::int64_t sequence = 0, token = 0;
    std::int64_t head = -1;  // -1: all
    std::int64_t block = 0;  // of block128
    float value = 0;
};

// One launch of the case: lengths, and what the status must say after it. All steps use the same Call.
struct Step {
    std::vector<std::int64_t> q_lens, kv_lens;  // as the kernel must understand them, one a sequence
    CallStatus status{};
    // Applied to the k_scales and v_scales on the device, [kv_heads] or [1]. What is stored was quantised
    // with those before; what is right is NaN for the heads of one that is no number above 0.
    std::function<void(std::vector<float>& k_scales, std::vector<float>& v_scales)> spoil_scales = {};
    // The same of scales of each token. What is right is NaN for the rows that see one of a number that is
    // not above 0.
    std::vector<SpoiledScale> spoiled_scales{};
    // Applied to the arrays made from the lengths. Lengths above stay what is right after clamping. A page id
    // out of range stands for a page of zeros.
    std::function<void(IndexArrays&)> spoil = {};
    bool any_status = false;  // the status is not promised
    // Nor are the values: all that is checked is that nothing is written outside o, lse and the workspace.
    bool only_safety = false;
    std::vector<Planted> planted{};
    // Keys and values left of every row's window are NaN, as pages that were given back would be.
    bool evicted = false;
    // Pages and values are those of the step before, and every bit of the outputs must be so, too, but those
    // of rows whose scales are spoiled.
    bool same_data = false;
};

// One attention kernel, by what tells it from the others of its set, and the KV split to run it with.
struct KernelChoice {
    int tile_q = 0, tile_kv = 0, stages = 0;
    // Keys of a chunk, or the least of a share, a multiple of tile_kv; 0: KV is not split.
    std::int64_t chunk = 0;
    bool wgmma = false;
    bool shares = false;         // of wgmma's kernels, which take shares or draw tiles: the first
    bool widened_ahead = false;  // keys of 8 bits are widened by another kernel before
    int ctas = 0;                // that have shares; 0: some, by prepare_case()
};
// "64x32 stages 2 split 128", "16x64 stages 3 split 64 over 7 CTAs", "wgmma 128x128 stages 2",
// "wgmma shares 64x64 stages 2", "wgmma widened 128x128 stages 2"
std::string to_string(const KernelChoice& choice);

struct Case {
    std::string group;
    std::string name;
    AttentionSpec spec;
    std::optional<PlanSizes> sizes;      // absent: the first step's batch and longest lengths
    std::optional<KernelChoice> kernel;  // absent: what planning chooses
    std::vector<Step> steps;

    QStorage q_storage = QStorage::ragged;
    PageList page_list = PageList::padded;
    // Rows that a padded table has beyond the batch, where sequences take theirs from it in no order; absent:
    // there are no table_rows.
    std::optional<std::int64_t> spare_table_rows{};
    Layout layout;
    Values values = Values::normal;
    std::vector<float> sinks, alibi_slopes;  // taken in turn over the heads; empty: drawn
    // Taken in turn over the KV heads, or over the tokens that have scales of their own; empty: drawn. Op mla
    // has the first alone where its tokens have none.
    std::vector<float> k_scales, v_scales;
    // The Call is bound to other scales, all NaN, and each launch is given the addresses of the right ones.
    bool scales_at_launch = false;
    // The plain computation in the dtype overflows, so that the pooled bound may have nothing to go by. Where
    // this is not said, such a pool is a failure.
    bool plain_overflows = false;

    // Slack beyond the longest step: rows of a dense q or kv and tokens of a ragged one, columns of a page
    // table.
    std::int64_t slack = 0;
    bool always_lens = false;  // dense tensors come with lengths even where all sequences fill them
    bool give_bounds = true;   // Batch::max_q_len and max_kv_len, else 0
    std::optional<std::int64_t> max_q_len, max_kv_len;  // bounds other than the longest step's
    std::int64_t first_token = 0;                       // what a q_indptr or kv_indptr starts with
    bool call_owns_workspace = false;  // else one of exactly the promised size, full of NaN, between guards
    int launches = 2;                  // of each step; all must give the same bits

    std::string full_name() const { return group + "/" + name; }
    // What is asked and of which sizes, on one line: for the report of a failure.
    std::string describe() const;
    PlanSizes plan_sizes() const;
};

enum class Outcome : std::uint8_t { passed, failed, skipped };

struct CaseResult {
    std::string name;
    std::string group;
    std::string phase;  // of a model's attention: prefill, decode or append
    Outcome outcome = Outcome::passed;
    std::string detail;     // why it failed or was skipped, or what was sampled
    std::string backend;    // of the attention kernel: mma, ...
    std::string kernel;     // its tiles, and whether KV was split: "64x64 stages 2 split"
    std::string toolchain;  // the NVRTC that compiled it
    double max_abs_error = 0;
    double element_ratio = 0;   // worst error / allowed of one element
    double pooled_ratio = 0;    // pooled error / allowed
    double rounding_ratio = 0;  // of elements beyond the tolerance: error / bound of rounding weights and O
    int vacuous_pools = 0;      // in which the plain computation overflowed everywhere
    double lse_ratio = 0;
    double milliseconds = 0;
    bool device_lost = false;  // the context is broken: nothing more can run in this process

    bool passed() const { return outcome == Outcome::passed; }
    std::string full_name() const { return group + "/" + name; }
};

}  // namespace attnsmith::check
