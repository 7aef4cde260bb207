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
// both the keys and the values of all query heads, with head_dim_kpe columns p of its rotary position:
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
// Op::top_k selects the columns of the k largest scores of each row (TopKTensors); k is the width of
// TopKTensors::indices. Of the fields count op and index_dtype, the type of the bounds of rows. Of PlanSizes
// count q_len, the rows, and kv_len, the columns.
struct AttentionSpec {
    Op op = Op::attention;  // what is computed
    // Element type of q, and of k, v and o unless kv_dtype or o_dtype say otherwise: fp16 or bf16.
    DType dtype = DType::bf16;
    // Columns of q and k, a multiple of 8 from 8 to 512; not used by op merge, mla and top_k.
    std::int64_t head_dim_qk = 0;
    // Columns of v and o, a multiple of 8 from 8 to 512; 0 means head_dim_qk. Not used by op mla and top_k.
    std::int64_t head_dim_vo = 0;
    // Latents: columns of the latent and of o, a multiple of 64 to 512.
    std::int64_t head_dim_ckv = 0;
    // Latents: columns of the rotary position, a multiple of 8 to 64, or 0 for no such columns.
    std::int64_t head_dim_kpe = 0;
    std::int64_t q_heads = 0;   // query heads, at least 1; op top_k has none
    std::int64_t kv_heads = 0;  // KV heads: divides q_heads; 0 means q_heads; with latents always 1

    // Which keys a query sees; causal is bottom-right aligned: the last query sees the last key.
    Mask mask = Mask::full;
    // Keys that query i sees before its own, in the alignment of the mask: i - window_left and on. Absent, or
    // -1, is unbounded.
    std::optional<std::int64_t> window_left{};
    // Keys that query i sees after its own: up to i + window_right. Absent, or -1, is unbounded; with a
    // causal mask, which ends at the query, it is 0 or absent.
    std::optional<std::int64_t> window_right{};

    // Tokens C of a chunk: query i, in the alignment of the mask, sees key j only if floor(i / C) ==
    // floor(j / C), as far as the mask and its windows let it. Absent, or 0, is no chunks.
    std::optional<std::int64_t> attention_chunk{};

    // Tokens B of a block, from 1, with a causal mask: query i, in the alignment of the mask, sees the keys
    // up to the end of its own block, j < (floor(i / B) + 1) * B, as block diffusion models and frame-causal
    // video models do. Windows and chunks limit it as usual. Absent, 0 or 1: the mask ends at the query's own
    // key.
    std::optional<std::int64_t> causal_block{};

    // The factor on q k^T, above 0. Absent it is 1 / sqrt(head_dim_qk), except for op mla, for which no
    // default is right: a request without it is refused.
    std::optional<double> scale{};
    // Logits become softcap * tanh(logit / softcap). Absent, or 0, is none.
    std::optional<double> softcap{};
    bool alibi = false;  // adds slope[q_head] * (j - i)
    bool sink = false;   // adds exp(sink[q_head]) to the denominator of each row
    bool lse = false;    // also writes the natural-log log-sum-exp of each row

    KvStorage kv = KvStorage::dense;        // how k and v lie in memory
    PageOrder page_order = PageOrder::NHD;  // order of the axes of a page; HND is refused without pages
    std::int64_t page_size = 0;             // tokens a page, of paged KV only
    DType index_dtype = DType::int32;       // type of indptrs, lengths and page tables: int32 or int64
    int alignment = 16;  // bytes that every base and stride is a multiple of: 16, 8, 4 or 2

    // Element type of o: dtype, which it is if absent, or fp32.
    std::optional<DType> o_dtype{};
    // What k and v are stored as: dtype, which it is if absent, or e4m3 or e5m2, with which head dims are
    // multiples of 16.
    std::optional<DType> kv_dtype{};
    // What stored k and v are scaled by, only with a kv_dtype of 8 bits. block128 is for head dims up to 128,
    // and for op mla with a head_dim_ckv of 128, 256 or 512, whose position columns are of dtype and have no
    // scale.
    KvScale kv_scale = KvScale::none;
    Precision precision = Precision::standard;        // what the products are computed in
    Consistency consistency = Consistency::standard;  // whether bits may depend on the batch

