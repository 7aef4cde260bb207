// A Hugging Face config.json as the attentions that it asks for.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "attnsmith/error.hpp"
#include "attnsmith/spec.hpp"
#include "models/appends.hpp"
#include "models/heads.hpp"
#include "models/key_selection.hpp"
#include "models/layers.hpp"
#include "models/options.hpp"
#include "models/query_factors.hpp"
#include "models/reader.hpp"
#include "models/shared_kv.hpp"
#include "models/stored_kv.hpp"
#include "models/types.hpp"
#include "models/unknown_types.hpp"
#include "models/warnings.hpp"
#include "problem/json_text.hpp"
#include "problem/limits.hpp"
#include "problem/request/problem.hpp"
#include "problem/vocabulary.hpp"

namespace attnsmith {
namespace problem {
namespace {

// Fields that change the attention itself in a way that no kernel here computes. Planning without them would
// give wrong answers in silence.
struct Obstacle {
    std::string_view name;
    std::string_view reason;
};

constexpr Obstacle kObstacles[] = {
    {"relative_attention_num_buckets", "a learned relative position bias on the logits is not supported"},
    {"relative_attention", "disentangled relative attention is not supported"},
    {"use_relative_position_bias", "a learned relative position bias on the logits is not supported"},
    {"use_shared_relative_position_bias", "a learned relative position bias on the logits is not supported"},
    {"blocksparse_block_size", "block-sparse attention is not supported"},
    {"attention_window", "local attention with global tokens is not supported"},
    {"index_topk_blocks", "attention to blocks of keys that an indexer selects is not supported"},
    {"index_kpool", "attention to pools of keys that an indexer selects is not supported"},
    {kSelectedKeys, "attention to keys that an indexer selects is not supported"},
    {"indexer_n_heads", "attention to keys that an indexer selects is not supported"},
    {"indexer_budget", "attention to keys that an indexer selects is not supported"},
    {"sparse_config", "sparse attention is not supported"},
    {"linear_attn_config", "linear attention is not supported"},
    {"hybrid_layer_pattern", "this pattern of layers is not read by this version"},
    {"scale_attn_by_inverse_layer_idx", "a scale that differs from layer to layer is not supported"},
};

bool is_bidirectional(ModelReader& model) {
    if (model.model_type() == "vaultgemma") {  // whose class does not read it
        model.disregard({"use_bidirectional_attention"});
    } else if (const auto given = model.find({"use_bidirectional_attention"})) {
        if (given->value == true || given->value == "all") return true;
        if (given->value != false && given->value != "vision")
            throw InvalidRequest(given->field, describe(given->value), "true, false, \"all\" or \"vision\"");
    }
    if (!model.boolean({"is_causal"}).value_or(true)) return true;
    if (model.type_class() == TypeClass::encoder) return !model.is_true({"is_decoder"});
    model.disregard({"is_decoder"});
    return false;
}

// Baichuan's 7B models rotate; the code of its larger ones has ALiBi. Nothing else in the files tells them
// apart.
bool is_large_baichuan(ModelReader& model) {
    constexpr std::int64_t kHiddenSizeOf7B = 4096;
    return model.model_type() == "baichuan" && model.count({"hidden_size"}) != kHiddenSizeOf7B;
}

bool has_alibi(ModelReader& model) {
    if (is_large_baichuan(model)) return true;
    return model.model_type() == "bloom" || model.is_true({"alibi", "use_alibi", "attn_config.alibi"}) ||
           model.word({"position_embedding_type"}) == "alibi";
}

// Throws where a field is missing without which a plain decoder would be planned of what is none.
void require_deciding_field(ModelReader& model) {
    const std::vector<std::string_view> names = deciding_fields(model.model_type());
    const auto is_given = [&](std::string_view name) { return model.find({name}).has_value(); };
    if (names.empty() || std::ranges::any_of(names, is_given)) return;
    const std::string field = std::string(names.front());
    throw InvalidRequest(model.prefix() + field, model.has(field) ? "null" : "nothing",
                         fmt::format("{}, which says what the attention of {} is", fmt::join(names, " or "),
                                     field_name(model.model_type())));
}

// Why no attention of the model can be planned; empty where there is no such reason.
std::string obstacle(ModelReader& model, bool bidirectional) {
    for (const Obstacle& known : kObstacles) {
        if (known.name == "index_topk_blocks" && model.code() == "minimax_m3_vl_text") {
            model.disregard({"index_*"});  // of layers whose layer_types says so
            continue;
        }
        if (known.name == kSelectedKeys && selects_single_keys(model.code())) continue;
        const auto found = model.find({known.name});
        const bool off = !found || found->value == false || found->value == 0;
        if (!off) return fmt::format("{} ({})", known.reason, found->field);
    }
    if (const std::string_view reason = refusal_of(model.model_type()); !reason.empty())
        return std::string(reason);
    if (model.word({"position_embedding_type"}).value_or("").starts_with("relative")) {
        return fmt::format("relative positions on the logits are not supported ({}position_embedding_type)",
                           model.prefix());
    }
    const bool symmetric_alibi = bidirectional && has_alibi(model);
    return symmetric_alibi ? "a symmetric ALiBi of an encoder is not supported" : "";
}

// Why a prefill cannot be planned, where the decode can; empty where it can. The tokens of a prefix see each
// other, those behind it only what was before.
std::string prefix_reason(ModelReader& model) {
    constexpr const char* kReason = "a mask whose prefix is seen by all is not supported";
    if (class_of(model.file_model_type()) == TypeClass::prefix_lm)
        return fmt::format("{} (model_type {})", kReason, model.file_model_type());
    for (const std::string_view name : {"attn_config.prefix_lm", "position_encoding_2d"}) {
        if (model.is_true({name})) return fmt::format("{} ({}{})", kReason, model.prefix(), name);
    }
    return "";
}

struct DTypeWord {
    std::string_view name;
    DType dtype;
};
constexpr DTypeWord kTorchDTypes[] = {
    {"bfloat16", DType::bf16}, {"float16", DType::fp16}, {"half", DType::fp16}};

// The names without "torch." are the same in either spelling.
std::string dtype_name(std::string name) {
    if (name.starts_with("torch.")) name.erase(0, std::string_view("torch.").size());
    return name;
}

void warn_of_two_dtypes(ModelReader& model) {
    const auto given = model.inside_and_around("dtype");
    for (const ModelReader::Found& older : model.inside_and_around("torch_dtype")) {
        const bool beside =
            !given.empty() && older.field.ends_with("torch_dtype") &&
            older.field.size() - given.back().field.size() == std::string_view("torch_").size();
        if (!beside || !older.value.is_string() || !given.back().value.is_string()) continue;
        const auto first = given.back().value.get<std::string>(), second = older.value.get<std::string>();
        if (dtype_name(first) == dtype_name(second)) continue;
        model.warn(WarningKind::approximated, older.field,
                   fmt::format("{} ({}) and {} ({}) differ: planned as the first", given.back().field,
                               quote(first), older.field, quote(second)));
    }
}

DType planned_dtype(ModelReader& model, const ModelOptions& options) {
    if (options.dtype) {
        kFloatDTypeWords.check_value("dtype", *options.dtype);  // or no part of the model is supported
        return *options.dtype;
    }
    constexpr const char* kNames[] = {"dtype",
                                      "torch_dtype"};  // of two that differ, transformers takes the first
    std::string given = model.inherited_word({kNames[0], kNames[1]}).value_or("auto");
    warn_of_two_dtypes(model);
    given = dtype_name(std::move(given));
    if (given == "auto") {
        model.note("dtype is not given: planned as bf16");
        return DType::bf16;
    }
    if (given == "float32" || given == "float") {
        model.note(fmt::format("dtype {} is planned as bf16", given));
        return DType::bf16;
    }
    const auto* found = std::ranges::find(kTorchDTypes, std::string_view(given), &DTypeWord::name);
    if (found != std::end(kTorchDTypes)) return found->dtype;
    throw InvalidRequest(model.inherited({kNames[0], kNames[1]})->field, quote(given),
                         "bfloat16, float16 or float32, or a dtype given beside the config");
}

// What all attentions of a model have in common.
AttentionSpec common_spec(ModelReader& model, const ModelOptions& options, bool bidirectional) {
    AttentionSpec spec = request_of(options).spec;
    spec.dtype = planned_dtype(model, options);
    set_stored_kv(model, options, bidirectional, spec);
    spec.mask = bidirectional ? Mask::full : Mask::causal;
    const ModelReader::Names softcaps = {"attn_logit_softcapping", "max_attn_value"};
    spec.softcap = model.positive(softcaps);
    model.derive("softcap", softcaps);
    spec.alibi = has_alibi(model);
    if (bidirectional && spec.kv == KvStorage::paged) {
        spec.kv = KvStorage::dense;
        model.note("an encoder keeps no keys: planned with dense KV instead of paged");
    }
    if (spec.kv != KvStorage::paged) {
        spec.page_size = 0;
        spec.page_order = AttentionSpec{}.page_order;
    } else if (spec.page_size == 0) {  // to a spec this is a field that is not there
        throw InvalidRequest("page_size", "0",
                             fmt::format("an integer from 1 to {}, since kv is paged", kMaxPageSize));
    }
    if (is_large_baichuan(model)) model.note("ALiBi: baichuan rotates only where hidden_size is 4096");
    if (spec.alibi && (model.model_type() == "falcon" || model.model_type() == "RefinedWeb")) {
        model.note("falcon scales its ALiBi slopes by 1/sqrt(head_dim): give them so scaled");
    }
    return spec;
}

bool has_sinks(const ModelReader& model, const LayerKind& kind) {
    const Sinks sinks = sinks_of(model.model_type());
    return sinks == Sinks::all || (sinks == Sinks::sliding && kind.window_left.has_value());
}

class Planner {
  public:
    Planner(ModelReader& model, const ModelOptions& options) : model_(model), options_(options) {}

