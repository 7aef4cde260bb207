#include "problem/model_blocks.hpp"

#include <fmt/format.h>

#include "attnsmith/error.hpp"
#include "problem/json_text.hpp"

namespace attnsmith::problem {
namespace {

using nlohmann::json;

constexpr const char* kBlocks = "a list with {\"attention\": {...}} for each layer";

bool is_off(const json& value) { return value.is_null() || value == false; }

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
std::int64_t kv_heads_of(const json& attention, std::int64_t q_heads, const std::string& field) {
    const json group = attention.value("n_heads_in_group", json());
    const bool divides = group.is_number_integer() && group >= 1 && group <= q_heads &&
                         q_heads % group.get<std::int64_t>() == 0;
    if (divides) return q_heads / group.get<std::int64_t>();
    throw InvalidRequest(field, fmt::format("n_heads_in_group {}", describe(group)),
                         fmt::format("a divisor of the {} query heads", q_heads));
}

// A number for each layer; empty where the field is not there.
std::vector<std::optional<std::int64_t>> listed_heads(ModelReader& model, std::string_view name,
                                                      std::size_t layers) {
    const auto listed = model.find({name});
    if (!listed) return {};
    constexpr std::int64_t kMost = std::int64_t{1} << 30;
    constexpr const char* kForm = "a number of heads for each layer";
    if (!listed->value.is_array() || listed->value.size() < layers)
        throw InvalidRequest(listed->field, describe(listed->value), kForm);
    std::vector<std::optional<std::int64_t>> heads;
    for (std::size_t layer = 0; layer < layers; ++layer) {
        const json& number = listed->value[layer];
        const bool valid = number.is_number_integer() && number >= 1 && number <= kMost;
        if (!valid) throw InvalidRequest(listed->field, describe(number), kForm);
        heads.emplace_back(number.get<std::int64_t>());
    }
    return heads;
}

}  // namespace

std::vector<std::string> block_words(ModelReader&, const ModelReader::Found& found, std::size_t layers) {
    std::vector<std::string> words;
    for (const json& attention : attentions_of(found, layers)) words.push_back(word_of(attention));
    return words;
}

LayerHeads layer_heads(ModelReader& model, std::size_t layers) {
    LayerHeads heads;
    if (const auto blocks = model.find({"block_configs"})) {
        const std::int64_t q_heads = model.query_heads();
        for (const json& attention : attentions_of(*blocks, layers)) {
            const bool has_heads = word_of(attention) == "full_attention";
            heads.kv.push_back(has_heads ? std::optional(kv_heads_of(attention, q_heads, blocks->field))
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
