// What is asked for. AttentionSpec says which op it is, and how; PlanSizes says how large it will
// typically be, so that the planner can choose tiles and a KV split. Neither holds a pointer.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "attnsmith/export.h"
#include "attnsmith/types.hpp"

namespace attnsmith {

// Op::attention, scaled dot-product attention: o = softmax(mask(softcap(scale * q k^T) + alibi)) v, for each
// query head with the key/value head that its group shares. All counts are in elements.
//
// Op::mla, latent attention as DeepSeek-V2 and V3 decode it: one latent c of head_dim_ckv columns a token is
// both the keys and the values of all query heads, beside head_dim_kpe columns p of its rotary position:
// o = softmax(mask(scale * (q_nope c^T + q_pe p^T))) c, with o of head_dim_ckv columns. The queries are those
// that W_UK was absorbed into. It has one KV head; `scale` has no default, as it follows from head dims of
// the model that are none of these. Windows, chunks, softcap, ALiBi, sinks, page_order and precision do not
// count.
//
// Op::merge joins states s of the same queries that were computed over disjoint sets of keys:
// o = sum_s w_s o_s / sum_s w_s with w_s = exp(lse_s - max lse), and lse = log sum_s exp(lse_s). Of the
// fields count dtype (of the states and of o), head_dim_vo, q_heads, alignment and lse; the others stay as
// they are here.
//
// Op::append writes the keys and values of new tokens into a cache, dense or paged, and their queries to a
// tensor of their own or in place: normalised, then rotated, then rounded once to what they are stored as. Of
// the fields count dtype, the head dims and heads, kv (dense or paged), page_order, page_size, index_dtype,
// alignment, kv_dtype, kv_scale and those from slots on. Its head dims are those of the attention that reads
// the cache: head_dim_qk and head_dim_vo, or head_dim_ckv and head_dim_kpe of latents.
//
// Op::top_k selects the largest scores of rows (TopKTensors). It has no heads: index_dtype alone counts, of
// the bounds of rows. PlanSizes::q_len are the rows, and kv_len the columns.
struct AttentionSpec {
    Op op = Op::attention;          // what is computed
    DType dtype = DType::bf16;      // of q, and of k, v and o unless kv_dtype or o_dtype say otherwise
    std::int64_t head_dim_qk = 0;   // a multiple of 8 from 8 to 512; merge, mla and top_k have none
    std::int64_t head_dim_vo = 0;   // likewise; 0 means head_dim_qk; op mla has none
    std::int64_t head_dim_ckv = 0;  // of latents: theirs and o's, a multiple of 64 to 512
    std::int64_t head_dim_kpe = 0;  // of latents: a multiple of 8 to 64, or 0 for no such columns
    std::int64_t q_heads = 0;       // at least 1; op top_k has none
    std::int64_t kv_heads = 0;      // divides q_heads; 0 means q_heads, or of latents 1, which it is there

    Mask mask = Mask::full;  // causal is bottom-right aligned: the last query sees the last key
    // Query i (in that alignment) sees keys i - window_left .. i + window_right; absent, or -1, is unbounded.
    std::optional<std::int64_t> window_left{};
    std::optional<std::int64_t> window_right{};  // 0 or absent with a causal mask, which ends at the query

    // Tokens, from 1: query i (in that alignment) sees key j only where floor(i / C) == floor(j / C), as far
    // as the mask and its windows let it. Absent: all of them; 0 is refused, as a chunk that holds nothing.
    std::optional<std::int64_t> attention_chunk{};

    // Tokens, from 1, with a causal mask: query i (in that alignment) sees the keys up to the end of its own
    // block, j < (floor(i / B) + 1) * B, as block diffusion models and frame-causal video models do. Windows
    // and chunks limit it as usual. Absent, 0 or 1: the mask ends at the query's own key.
    std::optional<std::int64_t> causal_block{};

    // The factor on q k^T, above 0. Absent it is 1 / sqrt(head_dim_qk), but op mla, for which no default is
    // right, refuses a request without it.
    std::optional<double> scale{};
    std::optional<double> softcap{};  // logits become softcap * tanh(logit / softcap); absent, or 0, is none
    bool alibi = false;               // adds slope[q_head] * (j - i)
    bool sink = false;                // adds exp(sink[q_head]) to each row's denominator
    bool lse = false;                 // also writes the natural-log log-sum-exp of each row