    Model plan() {
        // A file's text goes to terminals and logs as plain words only.
        if (!model_.file_model_type().empty()) result_.model_type = field_name(model_.file_model_type());
        if (model_.type_class() == TypeClass::without_attention) {
            throw InvalidRequest("model_type", quote(model_.model_type()), "a model with attention");
        }
        const bool bidirectional = is_bidirectional(model_);
        divide_heads(read_heads(model_, first_layer(model_)),
                     options_.tensor_parallel);  // missing fields first
        if (std::string reason = encoder_reason(model_); !reason.empty()) {
            refuse("attention", std::move(reason));
        } else if (reason = obstacle(model_, bidirectional); !reason.empty()) {
            refuse("attention", std::move(reason));
        } else {
            require_deciding_field(model_);
            plan_kinds(bidirectional);
        }
        if (std::string reason = unread_structure_reason(model_);
            !reason.empty() && !result_.attentions.empty()) {
            result_.attentions.clear();
            refuse("attention", std::move(reason));
        }
        for (const ModelWarning& warning : model_.warnings()) result_.warnings.push_back(warning);
        for (ModelAttention& attention : result_.attentions)
            attention.notes.insert(attention.notes.begin(), model_.notes().begin(), model_.notes().end());
        for (ModelWarning& warning : find_warnings(model_, result_.attentions))
            result_.warnings.push_back(std::move(warning));
        sort_by_weight(result_.warnings);
        return std::move(result_);
    }

