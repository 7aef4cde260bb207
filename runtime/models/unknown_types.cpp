#include "models/unknown_types.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "models/fields.hpp"
#include "problem/json_text.hpp"

namespace attnsmith::problem {
namespace {

using nlohmann::json;

constexpr std::string_view kDecoderClasses[] = {"ForCausalLM", "ForConditionalGeneration", "LMHeadModel"};
constexpr std::string_view kEncoderClasses[] = {"MaskedLM", "Encoder", "Vision", "Audio", "Speech",
                                                "Image",    "Video",   "CTC",    "ViT"};

// Fields that encoders have and decoders lack: those of BERT's family, and of what pictures and sound are cut
// into.
constexpr std::string_view kEncoderFields[] = {"type_vocab_size",   "attention_probs_dropout_prob",
                                               "image_size",        "patch_size",
                                               "num_channels",      "feat_extract_norm",
                                               "feat_proj_dropout", "num_mel_bins",
                                               "sampling_rate",     "apply_spec_augment",
                                               "mlm_probability"};

bool holds_any(std::string_view name, const auto& parts) {
    return std::ranges::any_of(parts, [&](std::string_view part) { return name.find(part) != name.npos; });
}

std::vector<std::string> class_names(const ModelReader& model) {
    std::vector<std::string> names;
    for (const ModelReader::Found& found : model.inside_and_around("architectures")) {
        if (!found.value.is_array()) continue;
        for (const json& name : found.value)
            if (name.is_string()) names.push_back(name.get<std::string>());
    }
    return names;
}

// The first of the encoders' fields that the model's part has.
std::string encoder_field(ModelReader& model) {
    for (const std::string_view name : kEncoderFields) {
        for (const ModelReader::Found& found : model.inside_and_around(name)) {
            if (found.field == model.prefix() + std::string(name) && !is_off(found.value)) return found.field;
        }
    }
    return "";
}

bool is_number_or_list(const json& value) {
    return value.is_number() || (value.is_structured() && !value.empty());
}

// Whether a field says how many heads there are or which keys they see.
bool names_structure(std::string_view name, const json& value) {
    if (has_word(name, {"linear", "mamba", "ssm", "conv", "mtp", "medusa", "classifier", "nextn"}))
        return false;
    if (has_word(name, {"indexer", "sparse", "sparsity"}) || name.starts_with("index_")) return true;
    return has_word(name, {"head", "heads", "group", "groups"}) && is_number_or_list(value);
}

bool holds_structure(const json& value) {
    if (value.is_array()) return std::ranges::any_of(value, holds_structure);
    if (!value.is_object()) return false;
    return std::ranges::any_of(value.items(), [](const auto& item) {
        return names_structure(item.key(), item.value()) || holds_structure(item.value());
    });
}

}  // namespace

std::string encoder_reason(ModelReader& model) {
    if (model.type_class() != TypeClass::unknown) return "";
    if (model.model_type().empty()) {
        // diffusers writes no model_type: these transformers denoise all of a sequence at once.
        for (const std::string_view name : {"_class_name", "_diffusers_version"}) {
            if (!model.inside_and_around(name).empty())
                return fmt::format(
                    "{} says that this is a part of a diffusers pipeline, which has no causal mask and no "
                    "cache "
                    "of keys: plan its attention by its sizes, or record a run",
                    name);
        }
        return "";
    }
    const std::vector<std::string> names = class_names(model);
    const auto is_decoder_class = [](const std::string& name) { return holds_any(name, kDecoderClasses); };
    if (std::ranges::any_of(names, is_decoder_class)) return "";
    constexpr const char* kReason =
        "model_type {} is not known, and {}: what an encoder of an unknown type computes is not planned";
    const std::string type = field_name(model.model_type());
    if (names.empty()) {
        const auto is_decoder = model.boolean({"is_decoder"});
        if (is_decoder) return *is_decoder ? "" : fmt::format(kReason, type, "is_decoder is false");
    }
    for (const std::string& name : names) {
        if (holds_any(name, kEncoderClasses))
            return fmt::format(kReason, type, fmt::format("architectures names {}", field_name(name)));
    }
    // transformers calls the texts' side of models like CLIP so.
    const bool is_text_tower = model.model_type().ends_with("_text_model");
    if (is_text_tower || names_a_tower(model.model_type()) || has_word(model.model_type(), {"encoder"}))
        return fmt::format(kReason, type, "its name is a tower's");
    if (const std::string field = encoder_field(model); !field.empty())
        return fmt::format(kReason, type, fmt::format("{} is a field of encoders", field));
    return "";
}

std::string unread_structure_reason(const ModelReader& model) {
    if (model.type_class() != TypeClass::unknown) return "";
    std::vector<std::string> unread;
    model.visit_unread([&](const std::string& field, const std::string& name, const json& value) {
        if (!field.starts_with(model.prefix()) || is_daily_life(model.model_type(), name)) return false;
        if (value.is_object() && names_a_tower(name)) return false;
        const std::string_view path = std::string_view(field).substr(model.prefix().size());
        const bool speaks = speaks_of_attention(path) && names_structure(path, value);
        if ((speaks && !is_off(value)) || (value.is_array() && holds_structure(value))) {
            unread.push_back(printable_field(field));
            return false;
        }
        return value.is_object();
    });
    if (unread.empty()) return "";
    return fmt::format(
        "{}, and {} {} not read: {} may change the heads or the keys that they see, so that nothing is "
        "planned",
        model.model_type().empty()
            ? "no model_type is given"
            : fmt::format("model_type {} is not known", field_name(model.model_type())),
        fmt::join(unread, ", "), unread.size() == 1 ? "is" : "are", unread.size() == 1 ? "it" : "they");
}

}  // namespace attnsmith::problem