    KvStorage kv = KvStorage::dense;        // how k and v lie in memory
    PageOrder page_order = PageOrder::NHD;  // of paged KV; HND is refused without
    std::int64_t page_size = 0;             // tokens a page; paged KV only
    DType index_dtype = DType::int32;       // of indptrs, lengths and page tables: int32 or int64
    int alignment = 16;  // bytes that every base and stride is a multiple of: 16, 8, 4 or 2

    std::optional<DType> o_dtype{};  // of o: dtype, which it is if absent, or fp32
    // What k and v are stored as: dtype, if absent, or e4m3 or e5m2, beside which head dims are multiples
    // of 16.
    std::optional<DType> kv_dtype{};
    // What k and v are scaled by, with a kv_dtype of 8 bits alone. block128 is of head dims up to 128, or of
    // op mla with a head_dim_ckv of 128, 256 or 512, whose columns of the position are of dtype and
    // have no scale.
    KvScale kv_scale = KvScale::none;
    Precision precision = Precision::standard;        // what the products are computed in
    Consistency consistency = Consistency::standard;  // whether bits may depend on the batch

    // From here to the end fields are of op append alone. With slots table kv_lens are the lengths after the
    // append: token i of a sequence with q_len new ones goes to position kv_len - q_len + i.
    Slots slots = Slots::mapping;
    Rope rope = Rope::none;  // what is rotated with what
    // The first columns of each head, which are rotated: even; 0 with a rope means head_dim_qk, or of latents
    // head_dim_kpe.
    std::int64_t rotary_dim = 0;
    RopeTable rope_table = RopeTable::cos_sin;  // what angles are taken from
    // What cosines and sines of frequencies are multiplied by, above 0; absent, 1. Tables have it already.
    std::optional<double> rope_factor{};
    // RMS norms of each head's row, before it is rotated: of q and k with weights, of v without. The k_norm
    // of latents is of their head_dim_ckv columns.
    bool q_norm = false;
    bool k_norm = false;               // of latents, of their first columns
    bool v_norm = false;               // without weights
    std::optional<double> norm_eps{};  // added to the mean of squares, above 0; absent, 1e-6
    std::optional<DType> q_dtype{};    // of the q that is written: dtype, which it is if absent, e4m3 or e5m2
    // CallStatus::slot_written_twice tells of two tokens of one launch with one slot; with slots mapping
    // alone. The launch compares them all, which takes a time that grows with the square of the tokens.
    bool check_slots = false;

    bool operator==(const AttentionSpec&) const = default;
};

// The sizes to plan for. They are not limits: a kernel planned for one size is right for any.
struct PlanSizes {
    std::int64_t batch = 1;   // sequences
    std::int64_t q_len = 1;   // queries of the longest sequence
    std::int64_t kv_len = 1;  // keys of the longest sequence

    bool operator==(const PlanSizes&) const = default;
};

// One parsed request: what `attnsmith plan --request FILE` reads.
struct AttentionRequest {
    AttentionSpec spec{};   // which attention
    PlanSizes sizes{};      // how large
    std::vector<int> sm{};  // compute capabilities, e.g. 90; empty: the GPU that is present