    // Op append: how a token finds its slot in the cache. With table, kv_lens are the lengths after the
    // append: token i of a sequence with q_len new ones goes to position kv_len - q_len + i.
    Slots slots = Slots::mapping;
    // Op append: which columns are rotated with one another.
    Rope rope = Rope::none;
    // Op append: the first columns of each head, which are rotated; even. 0 with a rope means head_dim_qk,
    // with latents head_dim_kpe.
    std::int64_t rotary_dim = 0;
    // Op append: what the angles of a rotation are taken from.
    RopeTable rope_table = RopeTable::cos_sin;
    // Op append: what cosines and sines of frequencies are multiplied by, above 0; absent, 1. Tables of
    // cosines and sines have it already.
    std::optional<double> rope_factor{};
    // Op append: an RMS norm of each head of q with weights, before the rotation.
    bool q_norm = false;
    // Op append: an RMS norm of each head of k with weights, before the rotation; with latents, of their
    // head_dim_ckv columns.
    bool k_norm = false;
    // Op append: an RMS norm of each head of v, without weights.
    bool v_norm = false;
    // Op append: what is added to the mean of squares of a norm, above 0; absent, 1e-6.
    std::optional<double> norm_eps{};
    // Op append: element type of q_out: dtype, which it is if absent, e4m3 or e5m2.
    std::optional<DType> q_dtype{};
    // Op append with slots mapping: CallStatus::slot_written_twice() reports two tokens of one launch with
    // the same slot. The launch compares all tokens, which takes a time that grows with their square.
    bool check_slots = false;

    bool operator==(const AttentionSpec&) const = default;
};

// The sizes to plan for. They are not limits: a kernel planned for one size is right for any. PlanSizes{} is
// a decode of one sequence with one key; a kernel planned for it is slow for a prefill, and prepare() logs a
// warning.
struct PlanSizes {
    std::int64_t batch = 1;   // sequences
    std::int64_t q_len = 1;   // queries of the longest sequence
    std::int64_t kv_len = 1;  // keys of the longest sequence

    bool operator==(const PlanSizes&) const = default;
};

// One parsed request: what `attnsmith plan --request FILE` reads.
struct AttentionRequest {
    AttentionSpec spec{};   // what is asked for
    PlanSizes sizes{};      // how large it will typically be
    std::vector<int> sm{};  // compute capabilities, such as 90; empty: the GPU that is present

    bool operator==(const AttentionRequest&) const = default;
};

// Parses and validates a JSON request. Throws InvalidRequest naming the field, Unsupported for an `op`, a
// dtype or a head dimension that is not supported.
[[nodiscard]] ATTNSMITH_API AttentionRequest parse_request(std::string_view json);

// The validated request as JSON with every default filled in. Throws InvalidRequest.
[[nodiscard]] ATTNSMITH_API std::string to_json(const AttentionRequest& request);

// One distinct attention of a model, in one phase.
struct ModelAttention {
    std::string name{};                // such as "sliding_attention/decode"
    std::string phase{};               // "prefill", "decode", or "append" for what writes the cache
    std::int64_t layers = 0;           // how many layers of the model use it
    std::vector<std::string> notes{};  // what was assumed, such as "dtype float32 is planned as bf16"
    AttentionRequest request{};        // what to plan for it; its `sm` is empty
};

// A part of a model that cannot be planned, with the reason.
struct UnsupportedPart {
    std::string name{};    // which layers, or which combination of words
    std::string reason{};  // one sentence
};

// Why a plan of a model may be incomplete or wrong. Words: unknown_type, unread_field, not_planned,
// approximated, ignored. More may be added; the numbers never change.
enum class WarningKind : std::uint8_t {
    unknown_type = 1,  // a model_type that the reader does not know, read as a plain decoder
    unread_field = 2,  // a field about attention that nothing read
    not_planned = 3,   // a part of the model with attention of its own, such as a vision tower
    approximated = 4,  // planned, but not exactly as the model computes it
    ignored = 5,       // a part of a word that was ignored, such as the suffix of sm 90f
};

// The word of a warning's kind, as JSON has it.
[[nodiscard]] ATTNSMITH_API std::string_view to_string(WarningKind kind) noexcept;
// The kind of warning that a word stands for; absent for a word that is none of the enumeration's.
template <>
[[nodiscard]] ATTNSMITH_API std::optional<WarningKind> from_string<WarningKind>(
    std::string_view word) noexcept;

