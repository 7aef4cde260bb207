#include "models/key_selection.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <nlohmann/json.hpp>

#include "attnsmith/error.hpp"
#include "models/fields.hpp"
#include "problem/json_text.hpp"

namespace attnsmith::problem {
namespace {

// Types whose indexer scores every single key and takes the best index_topk of them, or shares what the
// indexer of an earlier layer took, as their code in transformers and in serving engines has it. Indexers
// that score blocks, pools or compressed keys have fields of the same name, so no other type is taken for
// one.
struct Selector {
    std::string_view model_type;
    bool always = true;  // without an indexer there is no model of the type
};
constexpr Selector kSelectors[] = {{"deepseek_v3", false}, {"deepseek_v32"}, {"glm_moe_dsa"}};

const Selector* selector_of(std::string_view model_type) {
    const auto* found = std::ranges::find(kSelectors, model_type, &Selector::model_type);
    return found == std::end(kSelectors) ? nullptr : found;
}

// Newer files name the layers for the kind of cache that they have; each of them has the indexer in any case.
void read_layer_types(ModelReader& model) {
    constexpr std::array<std::string_view, 2> kNames = {"indexed_attention", "deepseek_sparse_attention"};
    const auto is_indexed = [&](const nlohmann::json& word) {
        return std::ranges::any_of(kNames, [&](std::string_view name) { return word == name; });
    };
    for (const ModelReader::Found& found : model.inside_and_around("layer_types")) {
        const bool is_own = found.field == model.prefix() + "layer_types";
        if (is_own && found.value.is_array() && std::ranges::all_of(found.value, is_indexed))
            model.disregard({"layer_types"});
    }
}

}  // namespace

bool selects_single_keys(std::string_view model_type) { return selector_of(model_type) != nullptr; }

std::optional<ModelReader::Sourced> selected_keys(ModelReader& model) {
    const Selector* const selector = selector_of(model.code());
    if (selector == nullptr) return std::nullopt;
    const auto given = model.find({kSelectedKeys});
    if (!selector->always && (!given || is_off(given->value))) return std::nullopt;
    if (!given) {
        throw InvalidRequest(
            model.prefix() + std::string(kSelectedKeys), "null",
            fmt::format("the number of keys that the indexer of {} selects", field_name(model.model_type())));
    }
    // How the indexer scores keys, and which layers share what it selects: all the same while it takes all.
    model.disregard({"index_n_heads", "index_head_dim", "indexer_types", "index_topk_freq",
                     "index_topk_pattern", "index_skip_topk_offset", "index_share_for_mtp_iteration",
                     "indexer_rope_interleave"});
    read_layer_types(model);
    return model.sourced_count({kSelectedKeys});
}

std::string dense_condition(const ModelReader::Sourced& selected) {
    return fmt::format(
        "planned as dense attention, which is right only while a sequence has at most {0} keys: with more, "
        "each query sees the {0} that the model's indexer selects ({1})",
        selected.number, selected.source.field);
}

std::string selection_refusal(const ModelReader::Sourced& selected, std::int64_t kv_len) {
    if (kv_len <= selected.number) return "";
    return fmt::format(
        "attention to keys that an indexer selects is not supported: {} is {}, and kv_len {} is "
        "more; while a sequence has at most {} keys dense attention is the same, and a kv_len of up to {} is "
        "planned",
        selected.source.field, selected.number, kv_len, selected.number, selected.number);
}

}  // namespace attnsmith::problem
