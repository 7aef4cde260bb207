#include "models/query_factors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "models/field_readers.hpp"
#include "models/fields.hpp"
#include "models/schemes.hpp"
#include "problem/json_text.hpp"

namespace attnsmith::problem {
namespace {

constexpr std::string_view kGiveSo = "before the attention (positions count from 0): give q so multiplied";

// Llama 4's class does it where the config does not say otherwise; files say it as a number, too.
std::optional<std::string> llama4_factor(ModelReader& model) {
    if (model.code() != "llama4_text") return std::nullopt;
    const auto given = model.find({"attn_temperature_tuning"});
    const double attn_scale = model.number({"attn_scale"}).value_or(0.1);
    const double floor_scale = model.positive({"floor_scale"}).value_or(8192.0);
    if ((given && is_off(given->value)) || attn_scale == 0.0) return std::nullopt;
    return fmt::format(
        "multiply q by log(floor((position + 1) / {0}) + 1) * {1} + 1, which is not 1 once position + 1 "
        "reaches {0} (floor_scale {0}, attn_scale {1}), {2}",
        floor_scale, attn_scale, kGiveSo);
}

// Only layers without rotary positions multiply q so, whatever keys they see.
void note_llama4(ModelReader& model, std::vector<LayerKind>& kinds) {
    const auto factor = llama4_factor(model);
    if (!factor) return;
    std::size_t layers = 0;
    for (const LayerKind& kind : kinds) {
        for (const std::size_t layer : kind.members) layers = std::max(layers, layer + 1);
    }
    const std::vector<bool> rotates = rotating_layers(model, layers);
    for (LayerKind& kind : kinds) {
        const auto without =
            std::ranges::count_if(kind.members, [&](std::size_t layer) { return !rotates.at(layer); });
        if (without == 0) continue;
        const std::string which =
            without == kind.layers ? "these layers have no rotary positions and"
                                   : fmt::format("the {} of these layers without rotary positions", without);
        kind.notes.push_back(fmt::format("attn_temperature_tuning: {} {}", which, *factor));
    }
}

// Qwen's first models: beyond the length that they were trained with, all layers.
void note_qwen(ModelReader& model) {
    if (model.model_type() != "qwen" || !model.is_true({"use_logn_attn"})) return;
    const auto trained = model.count({"seq_length"});
    model.note(fmt::format(
        "use_logn_attn: all layers multiply q by log(position + 1) / log({0}) from position {0} on ({1}) {2}",
        trained ? std::to_string(*trained) : "seq_length",
        trained ? "seq_length" : "the length that the model was trained with, which the config does not give",
        kGiveSo));
}

// Ministral 3 and Mistral 4, whose classes have both numbers where the file has no rotary parameters at all.
void note_ministral3(ModelReader& model) {
    constexpr std::string_view kField = "rope_parameters.llama_4_scaling_beta";
    constexpr std::string_view kOlderField = "rope_scaling.llama_4_scaling_beta";
    const bool is_mistral4 = model.code() == "mistral4";
    const bool by_class = (is_mistral4 || model.code() == "ministral3") && !model.find({"rope_parameters"}) &&
                          !model.find({"rope_scaling"});
    const std::optional<double> beta = by_class ? 0.1 : model.number({kField, kOlderField});
    for (const std::string_view name : {kField, kOlderField}) {
        if (reads_field(model.model_type(), name)) continue;
        for (const ModelReader::Found& found : model.inside_and_around(name)) {
            if (found.field != model.prefix() + std::string(name) || is_off(found.value)) continue;
            model.warn(WarningKind::unread_field, found.field,
                       fmt::format("{}'s own code does not read {} ({}): planned without it",
                                   field_name(model.model_type()), found.field, describe(found.value)));
        }
    }
    if (beta.value_or(0.0) == 0.0) return;
    const std::optional<std::int64_t> length =
        by_class ? (is_mistral4 ? 8192 : 16384)
                 : model.count({"rope_parameters.original_max_position_embeddings",
                                "rope_scaling.original_max_position_embeddings"});
    const std::string shown = length ? std::to_string(*length) : "original_max_position_embeddings";
    model.note(
        fmt::format("llama_4_scaling_beta: all layers multiply q, behind its rotation, by 1 + {0} * log(1 + "
                    "floor(position / {1})), which is not 1 from position {1} on "
                    "(original_max_position_embeddings{2}), {3}",
                    *beta, shown, length ? "" : ", which the config does not give", kGiveSo));
}

}  // namespace

void note_query_factors(ModelReader& model, std::vector<LayerKind>& kinds) {
    note_llama4(model, kinds);
    note_qwen(model);
    note_ministral3(model);
}

}  // namespace attnsmith::problem
