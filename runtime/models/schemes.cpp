#include "models/schemes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "attnsmith/error.hpp"
#include "models/blocks.hpp"
#include "problem/json_text.hpp"

namespace attnsmith::problem {
namespace {

using nlohmann::json;

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

using Words = LayerWords;

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

// Mamba beside attention, where newer files call a Mamba layer "linear_attention".
bool is_mamba_hybrid(ModelReader& model) {
    constexpr std::string_view kHybrids[] = {"bamba", "granitemoehybrid", "jamba", "nemotron_h", "zamba",
                                             "zamba2"};
    return std::ranges::find(kHybrids, model.code()) != std::end(kHybrids);
}

// A word a layer. Entries past the last layer belong to draft layers that are no part of the model.
Words listed(ModelReader& model, const ModelReader::Found& found, std::size_t layers) {
    Words words = as_words(found);
    check_length(found, words.size(), layers);
    if (words.size() > layers)
        model.note(fmt::format(
            "{} has {} entries, but the model has {} layers: the entries after these are left out",
            found.field, words.size(), layers));
    words.resize(layers);
    if (model.code() == "minimax" && given_window(model))
        std::ranges::replace(words, kFull, std::string(kSliding));
    if (is_mamba_hybrid(model)) std::ranges::replace(words, "linear_attention", std::string(kMixer));
    // Zamba: in a "hybrid" layer a shared attention comes before the Mamba mixer.
    if (model.model_type().starts_with("zamba")) std::ranges::replace(words, "hybrid", std::string(kFull));
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
    constexpr const char* kForm = "a string with *, M, - or E for each layer";
    if (!found.value.is_string()) refuse(found, kForm);
    const auto& letters = found.value.get_ref<const std::string&>();
    if (letters.find_first_not_of("*M-E") != letters.npos) refuse(found, kForm);
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
Words numbered(ModelReader& model, const ModelReader::Found& found, std::size_t layers) {
    const auto types = as_integers(found);
    check_length(found, types.size(), layers);
    const std::string_view softmax = model.code() == "minimax" && given_window(model) ? kSliding : kFull;
    return make_words(layers,
                      [&](std::size_t layer) { return types[layer] == 1 ? softmax : "linear_attention"; });
}

// A class's own list is made for its own number of layers.
Words by_index(const ModelReader::Found& found, std::size_t layers, std::string_view there,
               std::string_view elsewhere) {
    auto indices = as_integers(found);
    const auto is_layer = [&](std::int64_t index) {
        return index >= 0 && index < static_cast<std::int64_t>(layers);
    };
    if (!found.is_default && !std::ranges::all_of(indices, is_layer))
        refuse(found, fmt::format("numbers of layers, from 0 to {}", layers - 1));
    std::ranges::sort(indices);
    return make_words(layers, [&](std::size_t layer) {
        const bool listed = std::ranges::binary_search(indices, static_cast<std::int64_t>(layer));
        return listed ? there : elsewhere;
    });
}

// Bamba, LFM2: the layers that are attention.
Words indexed(ModelReader&, const ModelReader::Found& found, std::size_t layers) {
    return by_index(found, layers, kFull, kMixer);
}

// Llama 3.2 Vision: the layers whose keys and values are a picture's.
Words crossing(ModelReader&, const ModelReader::Found& found, std::size_t layers) {
    return by_index(found, layers, "cross_attention", kFull);
}

// Baichuan-M1: the layers that slide.
Words sliding_indices(ModelReader&, const ModelReader::Found& found, std::size_t layers) {
    return by_index(found, layers, kSliding, kFull);
}

std::int64_t attention_offset(ModelReader& model, std::size_t period) {
    constexpr std::string_view kName = "attn_layer_offset";
    const auto offset = model.integer({kName});
    const bool is_silent = !offset && !model.has(kName);
    if (is_silent) return 0;
    if (offset && *offset >= 0 && static_cast<std::size_t>(*offset) < period) return *offset;
    throw InvalidRequest(model.prefix() + std::string(kName), offset ? std::to_string(*offset) : "null",
                         fmt::format("a number from 0 to {}, below attn_layer_period", period - 1));
}

// Jamba: layers at an offset in each period are attention. Zamba begins with two mixers and an attention, and
// counts from behind them.
Words periodic(ModelReader& model, const ModelReader::Found& found, std::size_t layers) {
    const std::size_t period = as_period(found);
    const std::int64_t offset = attention_offset(model, period);
    const std::size_t first = model.model_type() == "zamba" ? 3 : 0;
    return make_words(layers, [&](std::size_t layer) {
        if (layer < first) return layer + 1 == first ? kFull : kMixer;
        return static_cast<std::int64_t>((layer - first) % period) == offset ? kFull : kMixer;
    });
}

// MiniMax-M3: layers that attend to the blocks of keys that an indexer selects.
Words sparse_flags(ModelReader& model, const ModelReader::Found& found, std::size_t layers) {
    const auto flags = as_integers(found);
    check_length(found, flags.size(), layers);
    model.disregard({"sparse_attention_config.*"});
    const bool used = model.boolean({"sparse_attention_config.use_sparse_attention"}).value_or(true);
    return make_words(layers, [&](std::size_t layer) {
        return used && flags[layer] != 0 ? std::string_view("sparse_attention") : kFull;
    });
}

// Qwen3-Next: every n-th layer is full attention.
Words every_nth_full(ModelReader&, const ModelReader::Found& found, std::size_t layers) {
    const std::size_t period = as_period(found);
    return make_words(layers, [&](std::size_t layer) {
        return (layer + 1) % period == 0 ? kFull : std::string_view("linear_attention");
    });
}

// Llama 4: layers with rotary positions see one chunk, the others all.
Words chunked(ModelReader& model, const ModelReader::Found&, std::size_t layers) {
    const std::vector<bool> rotates = rotating_layers(model, layers);
    return make_words(layers, [&](std::size_t layer) { return rotates[layer] ? kChunked : kFull; });
}

// ModernBERT: every n-th layer, from the first, sees all.
Words first_of_n_full(ModelReader&, const ModelReader::Found& found, std::size_t layers) {
    const std::size_t period = as_period(found);
    return make_words(layers, [&](std::size_t layer) { return sliding_if(layer % period != 0); });
}

Words all_full(std::size_t layers) {
    return make_words(layers, [](std::size_t) { return kFull; });
}

// Gemma 2 (2), Gemma 3 (6), Cohere 2 (4): every n-th layer, from the n-th, sees all. EXAONE 4 also writes
// "LLLG", where the last layer sees all whatever the letter, and turns the pattern off by a window of null.
Words last_of_n_full(ModelReader& model, const ModelReader::Found& found, std::size_t layers) {
    const bool may_be_off = model.code() == "exaone4" || model.type_class() == TypeClass::unknown;
    if (may_be_off && !given_window(model)) return all_full(layers);
    const bool may_be_letters =
        model.code() == "exaone4" || model.code() == "exaone_moe" || model.type_class() == TypeClass::unknown;
    if (found.value.is_string() && may_be_letters) {
        const auto& letters = found.value.get_ref<const std::string&>();
        if (letters.empty() || letters.find_first_not_of("LG") != letters.npos)
            refuse(found, fmt::format("a number of layers from 1 to {}, or letters L and G, such as LLLG",
                                      kMostLayers));
        return make_words(layers, [&](std::size_t layer) {
            return sliding_if(layer + 1 != layers && letters[layer % letters.size()] == 'L');
        });
    }
    const std::size_t period = as_period(found);
    return make_words(layers, [&](std::size_t layer) { return sliding_if((layer + 1) % period != 0); });
}

bool uses_window(ModelReader& model) {
    return model.boolean({"use_sliding_window"}).value_or(true) && given_window(model).has_value();
}

// Qwen 2: layers from max_window_layers on slide; Qwen 2 MoE: every other one before it, from the first.
Words from_layer(ModelReader& model, const ModelReader::Found& found, std::size_t layers) {
    if (!found.value.is_number_integer() || found.value < 0) refuse(found, "a number of layers from 0");
    const bool used = uses_window(model);
    const auto first = found.value.get<std::uint64_t>();
    const bool alternates = model.code() == "qwen2_moe";
    return make_words(layers, [&](std::size_t layer) {
        return sliding_if(used && (alternates ? layer % 2 == 0 && layer < first : layer >= first));
    });
}

// SmolLM3: layers without rotary positions slide.
Words without_rotation(ModelReader& model, const ModelReader::Found&, std::size_t layers) {
    const std::vector<bool> rotates = rotating_layers(model, layers);
    const bool used = uses_window(model);
    return make_words(layers, [&](std::size_t layer) { return sliding_if(used && !rotates[layer]); });
}

struct Scheme {
    std::string_view name;
    Words (*words)(ModelReader&, const ModelReader::Found&, std::size_t layers);
    bool says_windows = false;         // which layers slide; else only which are attention
    std::string_view model_type = {};  // the only type that it is so of; empty: any
};

// The first that the config has says what its layers are: what lists layers comes before what counts them.
constexpr Scheme kSchemes[] = {
    {"block_configs", block_words},
    {"layer_types", listed, true},
    {"layers_block_type", listed},
    {"block_types", repeated, true},
    {"_block_types", repeated, true},
    {"hybrid_override_pattern", lettered},
    {"attention_layers", listed, true},
    {"attention_types", counted, true},
    {"attn_type_list", numbered},
    {"attn_layer_indices", indexed},
    {"full_attn_idxs", indexed},
    {"attn_layer_period", periodic},
    {"full_attention_interval", every_nth_full},
    {"sparse_attention_config.sparse_attention_freq", sparse_flags},
    {"cross_attention_layers", crossing},
    {"attention_chunk_size", chunked},
    {"sliding_window_layers", sliding_indices, true},
    {"global_attn_every_n_layers", first_of_n_full, true},
    {"sliding_window_pattern", last_of_n_full, true},
    {"_sliding_window_pattern", last_of_n_full, true},
    {"max_window_layers", from_layer, true},
    {"use_sliding_window", without_rotation, true, "smollm3"},
};

bool is_of(const Scheme& scheme, const ModelReader& model) {
    return scheme.model_type.empty() || scheme.model_type == model.code();
}

// The words as far as a scheme that says nothing of windows could tell them apart.
Words without_windows(Words words) {
    std::ranges::replace(words, kSliding, std::string(kFull));
    std::ranges::replace(words, "linear_attention", std::string(kMixer));
    return words;
}

bool agrees(ModelReader& model, const Scheme& other, const Scheme& used, const Words& words) {
    const auto found = model.find({other.name});
    if (!found || found->is_default) return true;
    try {
        const Words others = other.words(model, *found, words.size());
        const bool windows = used.says_windows && other.says_windows && uses_window(model);
        return windows ? others == words : without_windows(others) == without_windows(words);
    } catch (const InvalidRequest&) {
        return false;
    }
}

// What the scheme that was used decides for the fields of the others.
void settle_schemes(ModelReader& model, const Scheme& used, const Words& words) {
    for (const Scheme& other : kSchemes) {
        if (&other == &used || !is_of(other, model) || !model.has(other.name)) continue;
        if (agrees(model, other, used, words)) continue;
        model.warn(WarningKind::approximated, model.prefix() + std::string(other.name),
                   fmt::format("{} and {} differ in what the layers are: planned by the first", used.name,
                               other.name));
    }
    if (!used.says_windows) return;
    for (const std::string_view name : {"use_sliding_window", "sliding_window", "sliding_window_size",
                                        "attention_window_size", "window_size", "local_attention"})
        model.has(name);
}

// A size of chunks does not say which layers have them, and only Llama 4's own code is known to.
void warn_of_assumption(ModelReader& model, const Scheme& used) {
    if (used.words != chunked || model.code() == "llama4_text") return;
    const std::string field = model.prefix() + std::string(used.name);
    const bool is_listed = model.has("no_rope_layers") || model.has("no_rope_layer_interval");
    model.warn(
        WarningKind::approximated, field,
        fmt::format("{} does not say which layers see chunks: planned as Llama 4 has it, where {} see "
                    "all keys and the others their chunk",
                    field, is_listed ? "the layers without rotary positions" : "layers 4, 8, 12 and so on"));
}

}  // namespace

std::optional<std::int64_t> given_window(ModelReader& model) {
    const ModelReader::Names names = {kWindowFields[0], kWindowFields[1], kWindowFields[2], kWindowFields[3]};
    for (const std::string_view side : {"window_left", "window_right"}) model.derive(side, names);
    return model.count(names);
}

// Every fourth layer has none, or a list says 1 where a layer has them, whatever the list's name says.
std::vector<bool> rotating_layers(ModelReader& model, std::size_t layers) {
    std::vector<bool> rotates;
    const auto listed = model.find({"no_rope_layers"});
    const bool is_listed = listed && !(listed->value.is_array() && listed->value.empty());
    const auto interval = model.find({"no_rope_layer_interval"});
    if (is_listed) {
        const auto flags = as_integers(*listed);
        check_length(*listed, flags.size(), layers);
        for (std::size_t layer = 0; layer < layers; ++layer) rotates.push_back(flags[layer] != 0);
        return rotates;
    }
    const std::size_t period = interval ? as_period(*interval) : 4;
    for (std::size_t layer = 0; layer < layers; ++layer) rotates.push_back((layer + 1) % period != 0);
    return rotates;
}

// A class default counts only where the file itself has none of the schemes.
LayerWords layer_words(ModelReader& model, std::size_t layers) {
    for (const bool defaults : {false, true}) {
        for (const Scheme& scheme : kSchemes) {
            if (!is_of(scheme, model) || (!defaults && !model.has(scheme.name))) continue;
            if (const auto found = model.find({scheme.name})) {
                Words words = scheme.words(model, *found, layers);
                if (model.code() == "gemma4_text") words.back() = kFull;  // whatever was said of it
                settle_schemes(model, scheme, words);
                warn_of_assumption(model, scheme);
                return words;
            }
        }
    }
    // Mistral, Phi-3: one window for all.
    const bool sliding =
        model.boolean({"use_sliding_window"}).value_or(true) && model.find({"sliding_window"}).has_value();
    if (!sliding) model.has("sliding_window");
    return make_words(layers, [&](std::size_t) { return sliding_if(sliding); });
}

}  // namespace attnsmith::problem