  private:
    void plan_kinds(bool bidirectional) {
        const AttentionSpec common = common_spec(model_, options_, bidirectional);
        std::vector<LayerKind> kinds = layer_kinds(model_, bidirectional);
        note_query_factors(model_, kinds);
        note_shared_kv(model_, kinds);
        selected_ = selected_keys(model_);
        for (const LayerKind& kind : kinds) add_kind(kind, common, bidirectional);
        if (kinds.empty())
            refuse("attention",
                   fmt::format("no layer has an attention: {}", fmt::join(model_.notes(), "; ")));
        if (model_.encoder_decoder()) {
            constexpr const char* kReason =
                "only the decoder's self-attention of an encoder-decoder model is planned";
            refuse("encoder_attention", kReason);
            refuse("cross_attention", kReason);
            model_.disregard({"encoder_*", "num_encoder_*", "cross_attention_*"});
        }
        approximate();
        if (selected_ && !result_.attentions.empty()) say_condition();
        if (result_.attentions.empty()) return;
        for (ModelWarning& warning : find_own_code(model_, bidirectional))
            result_.warnings.push_back(std::move(warning));
    }

    // What no field of one attention says.
    void approximate() {
        constexpr const char* kImages =
            "the tokens of one image see each other in a prefill, which is planned causal";
        const auto seen = model_.find({"use_bidirectional_attention"});
        if (seen && seen->value == "vision") {
            result_.warnings.push_back({WarningKind::approximated, seen->field, kImages});
        } else if (class_of(model_.file_model_type()) == TypeClass::image_tokens) {
            result_.warnings.push_back({WarningKind::approximated, "model_type", kImages});
        }
    }

