#include "models/layers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <string_view>
#include <utility>

#include "attnsmith/error.hpp"
#include "models/blocks.hpp"
#include "models/schemes.hpp"
#include "problem/json_text.hpp"
#include "problem/vocabulary.hpp"

namespace attnsmith::problem {
namespace {

[[noreturn]] void refuse_missing_window(ModelReader& model, std::int64_t layers) {
    std::string_view field = kWindowFields.front();
    for (const std::string_view name : kWindowFields) {
        if (model.has(name)) field = name;
    }
    throw InvalidRequest(model.prefix() + std::string(field), model.has(field) ? "null" : "nothing",
                         fmt::format("a window, since {} layers slide", layers));
}

// Sets the window of a sliding kind, or makes it a full one where the config turns windows off.
void set_window(ModelReader& model, LayerKind& kind, bool bidirectional) {
    if (!model.boolean({"use_sliding_window"}).value_or(true)) {
        model.warn(
            WarningKind::approximated, model.prefix() + "use_sliding_window",
            fmt::format("use_sliding_window is false, though {} layers are said to slide: planned without "
                        "a window",
                        kind.layers));
        kind.name = kFull;
        return;
    }
    if (const auto both_sides = model.count({"local_attention"}); both_sides && bidirectional) {
        kind.window_left = kind.window_right = *both_sides / 2;
        model.derive("window_left", {"local_attention"});
        model.derive("window_right", {"local_attention"});
        return;
    }
    const auto window = given_window(model);
    if (!window) refuse_missing_window(model, kind.layers);
    if (bidirectional && model.code() == "gemma3_text") {
        kind.window_left = kind.window_right = *window / 2;  // EmbeddingGemma's class halves it
    } else if (bidirectional &&
               (model.code() == "openai_privacy_filter" || model.model_type() == "embedding_gemma2_text")) {
        kind.window_left = kind.window_right = *window;
    } else if (bidirectional) {
        kind.refusal =
            "how far a sliding_window of a bidirectional model looks ahead is not in its config.json";
    } else {
        kind.window_left = *window - 1;  // Hugging Face's window counts the query's own key
    }
}

void set_chunk(ModelReader& model, LayerKind& kind) {
    kind.attention_chunk = model.count({"attention_chunk_size"});
    model.derive("attention_chunk", {"attention_chunk_size"});
    if (!kind.attention_chunk) {
        kind.refusal =
            fmt::format("layer type {} ({} layers) needs an attention_chunk_size", kind.name, kind.layers);
    }
}

void finish(ModelReader& model, LayerKind& kind, bool bidirectional) {
    if (kind.name == kSliding) {
        set_window(model, kind, bidirectional);
    } else if (kind.name == kChunked) {
        set_chunk(model, kind);
        if (bidirectional) kind.refusal = "what a chunk of a bidirectional model sees is not supported";
    } else if (kind.name != kFull) {
        kind.name = field_name(kind.name);
        kind.refusal = fmt::format("layer type {} ({} layers) is not supported", kind.name, kind.layers);
    }
}

// Newer files of Nemotron-H leave the number to the list.
std::optional<ModelReader::Sourced> listed_layers(ModelReader& model) {
    if (model.code() != "nemotron_h" || model.has("num_hidden_layers")) return std::nullopt;
    const auto list = model.find({"hybrid_override_pattern", "layers_block_type", "layer_types"});
    if (!list) return std::nullopt;
    const std::size_t layers =
        list->value.is_string() ? list->value.get_ref<const std::string&>().size() : list->value.size();
    if (layers == 0) return std::nullopt;
    return ModelReader::Sourced{static_cast<std::int64_t>(layers), *list};
}

ModelReader::Sourced given_layers(ModelReader& model) {
    if (auto listed = listed_layers(model)) return *std::move(listed);
    if (model.encoder_decoder()) {
        return model.required_sourced(
            {"decoder_layers", "num_decoder_layers", "num_hidden_layers", "num_layers"});
    }
    return model.required_sourced(
        {"num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_transformer_layers"});
}

std::size_t count_layers(ModelReader& model) {
    const ModelReader::Sourced layers = given_layers(model);
    if (layers.number <= kMostLayers) return static_cast<std::size_t>(layers.number);
    throw InvalidRequest(layers.source.field, std::to_string(layers.number),
                         fmt::format("at most {} layers", kMostLayers));
}

// Layers that slide may have heads of their own: by fields of other names, by Step 3.5's object, or by a rule
// of the type's code.
void take_sliding_heads(ModelReader& model, LayerKind& kind) {
    constexpr std::string_view kWord = "attention_other_setting.attention_type";
    if (const auto word = model.word({kWord}); word && *word != kSliding)
        throw InvalidRequest(model.prefix() + std::string(kWord), quote(*word), quote(kSliding));
    const auto q_heads = model.sourced_count({"num_swa_attention_heads", "num_sliding_attention_heads",
                                              "attention_other_setting.num_attention_heads"});
    const auto kv_heads =
        model.sourced_count({"num_swa_key_value_heads", "attention_other_setting.num_attention_groups"});
    const auto head_dim = model.sourced_count({"attention_other_setting.head_dim"});
    model.disregard({"attention_other_setting"});
    if (q_heads) kind.q_heads = q_heads;
    if (kv_heads) kind.kv_heads = kv_heads;
    if (head_dim) kind.head_dim = head_dim;
    if (!kv_heads && model.code() == "mimo_v2_flash") {
        kind.kv_heads = model.required_sourced({"num_key_value_heads"});
        kind.kv_heads->number *= 2;
    }
}

// One kind for each word and heads, in the order of their first layers.
std::vector<LayerKind> group_layers(ModelReader& model, const LayerWords& words) {
    std::vector<LayerKind> kinds;
    const LayerHeads heads = layer_heads(model, words.size());
    const std::vector<LayerOverride> overrides = layer_overrides(model, words.size());
    for (std::size_t layer = 0; layer < words.size(); ++layer) {
        LayerKind kind;
        kind.name = words[layer];
        kind.global = kind.name == kFull;
        if (!heads.query.empty()) kind.q_heads = heads.query[layer];
        if (!heads.kv.empty()) kind.kv_heads = heads.kv[layer];
        if (!overrides.empty() && (kind.name == kFull || kind.name == kSliding)) {
            const LayerOverride& own = overrides[layer];
            kind.global = false;  // the overrides say what makes them differ
            if (own.q_heads) kind.q_heads = own.q_heads;
            if (own.kv_heads) kind.kv_heads = own.kv_heads;
            kind.head_dim = own.head_dim;
        }
        const auto same = std::ranges::find_if(kinds, [&](const LayerKind& other) {
            return other.name == kind.name && other.q_heads == kind.q_heads &&
                   other.kv_heads == kind.kv_heads && other.head_dim == kind.head_dim;
        });
        LayerKind& joined = same == kinds.end() ? kinds.emplace_back(std::move(kind)) : *same;
        ++joined.layers;
        joined.members.push_back(layer);
    }
    const auto sliding = std::ranges::find(kinds, kSliding, &LayerKind::name);
    if (sliding != kinds.end() && overrides.empty()) take_sliding_heads(model, *sliding);
    return kinds;
}

struct WithoutAttention {
    std::string_view word;
    std::string_view one, several;  // what is said of them
};
constexpr WithoutAttention kWithoutAttention[] = {
    {kMixer, "1 layer holds no attention", "layers hold no attention"},
    {kNoOp, "1 layer is a no-op in attention's place", "layers are no-ops in attention's place"},
    {kLinearMap, "1 layer has a linear map in attention's place",
     "layers have a linear map in attention's place"}};

void leave_out_mixers(ModelReader& model, std::vector<LayerKind>& kinds) {
    for (const WithoutAttention& without : kWithoutAttention) {
        const auto found = std::ranges::find(kinds, without.word, &LayerKind::name);
        if (found == kinds.end()) continue;
        model.note(found->layers == 1 ? std::string(without.one)
                                      : fmt::format("{} {}", found->layers, without.several));
        kinds.erase(found);
        // What these fields say is of such layers.
        if (without.word == kMixer) {
            model.disregard(
                {"mamba_*", "n_mamba_heads", "ssm_*", "conv_*", "chunk_size", "time_step_*", "lru_width"});
        }
    }
    if (std::ranges::find(kinds, "linear_attention", &LayerKind::name) != kinds.end())
        model.disregard({"linear_*"});
}

// Stands for a model that nothing can be planned of: no attention's notes would say so.
LayerKind layers_without_attention(std::size_t layers) {
    LayerKind kind;
    kind.name = "attention";
    kind.layers = static_cast<std::int64_t>(layers);
    kind.refusal = fmt::format("none of the {} layers holds an attention", layers);
    return kind;
}

// A sliding kind whose window turned out to be off joins the full one.
void join_full(std::vector<LayerKind>& kinds) {
    for (auto kind = kinds.begin(); kind != kinds.end();) {
        const auto same = std::ranges::find_if(kinds.begin(), kind, [&](const LayerKind& other) {
            return other.name == kFull && kind->name == kFull && other.q_heads == kind->q_heads &&
                   other.kv_heads == kind->kv_heads && other.head_dim == kind->head_dim;
        });
        if (same == kind) {
            ++kind;
        } else {
            same->layers += kind->layers;
            same->members.insert(same->members.end(), kind->members.begin(), kind->members.end());
            kind = kinds.erase(kind);
        }
    }
}

// Names that several kinds share get their heads: "full_attention_kv8", and "full_attention_q16_kv4" where
// the KV heads alone do not tell them apart.
void tell_apart(std::vector<LayerKind>& kinds) {
    const std::vector<LayerKind> all = kinds;
    for (LayerKind& kind : kinds) {
        const auto shares = [&](const LayerKind& other) { return other.name == kind.name; };
        const auto shares_kv = [&](const LayerKind& other) {
            return shares(other) && other.kv_heads == kind.kv_heads;
        };
        if (std::ranges::count_if(all, shares) < 2) continue;
        if (std::ranges::count_if(all, shares_kv) > 1 && kind.q_heads)
            kind.name += fmt::format("_q{}", kind.q_heads->number);
        if (kind.kv_heads) kind.name += fmt::format("_kv{}", kind.kv_heads->number);
        if (kind.head_dim) kind.name += fmt::format("_d{}", kind.head_dim->number);
    }
}

}  // namespace

LayerKind first_layer(ModelReader& model) {
    const LayerHeads heads = layer_heads(model, 1);
    LayerKind kind;
    kind.global = false;  // what is there for all layers
    if (!heads.query.empty()) kind.q_heads = heads.query.front();
    if (!heads.kv.empty()) kind.kv_heads = heads.kv.front();
    return kind;
}

std::vector<LayerKind> layer_kinds(ModelReader& model, bool bidirectional) {
    const std::size_t layers = count_layers(model);
    std::vector<LayerKind> kinds = group_layers(model, layer_words(model, layers));
    leave_out_mixers(model, kinds);
    if (kinds.empty()) return {layers_without_attention(layers)};
    for (LayerKind& kind : kinds) finish(model, kind, bidirectional);
    join_full(kinds);
    tell_apart(kinds);
    return kinds;
}

}  // namespace attnsmith::problem
