#include "models/coverage/variants.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "attnsmith/error.hpp"
#include "problem/json_text.hpp"
#include "problem/request/request_fields.hpp"
#include "problem/vocabulary.hpp"

namespace attnsmith::problem {
namespace {

using nlohmann::json;

constexpr std::size_t kMostVariants = 4096;

std::string value_text(const json& value) {
    if (value.is_boolean()) return value.get<bool>() ? "on" : "off";
    const bool plain =
        value.is_string() && describe(value) == fmt::format("\"{}\"", value.get<std::string>());
    return plain ? value.get<std::string>() : describe(value);
}

[[noreturn]] void refuse_number(const RequestField& field, std::size_t values) {
    throw InvalidRequest(std::string(field.name), fmt::format("{} values", values),
                         fmt::format("at most {} combinations with the other words", kMostVariants));
}

// A word by its own name, where the value is another spelling of it.
json usual_spelling(const RequestField& field, const json& value) {
    if (field.type != FieldType::word || !value.is_string()) return value;
    try {
        AttentionRequest request;
        field.set(request, field.name, value);
        return field.get(request);
    } catch (const Error&) {
        return value;  // refused with the rest of its request
    }
}

// Each once, in the order given.
std::vector<json> values_of(const RequestField& field, const json& given) {
    if (!given.is_array()) return {given};
    if (given.size() > kMostVariants) refuse_number(field, given.size());
    std::vector<json> values;
    for (const json& one : given) {
        const json value = usual_spelling(field, one);
        if (std::ranges::find(values, value) == values.end()) values.push_back(value);
    }
    if (values.empty()) throw InvalidRequest(std::string(field.name), "[]", "a value, or several");
    return values;
}

void add_label(std::string& label, const RequestField& field, const json& value) {
    if (!label.empty()) label += ", ";
    label += fmt::format("{} {}", field.name, value_text(value));
}

Variant with_value(const Variant& variant, const RequestField& field, const json& value,
                   bool one_of_several) {
    Variant result = variant;
    result.words[std::string(field.name)] = value;
    if (one_of_several) add_label(result.label, field, value);
    return result;
}

void skip_once(SkippedPart part, std::vector<SkippedPart>& skipped) {
    if (std::ranges::find(skipped, part) == skipped.end()) skipped.push_back(std::move(part));
}

void skip_pages(const RequestField& field, const Variant& variant, KvStorage otherwise,
                std::vector<SkippedPart>& skipped) {
    const auto kv = variant.words.find("kv");
    const std::string stored =
        kv == variant.words.end() ? std::string(to_string(otherwise)) : value_text(*kv);
    skip_once({fmt::format("{} with kv {}", field.name, stored), std::string(kNoPages)}, skipped);
}

// Whether o may be stored so, as far as the words say how q is.
bool output_suits(const Variant& variant) {
    const auto dtype = variant.words.find("dtype"), o_dtype = variant.words.find("o_dtype");
    if (dtype == variant.words.end() || o_dtype == variant.words.end()) return true;
    try {
        const DType output = kOutputDTypeWords.parse("o_dtype", o_dtype->get<std::string>());
        return output == DType::fp32 || output == kFloatDTypeWords.parse("dtype", dtype->get<std::string>());
    } catch (const std::exception&) {
        return true;  // the fields' setters name what is no word, or not supported
    }
}

// Whether k and v may have scales, as far as the words say how they are stored.
bool scale_suits(const Variant& variant) {
    const auto dtype = variant.words.find("kv_dtype"), scale = variant.words.find("kv_scale");
    if (dtype == variant.words.end() || scale == variant.words.end()) return true;
    try {
        return kKvScaleWords.parse("kv_scale", scale->get<std::string>()) == KvScale::none ||
               is_fp8(kKvDTypeWords.parse("kv_dtype", dtype->get<std::string>()));
    } catch (const std::exception&) {
        return true;
    }
}

// Leaves out those whose words do not go together. Where no combination is possible, all are left to
// validation, which names what is wrong.
void skip_unsuited(std::vector<Variant>& variants, bool (*suits)(const Variant&), const char* field,
                   const char* beside, const char* reason, std::vector<SkippedPart>& skipped) {
    if (std::ranges::none_of(variants, suits)) return;
    std::erase_if(variants, [&](const Variant& variant) {
        if (suits(variant)) return false;
        skip_once({fmt::format("{} {} with {} {}", field, value_text(variant.words.at(field)), beside,
                               value_text(variant.words.at(beside))),
                   reason},
                  skipped);
        return true;
    });
}

}  // namespace

// A `kv` that is no word at all is refused by its field's setter.
bool is_paged(const Variant& variant, KvStorage otherwise) {
    const auto kv = variant.words.find("kv");
    if (kv == variant.words.end()) return otherwise == KvStorage::paged;
    return kv->is_string() &&
           kKvStorageWords.parse("kv", kv->get_ref<const std::string&>()) == KvStorage::paged;
}

json with_choices(const json& object, const Variant& variant) {
    json result = object;
    for (const RequestField& field : request_fields()) {
        if (field.role == FieldRole::choice) result.erase(std::string(field.name));
    }
    result.update(variant.words);
    return result;
}

std::string labelled(std::string name, const Variant& variant) {
    return variant.label.empty() ? name : fmt::format("{} ({})", name, variant.label);
}

std::vector<std::string> labels_of(const std::vector<ModelOptions>& options) {
    std::vector<std::string> labels(options.size());
    for (const RequestField& field : request_fields()) {
        if (field.option == nullptr) continue;
        std::vector<json> values;
        for (const ModelOptions& one : options) values.emplace_back(field.option(one));
        const auto is_first = [&](const json& value) { return value == values.front(); };
        if (std::ranges::all_of(values, is_first)) continue;
        for (std::size_t i = 0; i < values.size(); ++i) {
            if (!values[i].is_null()) add_label(labels[i], field, values[i]);
        }
    }
    return labels;
}

std::vector<Variant> variants_of(const json& object, KvStorage kv, std::vector<SkippedPart>& skipped) {
    std::vector<Variant> variants(1);
    for (const RequestField& field : request_fields()) {
        const auto given = object.find(field.name);
        if (field.role != FieldRole::choice || given == object.end()) continue;
        const std::vector<json> values = values_of(field, *given);
        std::vector<Variant> more;
        for (Variant& variant : variants) {
            if (field.of_pages && !is_paged(variant, kv)) {
                skip_pages(field, variant, kv, skipped);
                more.push_back(std::move(variant));
                continue;
            }
            for (const json& value : values)
                more.push_back(with_value(variant, field, value, values.size() > 1));
        }
        variants = std::move(more);
        if (variants.size() > kMostVariants) {
            refuse_number(field, values.size());
        }
    }
    skip_unsuited(variants, output_suits, "o_dtype", "dtype", "o has the type of q, k and v, or fp32",
                  skipped);
    skip_unsuited(variants, scale_suits, "kv_scale", "kv_dtype", "scales are of e4m3 and e5m2", skipped);
    return variants;
}

}  // namespace attnsmith::problem