    bool operator==(const AttentionRequest&) const = default;
};

// Parses and validates a JSON request. Throws InvalidRequest naming the field, Unsupported for an `op`, a
// dtype or a head dimension that is not supported.
ATTNSMITH_API AttentionRequest parse_request(std::string_view json);

// The validated request as JSON with every default filled in. Throws InvalidRequest.
ATTNSMITH_API std::string to_json(const AttentionRequest& request);

// One distinct attention of a model, in one phase.
struct ModelAttention {
    std::string name{};                // e.g. "sliding_attention/decode"
    std::string phase{};               // "prefill", "decode", or "append" of what writes the cache
    std::int64_t layers = 0;           // how many of the model's layers use it
    std::vector<std::string> notes{};  // what was assumed, e.g. "dtype float32 is planned as bf16"
    AttentionRequest request{};        // what to plan for it; `sm` is empty
};

// A part of a model that cannot be planned, with the reason.
struct UnsupportedPart {
    std::string name{};    // which layers, or which combination of words
    std::string reason{};  // one sentence
};

// Why a model's plan may not be the whole truth.
enum class WarningKind : std::uint8_t {
    unknown_type,  // nobody has taught the reader this model_type: it was read as a plain decoder
    unread_field,  // a field that speaks of attention, which nothing read
    not_planned,   // a part of the model with attention of its own, such as a vision tower
    approximated,  // planned, but not exactly as the model computes it
    ignored,       // a part of a word that says nothing, such as the suffix of sm 90f
};

// Spelled as they are named.
ATTNSMITH_API std::string_view to_string(WarningKind kind);

// What a reader of the plan must know and could not see from it. ModelOptions::strict makes it an error.
struct ModelWarning {
    WarningKind kind = WarningKind::unknown_type;  // what may be wrong
    std::string field{};  // as the config.json has it, e.g. "text_config.block_configs"
    std::string text{};   // one sentence

    bool operator==(const ModelWarning&) const = default;
};

// What a config.json was read as.
struct Model {
    std::string model_type{};                    // as the config.json has it
    std::vector<ModelAttention> attentions{};    // each distinct one once for each phase
    std::vector<UnsupportedPart> unsupported{};  // what cannot be planned
    std::vector<ModelWarning> warnings{};        // what may be planned wrong
};

// What a config.json does not say: how the program that serves the model lays out its memory, and how large
// its batches are.
struct ModelOptions {
    std::optional<DType> dtype{};  // overrides the config's
    // Absent: paged, and ragged for the prefill of a model with latents, whose keys are made for it alone.
    std::optional<KvStorage> kv{};
    // This and the next six: as AttentionSpec's.
    std::int64_t page_size = 16;                      // tokens, of paged KV
    PageOrder page_order = PageOrder::NHD;            // of paged KV
    DType index_dtype = DType::int32;                 // int32 or int64
    int alignment = 16;                               // bytes
    bool lse = false;                                 // whether the log-sum-exp is written
    std::optional<DType> o_dtype{};                   // as AttentionSpec::o_dtype
    std::optional<DType> kv_dtype{};                  // as AttentionSpec::kv_dtype
    std::optional<KvScale> kv_scale{};                // as AttentionSpec::kv_scale
    Precision precision = Precision::standard;        // as AttentionSpec::precision
    Consistency consistency = Consistency::standard;  // as AttentionSpec::consistency
    // How op append is told where new tokens go: it is planned for each kind of layers, too. Absent: it is
    // not.
    std::optional<Slots> slots{};
    std::int64_t batch = 8;            // sequences, of both phases
    std::int64_t q_len = 1024;         // queries of a prefill
    std::int64_t kv_len = 4096;        // keys, of both phases
    std::int64_t tensor_parallel = 1;  // GPUs that the heads are divided over
    bool strict = false;               // a warning or an unsupported part is an error: Unsupported
};

// Parses a JSON object with any of these fields, all of them words of a request but tensor_parallel and
// strict. Throws InvalidRequest naming a field that is unknown or whose value is wrong.
ATTNSMITH_API ModelOptions parse_model_options(std::string_view json);

// Reads a Hugging Face config.json (its text). Throws InvalidRequest when it describes no attention or is
// malformed; with ModelOptions::strict also Unsupported, whose refusals are the unsupported parts by name and
// the warnings by field. An encoder keeps no keys: where paged KV is asked for, it is planned with dense KV,
// and a note says so. A model whose indexer selects keys (index_topk) is planned as dense attention while
// ModelOptions::kv_len is at most so many, with a note and a warning; with more its layers are unsupported.
ATTNSMITH_API Model parse_model(std::string_view config_json, const ModelOptions& options = {});

// {"model_type", "attentions": [{"name", "phase", "layers", "notes", "request": {...}}], "unsupported":
// [{"name", "reason"}], "warnings": [{"kind", "field", "text"}]}. Each request is one that parse_request
// takes.
ATTNSMITH_API std::string to_json(const Model& model);

}  // namespace attnsmith
