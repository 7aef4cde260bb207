#include "models/blocks.hpp"

#include <fmt/format.h>

#include <charconv>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "attnsmith/error.hpp"
#include "models/fields.hpp"
#include "problem/json_text.hpp"
#include "problem/vocabulary.hpp"

namespace attnsmith::problem {
namespace {

using nlohmann::json;

constexpr const char* kBlocks = "a list with {\"attention\": {...}} for each layer";

// The "attention" of each layer.
std::vector<json> attentions_of(const ModelReader::Found& found, std::size_t layers) {
    if (!found.value.is_array() || found.value.size() < layers)
        throw InvalidRequest(found.field, describe(found.value), kBlocks);
    std::vector<json> attentions;
    for (std::size_t layer = 0; layer < layers; ++layer) {
        const json& block = found.value[layer];
        const bool valid = block.is_object() && block.contains("attention") && block["attention"].is_object();
        if (!valid) throw InvalidRequest(found.field, describe(block), kBlocks);
        attentions.push_back(block["attention"]);
    }
    return attentions;
}

std::string word_of(const json& attention) {
    if (attention.value("no_op", json()) == true) return std::string(kNoOp);
    if (attention.value("replace_with_linear", json()) == true) return std::string(kLinearMap);
    for (const auto& item : attention.items()) {
        const bool read = item.key() == "n_heads_in_group" || is_off(item.value());
        if (!read) return "attention_with_" + item.key();
    }
    return "full_attention";
}

// The layer has attention.
ModelReader::Sourced kv_heads_of(const json& attention, std::int64_t q_heads, const std::string& block) {
    const json group = attention.value("n_heads_in_group", json());
    const std::string field = block + ".attention.n_heads_in_group";
    const bool divides = group.is_number_integer() && group >= 1 && group <= q_heads &&
                         q_heads % group.get<std::int64_t>() == 0;
    if (divides) return {q_heads / group.get<std::int64_t>(), {group, field}};
    throw InvalidRequest(field, describe(group), fmt::format("a divisor of the {} query heads", q_heads));
}

std::string entry(const std::string& field, std::size_t index) { return fmt::format("{}[{}]", field, index); }

// A number for each layer; empty where the field is not there.
std::vector<LayerNumber> listed_heads(ModelReader& model, std::string_view name, std::size_t layers) {
    const auto listed = model.find({name});
    if (!listed) return {};
    constexpr std::int64_t kMost = std::int64_t{1} << 30;
    constexpr const char* kForm = "a number of heads for each layer";
    if (!listed->value.is_array() || listed->value.size() < layers)
        throw InvalidRequest(listed->field, describe(listed->value), kForm);
    std::vector<LayerNumber> heads;
    for (std::size_t layer = 0; layer < layers; ++layer) {
        const json& number = listed->value[layer];
        const bool valid = number.is_number_integer() && number >= 1 && number <= kMost;
        const std::string field = entry(listed->field, layer);
        if (!valid)
            throw InvalidRequest(field, describe(number),
                                 fmt::format("an integer from 1 to {} for each layer", kMost));
        heads.push_back(ModelReader::Sourced{number.get<std::int64_t>(), {number, field}});
    }
    return heads;
}

// The layer that a key of per_layer_config names.
std::size_t layer_of(const std::string& key, const std::string& field, std::size_t layers) {
    std::size_t layer = layers;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), layer);
    if (error == std::errc() && end == key.data() + key.size() && layer < layers) return layer;
    throw InvalidRequest(field, quote(key), fmt::format("the number of one of the {} layers", layers));
}

// Takes what is of heads and gives the names of the rest that may change an attention.
std::set<std::string> take_override(const json& members, const std::string& field, LayerOverride& layer) {
    if (!members.is_object()) throw InvalidRequest(field, describe(members), "an object for each layer");
    std::set<std::string> unread;
    for (const auto& item : members.items()) {
        constexpr std::int64_t kMost = std::int64_t{1} << 30;
        LayerNumber* const place = item.key() == "head_dim"              ? &layer.head_dim
                                   : item.key() == "num_key_value_heads" ? &layer.kv_heads
                                   : item.key() == "num_attention_heads" ? &layer.q_heads
                                                                         : nullptr;
        const json& value = item.value();
        if (place == nullptr) {
            const bool matters = item.key() == "skip" || speaks_of_attention(item.key());
            if (matters && !is_daily_life("", item.key())) unread.insert(item.key());
        } else if (value.is_number_integer() && value >= 1 && value <= kMost) {
            *place = ModelReader::Sourced{value.get<std::int64_t>(), {value, field + "." + item.key()}};
        } else {
            throw InvalidRequest(field + "." + item.key(), describe(value),
                                 fmt::format("an integer from 1 to {}", kMost));
        }
    }
    return unread;
}

}  // namespace

std::vector<LayerOverride> layer_overrides(ModelReader& model, std::size_t layers) {
    const auto found = model.find({"per_layer_config"});
    if (!found) return {};
    if (!found->value.is_object())
        throw InvalidRequest(found->field, describe(found->value), "an object by the numbers of layers");
    std::vector<LayerOverride> all(layers);
    std::set<std::string> unread;
    for (const auto& item : found->value.items()) {
        LayerOverride& layer = all[layer_of(item.key(), found->field, layers)];
        unread.merge(take_override(item.value(), found->field + "." + item.key(), layer));
    }
    for (const std::string& name : unread) {
        model.warn(WarningKind::unread_field, found->field,
                   fmt::format("{} gives layers a {} of their own, which is not read", found->field,
                               field_name(name)));
    }
    model.disregard({"global_head_dim", "num_global_key_value_heads"});
    return all;
}

std::vector<std::string> block_words(ModelReader&, const ModelReader::Found& found, std::size_t layers) {
    std::vector<std::string> words;
    for (const json& attention : attentions_of(found, layers)) words.push_back(word_of(attention));
    return words;
}

LayerHeads layer_heads(ModelReader& model, std::size_t layers) {
    LayerHeads heads;
    if (const auto blocks = model.find({"block_configs"})) {
        const std::int64_t q_heads = model.query_heads().number;
        for (const json& attention : attentions_of(*blocks, layers)) {
            const bool has_heads = word_of(attention) == "full_attention";
            const std::string block = entry(blocks->field, heads.kv.size());
            heads.kv.push_back(has_heads ? LayerNumber(kv_heads_of(attention, q_heads, block))
                                         : std::nullopt);
        }
        return heads;
    }
    // DeciLM lists its KV heads, OpenELM both by names that elsewhere hold one number.
    heads.kv = listed_heads(model, "num_key_value_heads_per_layer", layers);
    if (heads.kv.empty() && model.lists("num_kv_heads"))
        heads.kv = listed_heads(model, "num_kv_heads", layers);
    if (model.lists("num_query_heads")) heads.query = listed_heads(model, "num_query_heads", layers);
    return heads;
}

}  // namespace attnsmith::problem
