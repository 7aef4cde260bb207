#include "problem/model_reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <limits>
#include <utility>
#include <variant>

#include "attnsmith/error.hpp"
#include "problem/json_text.hpp"

namespace attnsmith::problem {
namespace {

using nlohmann::json;

// Values that transformers' configuration classes supply where config.json is silent. A file's own top level
// always carries the sizes, so a size that is missing there is a mistake; parts inside it leave out what
// equals the default. What decides the kind of attention applies everywhere, since without it another
// attention would be planned in silence. A field that says null is not missing.
enum class Applies : std::uint8_t { anywhere, nested_only };

// A list, as a file would write it.
struct Json {
    std::string_view text;
};

json as_json(Json list) { return json::parse(list.text); }
template <typename Scalar>
json as_json(Scalar scalar) {
    return json(scalar);
}

struct ClassDefault {
    std::string_view model_type;
    std::string_view name;
    std::variant<std::int64_t, double, bool, Json> value;
    Applies applies = Applies::anywhere;
};

constexpr auto nested = Applies::nested_only;
constexpr ClassDefault kClassDefaults[] = {
    {"llama", "hidden_size", 4096, nested},
    {"llama", "num_hidden_layers", 32, nested},
    {"llama", "num_attention_heads", 32, nested},
    {"mistral", "hidden_size", 4096, nested},
    {"mistral", "num_hidden_layers", 32, nested},
    {"mistral", "num_attention_heads", 32, nested},
    {"mistral", "num_key_value_heads", 8},
    {"mistral", "sliding_window", 4096},
    {"qwen2", "hidden_size", 4096, nested},
    {"qwen2", "num_hidden_layers", 32, nested},
    {"qwen2", "num_attention_heads", 32, nested},
    {"qwen2", "num_key_value_heads", 32},
    {"qwen2", "use_sliding_window", false},
    {"qwen2", "max_window_layers", 28},
    {"qwen2_moe", "use_sliding_window", false},
    {"qwen2_moe", "max_window_layers", 28},
    {"qwen2_vl", "use_sliding_window", false},
    {"qwen2_vl", "max_window_layers", 80},
    {"qwen2_5_vl", "use_sliding_window", false},
    {"qwen2_5_vl", "max_window_layers", 80},
    {"qwen3", "use_sliding_window", false},
    {"qwen3", "max_window_layers", 28},
    {"qwen3", "head_dim", 128},
    {"qwen3_moe", "use_sliding_window", false},
    {"gemma", "hidden_size", 3072, nested},
    {"gemma", "num_hidden_layers", 28, nested},
    {"gemma", "num_attention_heads", 16, nested},
    {"gemma", "num_key_value_heads", 16},
    {"gemma", "head_dim", 256},
    {"gemma2", "hidden_size", 2304, nested},
    {"gemma2", "num_hidden_layers", 26, nested},
    {"gemma2", "num_attention_heads", 8, nested},
    {"gemma2", "num_key_value_heads", 4},
    {"gemma2", "head_dim", 256},
    {"gemma2", "query_pre_attn_scalar", 256},
    {"gemma2", "attn_logit_softcapping", 50.0},
    {"gemma2", "sliding_window", 4096},
    {"gemma2", "sliding_window_pattern", 2},
    {"gemma3_text", "hidden_size", 2304, nested},
    {"gemma3_text", "num_hidden_layers", 26, nested},
    {"gemma3_text", "num_attention_heads", 8, nested},
    {"gemma3_text", "num_key_value_heads", 4},
    {"gemma3_text", "head_dim", 256},
    {"gemma3_text", "query_pre_attn_scalar", 256},
    {"gemma3_text", "sliding_window", 4096},
    {"gemma3_text", "sliding_window_pattern", 6},
    {"gemma4_text", "hidden_size", 2304, nested},
    {"gemma4_text", "num_hidden_layers", 30, nested},
    {"gemma4_text", "num_attention_heads", 8, nested},
    {"gemma4_text", "num_key_value_heads", 4},
    {"gemma4_text", "head_dim", 256},
    {"gemma4_text", "global_head_dim", 512},
    {"gemma4_text", "sliding_window", 512},
    {"gemma4_text", "sliding_window_pattern", 6},
    {"cohere2", "sliding_window", 4096},
    {"cohere2", "sliding_window_pattern", 4},
    {"olmo3", "sliding_window", 4096},
    {"olmo3", "sliding_window_pattern", 4},
    {"exaone4", "sliding_window", 4096},
    {"exaone4", "sliding_window_pattern", 4},
    {"gpt_oss", "head_dim", 64},
    {"gpt_oss", "sliding_window", 128},
    {"gpt_oss", "sliding_window_pattern", 2},
    {"gpt_neo", "window_size", 256},
    {"llama4_text", "hidden_size", 5120, nested},
    {"llama4_text", "num_hidden_layers", 48, nested},
    {"llama4_text", "num_attention_heads", 40, nested},
    {"llama4_text", "num_key_value_heads", 8},
    {"llama4_text", "head_dim", 128},
    {"llama4_text", "attention_chunk_size", 8192},
    {"modernbert", "local_attention", 128},
    {"modernbert", "global_attn_every_n_layers", 3},
    {"falcon", "multi_query", true},
    {"recurrent_gemma", "attention_window_size", 2048},
    {"grok-1", "attn_output_multiplier", 0.08838834764831845},
    {"grok-1", "max_attn_value", 30.0},
    {"mpt", "attn_config.alibi", true},
    {"gpt_bigcode", "multi_query", true},
    {"granite", "attention_multiplier", 1.0},
    {"granitemoe", "attention_multiplier", 1.0},
    {"granitemoeshared", "attention_multiplier", 1.0},
    {"granitemoehybrid", "attention_multiplier", 1.0},
    {"ministral", "num_key_value_heads", 8},
    {"ministral", "sliding_window", 4096},
    {"ministral3", "num_key_value_heads", 8},
    {"ministral3", "head_dim", 128},
    {"mixtral", "num_key_value_heads", 8},
    {"starcoder2", "num_key_value_heads", 2},
    {"phimoe", "num_key_value_heads", 8},
    {"gpt_oss", "num_key_value_heads", 8},
    {"smollm3", "num_key_value_heads", 4},
    {"glm4_moe", "num_key_value_heads", 8},
    {"qwen2_moe", "num_key_value_heads", 16},
    {"qwen3", "num_key_value_heads", 32},
    {"qwen3_moe", "num_key_value_heads", 4},
    {"lfm2", "num_key_value_heads", 8},
    {"bamba", "num_key_value_heads", 8},
    {"nemotron_h", "num_key_value_heads", 8},
    {"seed_oss", "num_key_value_heads", 8},
    {"minimax", "num_key_value_heads", 8},
    {"qwen2_vl", "num_key_value_heads", 8},
    {"qwen2_5_vl", "num_key_value_heads", 8},
    {"dbrx", "attn_config.kv_n_heads", 1},
    {"qwen3_next", "full_attention_interval", 4},
    {"qwen3_next", "num_key_value_heads", 2},
    {"qwen3_next", "head_dim", 256},
    {"qwen3_vl_text", "head_dim", 128},
    {"glm", "num_key_value_heads", 2},
    {"glm", "head_dim", 128},
    {"glm4", "num_key_value_heads", 2},
    {"glm4", "head_dim", 128},
    {"ernie4_5", "num_key_value_heads", 2},
    {"ernie4_5", "head_dim", 128},
    {"jamba", "num_key_value_heads", 8},
    {"jamba", "attn_layer_period", 8},
    {"jamba", "attn_layer_offset", 4},
    {"gemma3n_text", "num_key_value_heads", 2},
    {"gemma3n_text", "head_dim", 256},
    {"gemma3n_text", "sliding_window", 512},
    {"gemma3n_text", "sliding_window_pattern", 5},
    {"recurrent_gemma", "block_types", Json{R"(["recurrent", "recurrent", "attention"])"}},
    {"gpt_neo", "attention_types", Json{R"([[["global", "local"], 12]])"}},
    {"mllama_text_model", "num_key_value_heads", 8},
    {"mllama_text_model", "cross_attention_layers", Json{"[3, 8, 13, 18, 23, 28, 33, 38]"}},
};

constexpr std::string_view kQueryHeadNames[] = {"num_attention_heads", "n_head", "n_heads", "num_heads",
                                                "num_query_heads"};

const ClassDefault* class_default(std::string_view model_type, std::string_view name, bool is_nested) {
    const auto found = std::ranges::find_if(kClassDefaults, [&](const ClassDefault& entry) {
        return entry.model_type == model_type && entry.name == name;
    });
    if (found == std::end(kClassDefaults) || (found->applies == Applies::nested_only && !is_nested))
        return nullptr;
    return &*found;
}

// The member "a.b" or "a" of an object; null pointer where it is not there.
const json* member(const json& object, std::string_view name) {
    const std::size_t dot = name.find('.');
    const auto found = object.find(std::string(name.substr(0, dot)));
    if (found == object.end()) return nullptr;
    if (dot == name.npos) return &*found;
    return found->is_object() ? member(*found, name.substr(dot + 1)) : nullptr;
}

std::string string_member(const json& object, std::string_view name) {
    const json* found = member(object, name);
    return found != nullptr && found->is_string() ? found->get<std::string>() : std::string();
}

bool true_member(const json& object, std::string_view name) {
    const json* found = member(object, name);
    return found != nullptr && found->is_boolean() && found->get<bool>();
}

bool has_heads(const json& object, bool is_nested) {
    return std::ranges::any_of(kQueryHeadNames, [&](std::string_view name) {
        const json* found = member(object, name);
        if (found != nullptr && !found->is_null()) return true;
        return class_default(string_member(object, "model_type"), name, is_nested) != nullptr;
    });
}

}  // namespace

bool ModelReader::counts_heads(const json& object) { return has_heads(object, true); }

ModelReader::ModelReader(std::string_view text) {
    parts_.push_back(
        parse_json_object(text, {.what = "config.json", .python_constants = true, .exact_integers = false}));
    file_model_type_ = model_type_ = own_model_type();
    encoder_decoder_ =
        true_member(part(), "is_encoder_decoder") || class_of(model_type_) == TypeClass::encoder_decoder;
    if (encoder_decoder_) read_.insert("encoder");  // refused by name, whatever it is
    descend();
}

// Into the part that describes the language model, e.g. text_config of a model that also sees images.
void ModelReader::descend() {
    constexpr int kMostLevels = 4;
    for (int level = 0; level < kMostLevels; ++level) {
        const bool entered = (encoder_decoder_ && enter("decoder")) || enter("text_config") ||
                             enter("llm_config") || enter("language_config") || enter("thinker_config");
        if (!entered) return;
    }
}

// Of the innermost part; empty where it has none.
std::string ModelReader::own_model_type() const {
    const json* type = member(part(), "model_type");
    if (type == nullptr || type->is_null() || type->is_string()) return string_member(part(), "model_type");
    throw InvalidRequest(field("model_type"), describe(*type), "a string");
}

bool ModelReader::enter(std::string_view name) {
    const json* inner = member(part(), name);
    if (inner == nullptr || !inner->is_object()) return false;
    // Some files keep the heads outside and something else inside.
    if (has_heads(part(), !prefix_.empty()) && !has_heads(*inner, true)) return false;
    parts_.push_back(json(*inner));
    prefix_ += std::string(name) + ".";
    if (std::string type = own_model_type(); !type.empty()) model_type_ = std::move(type);
    return true;
}

void ModelReader::note(std::string text) {
    if (std::ranges::find(notes_, text) == notes_.end()) notes_.push_back(std::move(text));
}

bool ModelReader::has(std::string_view name) {
    if (member(part(), name) == nullptr) return false;
    read_.insert(field(name));
    return true;
}

void ModelReader::mark_read(Names names, const json* given) {
    for (const std::string_view name : names) {
        const json* value = member(part(), name);
        const bool agrees = value == nullptr || value->is_null() || given == nullptr || *value == *given;
        if (agrees) read_.insert(field(name));
    }
}

std::optional<ModelReader::Found> ModelReader::find(Names names) {
    bool said_null = false;
    for (const std::string_view name : names) {
        const json* value = member(part(), name);
        if (value == nullptr) continue;
        if (!value->is_null()) {
            mark_read(names, value);
            return Found{*value, field(name)};
        }
        said_null = true;
    }
    mark_read(names, nullptr);
    if (said_null) return std::nullopt;
    for (const std::string_view name : names) {
        const ClassDefault* entry = class_default(model_type_, name, parts_.size() > 1);
        if (entry == nullptr) continue;
        json value = std::visit([](auto value) { return as_json(value); }, entry->value);
        note(fmt::format("{} is not given: {} is the default of {}", field(name), describe(value),
                         field_name(model_type_)));
        return Found{std::move(value), field(name)};
    }
    return std::nullopt;
}

std::optional<std::int64_t> ModelReader::integer(Names names) {
    const auto found = find(names);
    if (!found) return std::nullopt;
    const bool too_large = found->value.is_number_unsigned() &&
                           found->value.get<std::uint64_t>() > std::numeric_limits<std::int64_t>::max();
    if (found->value.is_number_integer() && !too_large) return found->value.get<std::int64_t>();
    throw InvalidRequest(found->field, describe(found->value), "an integer");
}

std::optional<std::int64_t> ModelReader::count(Names names) {
    const auto value = integer(names);
    constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
    if (!value || (*value >= 1 && *value <= kMost)) return value;
    throw InvalidRequest(find(names)->field, std::to_string(*value),
                         fmt::format("an integer from 1 to {}", kMost));
}

std::int64_t ModelReader::required_count(Names names) {
    if (const auto value = count(names)) return *value;
    const std::string of =
        model_type_.empty() ? "" : fmt::format(", of model_type {},", field_name(model_type_));
    throw InvalidRequest(field(*names.begin()), "nothing",
                         fmt::format("an integer: without it the config{} describes no attention", of));
}

std::int64_t ModelReader::query_heads() {
    if (encoder_decoder_ && has("decoder_attention_heads"))
        return required_count({"decoder_attention_heads"});
    for (const std::string_view name : kQueryHeadNames) {
        if (has(name)) {
            if (const auto heads = count({name})) return *heads;
        }
    }
    return required_count({kQueryHeadNames[0]});
}

std::optional<double> ModelReader::number(Names names) {
    const auto found = find(names);
    if (!found) return std::nullopt;
    if (found->value.is_number()) return found->value.get<double>();
    throw InvalidRequest(found->field, describe(found->value), "a number");
}

std::optional<double> ModelReader::positive(Names names) {
    const auto value = number(names);
    if (!value || *value > 0) return value;
    throw InvalidRequest(find(names)->field, fmt::format("{}", *value), "a number above 0");
}

std::optional<bool> ModelReader::boolean(Names names) {
    const auto found = find(names);
    if (!found) return std::nullopt;
    if (found->value.is_boolean()) return found->value.get<bool>();
    throw InvalidRequest(found->field, describe(found->value), "true or false");
}

std::optional<std::string> ModelReader::word(Names names) {
    const auto found = find(names);
    if (!found) return std::nullopt;
    if (found->value.is_string()) return found->value.get<std::string>();
    throw InvalidRequest(found->field, describe(found->value), "a string");
}

std::optional<ModelReader::Found> ModelReader::inherited(Names names) const {
    for (auto part = parts_.rbegin(); part != parts_.rend(); ++part) {
        for (const std::string_view name : names) {
            const json* value = member(*part, name);
            if (value != nullptr && !value->is_null()) return Found{*value, std::string(name)};
        }
    }
    return std::nullopt;
}

std::vector<ModelReader::Found> ModelReader::inside_and_around(std::string_view name) const {
    std::vector<Found> all;
    if (const json* value = member(parts_.front(), name)) all.push_back({*value, std::string(name)});
    if (parts_.size() == 1) return all;
    if (const json* value = member(part(), name)) all.push_back({*value, field(name)});
    return all;
}

std::optional<std::string> ModelReader::inherited_word(Names names) const {
    const auto found = inherited(names);
    if (!found) return std::nullopt;
    if (found->value.is_string()) return found->value.get<std::string>();
    throw InvalidRequest(found->field, describe(found->value), "a string");
}

void ModelReader::disregard(Names names) {
    for (const std::string_view name : names) {
        if (name.ends_with('*')) {
            disregarded_.push_back(field(name.substr(0, name.size() - 1)));
        } else {
            read_.insert(field(name));
        }
    }
}

bool ModelReader::is_read(const std::string& field) const {
    const auto begins = [&](const std::string& beginning) { return field.starts_with(beginning); };
    return read_.contains(field) || std::ranges::any_of(disregarded_, begins);
}

void ModelReader::visit_members(const json& object, const std::string& path, const Visit& visit) const {
    for (const auto& item : object.items()) {
        const std::string field = path + item.key();
        const bool is_name =
            item.key().find('.') == std::string::npos;  // "a.b" as one key is no field b of a
        if (is_name && is_read(field)) continue;
        const bool holds_the_part = item.value().is_object() && prefix_.starts_with(field + ".");
        const bool enter = holds_the_part || visit(field, item.key(), item.value());
        if (enter && item.value().is_object()) visit_members(item.value(), field + ".", visit);
    }
}

void ModelReader::visit_unread(const Visit& visit) const { visit_members(parts_.front(), "", visit); }

}  // namespace attnsmith::problem