    // Kernels depend on no lengths, so that what is planned here could be launched with more keys: the plan
    // and whatever only lists or builds its kernels says so.
    void say_condition() {
        const std::string condition = dense_condition(*selected_);
        model_.note(condition);
        result_.warnings.push_back({WarningKind::approximated, selected_->source.field, condition});
    }

    void refuse(std::string name, std::string reason) {
        result_.unsupported.push_back({std::move(name), std::move(reason)});
    }

    void add_kind(const LayerKind& kind, AttentionSpec spec, bool bidirectional) {
        if (!kind.refusal.empty()) return refuse(kind.name, kind.refusal);
        const Heads heads = divide_heads(read_heads(model_, kind), options_.tensor_parallel);
        spec.head_dim_qk = heads.head_dim_qk;
        spec.head_dim_vo = heads.head_dim_vo;
        spec.q_heads = heads.q_heads;
        spec.kv_heads = heads.kv_heads;
        spec.scale = heads.scale;
        spec.sink = has_sinks(model_, kind);
        spec.window_left = kind.window_left;
        spec.window_right = kind.window_right;
        spec.attention_chunk = kind.attention_chunk;
        // An encoder's keys are its queries.
        const std::int64_t kv_len = bidirectional ? options_.q_len : options_.kv_len;
        if (selected_) {
            if (std::string reason = selection_refusal(*selected_, kv_len); !reason.empty())
                return refuse(kind.name, std::move(reason));
        }
        try {
            const std::string prefix = prefix_reason(model_);
            if (prefix.empty()) {
                add(kind, "prefill", heads.latent ? latent_prefill(spec) : spec,
                    {options_.batch, options_.q_len, kv_len});
            } else {
                refuse(kind.name + "/prefill", prefix);
            }
            if (bidirectional) return;
            if (heads.latent) return add_latent_decode(kind, spec);
            add(kind, "decode", spec, {options_.batch, 1, options_.kv_len});
            add_append(kind, spec);
        } catch (const InvalidRequest& error) {
            const bool head_dim = error.field() == "head_dim_qk" || error.field() == "head_dim_vo";
            if (!head_dim) throw model_.traced(error);
            refuse(kind.name, model_.traced(error).what());
            if (heads.latent) add_latent_decode(kind, spec);
        } catch (const Unsupported& error) {
            refuse(kind.name, error.what());
            if (heads.latent) add_latent_decode(kind, spec);
        }
    }

    void add(const LayerKind& kind, std::string phase, const AttentionSpec& spec, const PlanSizes& sizes) {
        const Problem checked = validate(spec, sizes);
        ModelAttention& attention = result_.attentions.emplace_back();
        attention.name = kind.name + "/" + phase;
        attention.phase = std::move(phase);
        attention.layers = kind.layers;
        attention.request.spec = checked.spec;
        attention.request.sizes = checked.sizes;
        attention.notes = kind.notes;
    }

