#include "models/reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "attnsmith/error.hpp"
#include "models/defaults.hpp"
#include "models/field_readers.hpp"
#include "problem/json_text.hpp"
#include "problem/vocabulary.hpp"

namespace attnsmith::problem {
namespace {

using nlohmann::json;

constexpr std::string_view kQueryHeadNames[] = {"num_attention_heads", "n_head", "n_heads", "num_heads",
                                                "num_query_heads"};

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

// What is nothing but an object, null or false where a file is sound: its fields would be passed over.
constexpr std::string_view kObjects[] = {"text_config",        "llm_config",   "language_config",
                                         "thinker_config",     "rope_scaling", "rope_parameters",
                                         "quantization_config"};

bool true_member(const json& object, std::string_view name) {
    const json* found = member(object, name);
    if (found == nullptr || found->is_null()) return false;
    if (!found->is_boolean()) throw InvalidRequest(std::string(name), describe(*found), "true or false");
    return found->get<bool>();
}

// An object that says no model_type is of the one given.
bool has_heads(const json& object, std::string_view model_type, bool is_nested) {
    const std::string own_type = string_member(object, "model_type");
    return std::ranges::any_of(kQueryHeadNames, [&](std::string_view name) {
        const json* found = member(object, name);
        if (found != nullptr && !found->is_null()) return true;
        const Silence silence = is_nested ? Silence::nested : Silence::top_level;
        return class_default(own_type.empty() ? model_type : own_type, name, silence).has_value();
    });
}

}  // namespace

bool ModelReader::counts_heads(const json& object) { return has_heads(object, "", true); }

ModelReader::ModelReader(std::string_view text) {
    parts_.push_back(parse_json_object(text, {.what = "config.json",
                                              .python_constants = true,
                                              .exact_integers = false,
                                              .most_bytes = kMostModelBytes}));
    file_model_type_ = model_type_ = own_model_type();
    encoder_decoder_ =
        true_member(part(), "is_encoder_decoder") || class_of(model_type_) == TypeClass::encoder_decoder;
    if (encoder_decoder_) read_.insert("encoder");  // refused by name, whatever it is
    check_objects();
    descend();
    settle_type();
}

void ModelReader::check_objects() const {
    for (const std::string_view name : kObjects) {
        const json* value = member(part(), name);
        if (value == nullptr || value->is_null() || value->is_object() || *value == false) continue;
        throw InvalidRequest(field(name), describe(*value), "an object");
    }
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

// The innermost part's; empty where it has none.
std::string ModelReader::own_model_type() const {
    const json* type = member(part(), "model_type");
    if (type == nullptr || type->is_null() || type->is_string()) return string_member(part(), "model_type");
    throw InvalidRequest(field("model_type"), describe(*type), "a string");
}

bool ModelReader::enter(std::string_view name) {
    const json* inner = member(part(), name);
    if (inner == nullptr || !inner->is_object()) return false;
    // Some files keep the heads outside and something else inside.
    const std::string_view given_type = text_type_of(model_type_);
    if (has_heads(part(), model_type_, !prefix().empty()) && !has_heads(*inner, given_type, true))
        return false;
    parts_.push_back(json(*inner));
    prefixes_.push_back(field(name) + ".");
    if (std::string type = own_model_type(); !type.empty()) {
        model_type_ = std::move(type);
    } else if (name != "thinker_config" && !given_type.empty()) {
        take_type(given_type);  // a thinker holds the text in its turn
    }
    check_objects();
    return true;
}

// A type that only holds a language model is none of a language model: its class says which one it holds.
void ModelReader::settle_type() {
    if (!holds_language_model(model_type_)) return;
    const std::string_view inside = text_type_of(model_type_);
    if (inside.empty())
        throw InvalidRequest(
            field("model_type"), prefix().empty() ? quote(model_type_) : "nothing",
            fmt::format("the type of the language model that {} holds, in its part of the file",
                        field_name(model_type_)));
    take_type(inside);
}

void ModelReader::take_type(std::string_view type) {
    note(fmt::format("the language model of {} is planned as {}: the file names no other type",
                     field_name(model_type_), field_name(type)));
    model_type_ = type;
}

void ModelReader::note(std::string text) {
    if (std::ranges::find(notes_, text) == notes_.end()) notes_.push_back(std::move(text));
}

void ModelReader::warn(WarningKind kind, std::string field, std::string text) {
    const auto is_same = [&](const ModelWarning& other) {
        return other.field == field && other.text == text;
    };
    if (std::ranges::none_of(warnings_, is_same))
        warnings_.push_back({kind, std::move(field), std::move(text)});
}

const json* ModelReader::own_member(std::string_view name) const {
    return reads_field(model_type_, name) ? member(part(), name) : nullptr;
}

bool ModelReader::has(std::string_view name) {
    if (own_member(name) == nullptr) return false;
    read_.insert(field(name));
    return true;
}

bool ModelReader::lists(std::string_view name) const {
    const json* value = own_member(name);
    return value != nullptr && value->is_array();
}

void ModelReader::mark_read(Names names, const json* given) {
    for (const std::string_view name : names) {
        const json* value = member(part(), name);
        const bool is_silent = value == nullptr || value->is_null();
        const bool agrees = given == nullptr ? reads_field(model_type_, name) : is_silent || *value == *given;
        if (is_silent || agrees) read_.insert(field(name));
    }
}

std::optional<ModelReader::Found> ModelReader::find(Names names) {
    bool said_null = false;
    for (const std::string_view name : names) {
        const json* value = own_member(name);
        if (value == nullptr) continue;
        if (!value->is_null()) {
            mark_read(names, value);
            return Found{*value, field(name)};
        }
        said_null = true;
    }
    mark_read(names, nullptr);
    const Silence silence = said_null           ? Silence::null
                            : parts_.size() > 1 ? Silence::nested
                                                : Silence::top_level;
    for (const std::string_view name : names) {
        std::optional<json> value = class_default(model_type_, name, silence);
        if (!value) continue;
        note(fmt::format("{} is not given: {} is the default of {}", field(name), describe(*value),
                         field_name(model_type_)));
        return Found{std::move(*value), field(name), true};
    }
    return std::nullopt;
}

void ModelReader::agree(Names names, const json& value) {
    for (const std::string_view name : names) {
        const json* given = member(part(), name);
        if (given != nullptr && *given == value) read_.insert(field(name));
    }
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

std::optional<ModelReader::Sourced> ModelReader::sourced_count(Names names) {
    const auto number = count(names);
    if (!number) return std::nullopt;
    return Sourced{*number, *find(names)};
}

std::int64_t ModelReader::required_count(Names names) { return required_sourced(names).number; }

ModelReader::Sourced ModelReader::required_sourced(Names names) {
    if (auto value = sourced_count(names)) return *std::move(value);
    const std::string of =
        model_type_.empty() ? "" : fmt::format(", of model_type {},", field_name(model_type_));
    throw InvalidRequest(field(*names.begin()), "nothing",
                         fmt::format("an integer: without it the config{} describes no attention", of));
}

ModelReader::Sourced ModelReader::query_heads() {
    if (encoder_decoder_ && has("decoder_attention_heads"))
        return required_sourced({"decoder_attention_heads"});
    for (const std::string_view name : kQueryHeadNames) {
        if (has(name)) {
            if (auto heads = sourced_count({name})) return *std::move(heads);
        }
    }
    return required_sourced({kQueryHeadNames[0]});
}

std::optional<double> ModelReader::number(Names names) {
    const auto found = find(names);
    if (!found) return std::nullopt;
    if (found->value.is_number()) {
        const auto value = found->value.get<double>();
        if (std::isfinite(value)) return value;
    }
    throw InvalidRequest(found->field, describe(found->value), "a finite number");
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
    for (std::size_t part = parts_.size(); part-- > 0;) {
        for (const std::string_view name : names) {
            const json* value = member(parts_[part], name);
            if (value != nullptr && !value->is_null())
                return Found{*value, prefixes_[part] + std::string(name)};
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

void ModelReader::derive(std::string_view request_field, const Found& found) {
    origins_.insert_or_assign(std::string(request_field), found);
}

void ModelReader::derive(std::string_view request_field, Names names) {
    if (const auto found = find(names)) derive(request_field, *found);
}

std::string ModelReader::shown(const Found& found) const {
    const std::string value = describe(found.value);
    return found.is_default ? fmt::format("{}, the default of {},", value, field_name(model_type_)) : value;
}

InvalidRequest ModelReader::traced(const InvalidRequest& error) const {
    const auto origin = origins_.find(error.field());
    if (origin == origins_.end()) return error;
    const Found& found = origin->second;
    const bool is_same = describe(found.value) == error.value();
    return {found.field, shown(found),
            is_same ? error.accepted()
                    : fmt::format("a value whose {} is {}; here it is {}", error.field(), error.accepted(),
                                  error.value())};
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
        const bool holds_the_part = item.value().is_object() && prefix().starts_with(field + ".");
        const bool enter = holds_the_part || visit(field, item.key(), item.value());
        if (enter && item.value().is_object()) visit_members(item.value(), field + ".", visit);
    }
}

void ModelReader::visit_unread(const Visit& visit) const { visit_members(parts_.front(), "", visit); }

}  // namespace attnsmith::problem
