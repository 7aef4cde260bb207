#include "problem/model_layers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <string_view>
#include <utility>

#include "attnsmith/error.hpp"
#include "problem/json_text.hpp"
#include "problem/vocabulary.hpp"

namespace attnsmith::problem {
namespace {

using nlohmann::json;

constexpr std::string_view kFull = "full_attention";
constexpr std::string_view kSliding = "sliding_attention";
constexpr std::string_view kMixer = "mamba";  // stands for any layer that is no attention
constexpr std::int64_t kMostLayers = 10000;

struct Synonym {
    std::string_view word;
    std::string_view name;
};

constexpr Synonym kSynonyms[] = {
    {"full_attention", kFull},
    {"attention", kFull},
    {"global", kFull},
    {"global_attention", kFull},
    {"sliding_attention", kSliding},
    {"local", kSliding},
    {"local_attention", kSliding},
    {"sliding", kSliding},
    {"mamba", kMixer},
    {"mamba2", kMixer},
    {"recurrent", kMixer},
    {"conv", kMixer},
    {"mlp", kMixer},
    {"moe", kMixer},
};

// One word for each layer.
using Words = std::vector<std::string>;

std::string canonical(const std::string& word) {
    const auto* found = std::ranges::find(kSynonyms, std::string_view(word), &Synonym::word);
    return found == std::end(kSynonyms) ? word : std::string(found->name);
}

template <typename Choose>  // Choose(layer) -> word
Words make_words(std::size_t layers, Choose choose) {
    Words words;
    for (std::size_t layer = 0; layer < layers; ++layer) words.emplace_back(choose(layer));
    return words;
}

std::string_view sliding_if(bool sliding) { return sliding ? kSliding : kFull; }

[[noreturn]] void refuse(const ModelReader::Found& found, std::string accepted) {
    throw InvalidRequest(found.field, describe(found.value), std::move(accepted));
}

std::size_t as_period(const ModelReader::Found& found) {
    const bool valid = found.value.is_number_integer() && found.value > 0 && found.value <= kMostLayers;
    if (!valid) refuse(found, fmt::format("a number of layers from 1 to {}", kMostLayers));
    return found.value.get<std::size_t>();
}

Words as_words(const ModelReader::Found& found) {
    if (!found.value.is_array() || found.value.empty()) refuse(found, "a list of layer types");
    Words words;
    for (const json& item : found.value) {
        if (!item.is_string()) refuse({item, found.field}, "a list of strings");
        words.push_back(canonical(item.get<std::string>()));
    }
    return words;
}

std::vector<std::int64_t> as_integers(const ModelReader::Found& found) {
    if (!found.value.is_array()) refuse(found, "a list of integers");
    std::vector<std::int64_t> integers;
    for (const json& item : found.value) {
        if (!item.is_number_integer()) refuse({item, found.field}, "a list of integers");
        integers.push_back(item.get<std::int64_t>());
    }
    return integers;
}

void check_length(const ModelReader::Found& found, std::size_t has, std::size_t layers) {
    if (has < layers) refuse(found, fmt::format("one entry for each of the {} layers", layers));
}

// A word a layer. Entries past the last layer belong to draft layers that are no part of the model.
Words listed(ModelReader&, const ModelReader::Found& found, std::size_t layers) {
    Words words = as_words(found);
    check_length(found, words.size(), layers);
    words.resize(layers);
    return words;
}

// A list that repeats: Griffin's ["recurrent", "recurrent", "attention"], whose attention is local.
Words repeated(ModelReader&, const ModelReader::Found& found, std::size_t layers) {
    const Words words = as_words(found);
    return make_words(layers, [&](std::size_t layer) {
        const std::string& word = words[layer % words.size()];
        return word == kFull ? std::string(kSliding) : word;
    });
}

// Nemotron-H: '*' attention, 'M' Mamba, '-' and 'E' feed-forward.
Words lettered(ModelReader&, const ModelReader::Found& found, std::size_t layers) {
    if (!found.value.is_string()) refuse(found, "a string with a letter for each layer");
    const auto& letters = found.value.get_ref<const std::string&>();
    check_length(found, letters.size(), layers);
    return make_words(layers, [&](std::size_t layer) { return letters[layer] == '*' ? kFull : kMixer; });
}

// GPT-Neo: [[["global", "local"], 12]], a pattern and how often it comes.
Words counted(ModelReader&, const ModelReader::Found& found, std::size_t layers) {
    constexpr const char* kForm = "pairs of a list of layer types and a count";
    if (!found.value.is_array()) refuse(found, kForm);
    Words words;
    for (const json& pair : found.value) {
        const bool valid = pair.is_array() && pair.size() == 2 && pair[1].is_number_integer() &&
                           pair[1] > 0 && pair[1] <= kMostLayers;
        if (!valid) refuse(found, kForm);
        const Words pattern = as_words({pair[0], found.field});
        const auto most = static_cast<std::size_t>(kMostLayers);
        for (std::int64_t i = 0; i < pair[1].get<std::int64_t>() && words.size() < most; ++i) {
            words.insert(words.end(), pattern.begin(), pattern.end());
        }
    }
    check_length(found, words.size(), layers);
    words.resize(layers);
    return words;
}

// MiniMax: 1 for softmax attention, 0 for linear attention.
Words numbered(ModelReader&, const ModelReader::Found& found, std::size_t layers) {
    const auto types = as_integers(found);
    check_length(found, types.size(), layers);
    return make_words(layers,
                      [&](std::size_t layer) { return types[layer] == 1 ? kFull : "linear_attention"; });
}

// Bamba: the layers that are attention.
Words indexed(ModelReader&, const ModelReader::Found& found, std::size_t layers) {
    auto indices = as_integers(found);
    std::ranges::sort(indices);  // a file may list far more than it has layers
    return make_words(layers, [&](std::size_t layer) {
        return std::ranges::binary_search(indices, static_cast<std::int64_t>(layer)) ? kFull : kMixer;
    });
}

// Jamba: layers at an offset in each period are attention.
Words periodic(ModelReader& model, const ModelReader::Found& found, std::size_t layers) {
    const std::size_t period = as_period(found);
    const std::int64_t offset = model.integer({"attn_layer_offset"}).value_or(0);
    return make_words(layers, [&](std::size_t layer) {
        return static_cast<std::int64_t>(layer % period) == offset ? kFull : kMixer;
    });
}

// Qwen3-Next: every n-th layer is full attention.
Words every_nth_full(ModelReader&, const ModelReader::Found& found, std::size_t layers) {
    const std::size_t period = as_period(found);
    return make_words(layers, [&](std::size_t layer) {
        return (layer + 1) % period == 0 ? kFull : std::string_view("linear_attention");
    });
}

// Llama 4: layers with rotary positions see one chunk; every fourth layer has none and sees all.
Words chunked(ModelReader& model, const ModelReader::Found&, std::size_t layers) {
    constexpr std::string_view kChunked = "chunked_attention";
    const auto rotary = model.find({"no_rope_layers"});  // 1: with rotary positions, whatever the name says
    if (rotary && !(rotary->value.is_array() && rotary->value.empty())) {
        const auto flags = as_integers(*rotary);
        check_length(*rotary, flags.size(), layers);
        return make_words(layers, [&](std::size_t layer) { return flags[layer] != 0 ? kChunked : kFull; });
    }
    const auto interval = model.find({"no_rope_layer_interval"});
    const std::size_t period = interval ? as_period(*interval) : 4;
    return make_words(layers,
                      [&](std::size_t layer) { return (layer + 1) % period != 0 ? kChunked : kFull; });
}

// ModernBERT: every n-th layer, from the first, sees all.
Words first_of_n_full(ModelReader&, const ModelReader::Found& found, std::size_t layers) {
    const std::size_t period = as_period(found);
    return make_words(layers, [&](std::size_t layer) { return sliding_if(layer % period != 0); });
}

// Gemma 2 (2), Gemma 3 (6), Cohere 2 (4): every n-th layer, from the n-th, sees all. EXAONE 4 also writes
// "LLLG", where the last layer sees all whatever the letter.
Words last_of_n_full(ModelReader&, const ModelReader::Found& found, std::size_t layers) {
    if (found.value.is_string() && !found.value.get_ref<const std::string&>().empty()) {
        const auto& letters = found.value.get_ref<const std::string&>();
        return make_words(layers, [&](std::size_t layer) {
            return sliding_if(layer + 1 != layers && letters[layer % letters.size()] == 'L');
        });
    }
    const std::size_t period = as_period(found);
    return make_words(layers, [&](std::size_t layer) { return sliding_if((layer + 1) % period != 0); });
}

// Qwen 2: layers from max_window_layers on slide.
Words from_layer(ModelReader& model, const ModelReader::Found& found, std::size_t layers) {
    if (!found.value.is_number_integer() || found.value < 0) refuse(found, "a number of layers from 0");
    const bool used = model.boolean({"use_sliding_window"}).value_or(true);
    const auto first = found.value.get<std::uint64_t>();
    return make_words(layers, [&](std::size_t layer) { return sliding_if(used && layer >= first); });
}

struct Scheme {
    std::string_view name;
    Words (*words)(ModelReader&, const ModelReader::Found&, std::size_t layers);
};

// The first that the config has says what its layers are: what lists layers comes before what counts them.
constexpr Scheme kSchemes[] = {
    {"layer_types", listed},
    {"layers_block_type", listed},
    {"block_types", repeated},
    {"_block_types", repeated},
    {"hybrid_override_pattern", lettered},
    {"attention_layers", listed},
    {"attention_types", counted},
    {"attn_type_list", numbered},
    {"attn_layer_indices", indexed},
    {"attn_layer_period", periodic},
    {"full_attention_interval", every_nth_full},
    {"attention_chunk_size", chunked},
    {"global_attn_every_n_layers", first_of_n_full},
    {"sliding_window_pattern", last_of_n_full},
    {"_sliding_window_pattern", last_of_n_full},
    {"max_window_layers", from_layer},
};

// A class default counts only where the file itself has none of the schemes.
Words layer_words(ModelReader& model, std::size_t layers) {
    for (const bool defaults : {false, true}) {
        for (const Scheme& scheme : kSchemes) {
            if (!defaults && !model.has(scheme.name)) continue;
            if (const auto found = model.find({scheme.name})) return scheme.words(model, *found, layers);
        }
    }
    // Mistral, Phi-3: one window for all.
    const bool sliding = model.find({"sliding_window"}).has_value();
    return make_words(layers, [&](std::size_t) { return sliding_if(sliding); });
}

// Sets the window of a sliding kind, or makes it a full one where the config turns windows off.
void set_window(ModelReader& model, LayerKind& kind, bool bidirectional) {
    if (!model.boolean({"use_sliding_window"}).value_or(true)) {
        kind.name = kFull;
        return;
    }
    if (const auto both_sides = model.count({"local_attention"}); both_sides && bidirectional) {
        kind.window_left = kind.window_right = *both_sides / 2;
        return;
    }
    const auto window =
        model.count({"sliding_window", "sliding_window_size", "attention_window_size", "window_size"});
    if (!window) {
        kind.name = kFull;
    } else if (bidirectional) {
        kind.refusal =
            "how far a sliding_window of a bidirectional model looks ahead is not in its config.json";
    } else {
        kind.window_left = *window - 1;  // Hugging Face's window counts the query's own key
    }
}

void finish(ModelReader& model, LayerKind& kind, bool bidirectional) {
    if (kind.name == kSliding) {
        set_window(model, kind, bidirectional);
    } else if (kind.name != kFull) {
        kind.name = field_name(kind.name);
        kind.refusal =
            fmt::format("layer type {} ({} layers) is not built in this version", kind.name, kind.layers);
    }
}

}  // namespace

std::vector<LayerKind> layer_kinds(ModelReader& model, bool bidirectional) {
    const std::int64_t layers = model.encoder_decoder()
                                    ? model.required_count({"decoder_layers", "num_decoder_layers",
                                                            "num_hidden_layers", "num_layers"})
                                    : model.required_count({"num_hidden_layers", "n_layer", "n_layers",
                                                            "num_layers", "num_transformer_layers"});
    if (layers > kMostLayers) {
        throw InvalidRequest("num_hidden_layers", std::to_string(layers),
                             fmt::format("at most {} layers", kMostLayers));
    }
    std::vector<LayerKind> kinds;
    const auto kind_named = [&](const std::string& name) -> LayerKind& {
        const auto found = std::ranges::find(kinds, name, &LayerKind::name);
        if (found != kinds.end()) return *found;
        kinds.emplace_back().name = name;
        return kinds.back();
    };
    for (const std::string& word : layer_words(model, static_cast<std::size_t>(layers)))
        ++kind_named(word).layers;

    const auto mixers = std::ranges::find(kinds, kMixer, &LayerKind::name);
    if (mixers != kinds.end()) {
        model.note(fmt::format("{} layers hold no attention", mixers->layers));
        kinds.erase(mixers);
    }
    for (LayerKind& kind : kinds) finish(model, kind, bidirectional);
    // A sliding kind whose window turned out to be off joins the full one.
    const auto full = std::ranges::find(kinds, kFull, &LayerKind::name);
    if (full == kinds.end()) return kinds;
    const auto second = std::ranges::find(std::next(full), kinds.end(), kFull, &LayerKind::name);
    if (second != kinds.end()) {
        full->layers += second->layers;
        kinds.erase(second);
    }
    return kinds;
}

}  // namespace attnsmith::problem