    // Keys and values that are made of latents serve one prefill: they are in no cache, so in no pages.
    AttentionSpec latent_prefill(const AttentionSpec& spec) {
        AttentionSpec prefill = with_expanded_keys(model_, spec);
        if (options_.kv) return prefill;
        prefill.kv = KvStorage::ragged;
        prefill.page_size = 0;
        prefill.page_order = AttentionSpec{}.page_order;
        model_.note(
            "kv is not given: a prefill of latents is planned with ragged KV, a decode with paged KV");
        return prefill;
    }

    // A decode works on the latents themselves, which all query heads share. `prefill` is the attention of
    // the heads that they are expanded into.
    void add_latent_decode(const LayerKind& kind, const AttentionSpec& prefill) {
        const std::string name = kind.name + "/decode";
        const ModelReader::Names rank = {"kv_lora_rank"}, rope = {"qk_rope_head_dim"};
        AttentionSpec spec{.op = Op::mla, .dtype = prefill.dtype};
        spec.head_dim_ckv = model_.required_count(rank);
        spec.head_dim_kpe = model_.required_count(rope);
        model_.derive("head_dim_ckv", rank);
        model_.derive("head_dim_kpe", rope);
        spec.q_heads = prefill.q_heads;
        spec.mask = prefill.mask;
        spec.scale = prefill.scale.value_or(1.0 / std::sqrt(static_cast<double>(prefill.head_dim_qk)));
        spec.lse = prefill.lse;
        spec.kv = prefill.kv, spec.page_size = prefill.page_size;  // page_order: there is one KV head
        spec.index_dtype = prefill.index_dtype, spec.alignment = prefill.alignment;
        spec.o_dtype = prefill.o_dtype;
        spec.kv_dtype = prefill.kv_dtype, spec.kv_scale = prefill.kv_scale;
        spec.consistency = prefill.consistency;
        if (prefill.precision != Precision::standard)
            return refuse(name, "op mla has no precision but the default");
        if (prefill.softcap || prefill.alibi || prefill.sink || prefill.window_left || prefill.window_right ||
            prefill.attention_chunk)
            return refuse(name, "op mla has no windows, chunks, softcap, ALiBi or sinks");
        try {
            add(kind, "decode", spec, {options_.batch, 1, options_.kv_len});
            add_append(kind, spec);
        } catch (const InvalidRequest& error) {
            const bool dims = error.field() == "head_dim_ckv" || error.field() == "head_dim_kpe";
            if (!dims) throw model_.traced(error);
            refuse(name, model_.traced(error).what());
        } catch (const Unsupported& error) {
            refuse(name, error.what());
        }
    }

    // What writes the cache that `decode` reads, where the options say how it is told the places.
    void add_append(const LayerKind& kind, const AttentionSpec& decode) {
        if (!options_.slots) return;
        LayerAppend append = append_of(model_, kind, decode, options_);
        const std::string name = kind.name + "/append";
        if (!append.refusal.empty()) return refuse(name, append.refusal);
        try {
            LayerKind noted = kind;
            noted.notes.insert(noted.notes.end(), append.notes.begin(), append.notes.end());
            add(noted, "append", append.spec, {options_.batch, 1, options_.kv_len});
        } catch (const InvalidRequest& error) {
            refuse(name, error.what());
        } catch (const Unsupported& error) {
            refuse(name, error.what());
        }
    }

    ModelReader& model_;
    const ModelOptions& options_;
    std::optional<ModelReader::Sourced> selected_;  // the keys that an indexer selects, where it does
    Model result_;
};

}  // namespace
}  // namespace problem

Model parse_model(std::string_view config_json, const ModelOptions& options) {
    problem::check_append_options(options);
    problem::ModelReader model(config_json);
    Model planned = problem::Planner(model, options).plan();
    if (options.strict) {
        std::vector<Refusal> doubts = problem::doubts(planned);
        if (!doubts.empty())
            throw Unsupported("not all of this model is planned as it is", std::move(doubts));
    }
    return planned;
}

}  // namespace attnsmith