// What a reader of the plan must know and cannot see from it. ModelOptions::strict makes it an error.
struct ModelWarning {
    WarningKind kind = WarningKind::unknown_type;  // what may be wrong
    std::string field{};  // the field's name in the config.json, such as "text_config.block_configs"
    std::string text{};   // one sentence

    bool operator==(const ModelWarning&) const = default;
};

// What a config.json was read as.
struct Model {
    std::string model_type{};                    // the model_type of the config.json
    std::vector<ModelAttention> attentions{};    // each distinct one once for each phase
    std::vector<UnsupportedPart> unsupported{};  // what cannot be planned
    std::vector<ModelWarning> warnings{};        // what may be planned wrong
};

// What a config.json does not say: how the program that serves the model lays out its memory, and how large
// its batches are.
struct ModelOptions {
    std::optional<DType> dtype{};  // element type of q, k and v, in place of the config's
    // How keys and values lie in memory. Absent: paged, and ragged for the prefill of a model with latents,
    // whose keys are made for it alone.
    std::optional<KvStorage> kv{};
    std::int64_t page_size = 16;            // tokens a page, of paged KV
    PageOrder page_order = PageOrder::NHD;  // order of the axes of a page
    DType index_dtype = DType::int32;       // type of indptrs, lengths and page tables: int32 or int64
    int alignment = 16;  // bytes that every base and stride is a multiple of: 16, 8, 4 or 2
    bool lse = false;    // whether the log-sum-exp of each row is written
    // Element type of o: that of q, which it is if absent, or fp32.
    std::optional<DType> o_dtype{};
    // What k and v are stored as: the type of q, e4m3 or e5m2. Absent: as the config.json says, else the type
    // of q.
    std::optional<DType> kv_dtype{};
    // What stored k and v are scaled by. Absent: as the config.json says, else nothing.
    std::optional<KvScale> kv_scale{};
    Precision precision = Precision::standard;        // what the products are computed in
    Consistency consistency = Consistency::standard;  // whether bits may depend on the batch
    // How op append is told where new tokens go: then it is planned for each kind of layers, too. Absent: no
    // append is planned.
    std::optional<Slots> slots{};
    // With `slots`: AttentionSpec::rope_table of the appends of layers that rotate. Absent: its default.
    std::optional<RopeTable> rope_table{};
    // With `slots`: AttentionSpec::q_dtype of the appends. Absent: its default.
    std::optional<DType> q_dtype{};
    // With `slots`: AttentionSpec::check_slots of the appends.
    bool check_slots = false;
    std::int64_t batch = 8;            // sequences, of both phases
    std::int64_t q_len = 1024;         // queries of a prefill
    std::int64_t kv_len = 4096;        // keys, of both phases
    std::int64_t tensor_parallel = 1;  // GPUs that the heads are divided over
    bool strict = false;               // a warning or an unsupported part is an error: Unsupported
};

// Parses a JSON object with any of the fields of ModelOptions, all of them words of a request but
// tensor_parallel and strict. Throws InvalidRequest naming a field that is unknown or whose value is wrong.
[[nodiscard]] ATTNSMITH_API ModelOptions parse_model_options(std::string_view json);

// Reads a Hugging Face config.json (its text). Throws InvalidRequest when it describes no attention or is
// malformed; with ModelOptions::strict also Unsupported, whose refusals are the unsupported parts by name and
// the warnings by field. An encoder keeps no keys: where paged KV is asked for, it is planned with dense KV,
// and a note says so. A model whose indexer selects keys (index_topk) is planned as dense attention while
// ModelOptions::kv_len is at most index_topk, with a note and a warning; with more its layers are
// unsupported.
[[nodiscard]] ATTNSMITH_API Model parse_model(std::string_view config_json, const ModelOptions& options = {});

// {"model_type", "attentions": [{"name", "phase", "layers", "notes", "request": {...}}], "unsupported":
// [{"name", "reason"}], "warnings": [{"kind", "field", "text"}]}. Each request is one that parse_request
// takes.
[[nodiscard]] ATTNSMITH_API std::string to_json(const Model& model);

}  // namespace attnsmith
