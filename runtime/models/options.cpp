#include "models/options.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "attnsmith/error.hpp"
#include "problem/json_text.hpp"
#include "problem/request/request_fields.hpp"
#include "problem/vocabulary.hpp"

namespace attnsmith {
namespace problem {
namespace {

constexpr std::string_view kTensorParallel = "tensor_parallel";
constexpr std::string_view kStrict = "strict";
constexpr std::int64_t kMostGpus = std::int64_t{1} << 20;

[[noreturn]] void refuse_unknown(const std::string& name) {
    std::vector<std::string_view> names = model_request_fields();
    names.insert(names.end(), {kTensorParallel, kStrict});
    std::string accepted = "one of " + join_or(names);
    if (const std::string_view nearest = nearest_name(name, names); !nearest.empty()) {
        accepted = fmt::format("{} (did you mean that?), or {}", nearest, accepted);
    }
    throw InvalidRequest(field_name(name), "an unknown field", accepted);
}

std::int64_t tensor_parallel(const nlohmann::json& value) {
    if (value.is_number_integer() && value >= 1 && value <= kMostGpus) return value.get<std::int64_t>();
    throw InvalidRequest(std::string(kTensorParallel), describe(value),
                         fmt::format("an integer from 1 to {}", kMostGpus));
}

bool strict(const nlohmann::json& value) {
    if (value.is_boolean()) return value.get<bool>();
    throw InvalidRequest(std::string(kStrict), describe(value), "true or false");
}

}  // namespace

bool is_model_option(const RequestField& field) {
    return field.role == FieldRole::choice || field.role == FieldRole::size;
}

std::vector<std::string_view> model_request_fields() {
    std::vector<std::string_view> names;
    for (const RequestField& field : request_fields()) {
        if (is_model_option(field)) names.push_back(field.name);
    }
    return names;
}

AttentionRequest request_of(const ModelOptions& options) {
    AttentionRequest request;
    for (const RequestField& field : request_fields())
        if (field.from_options != nullptr) field.from_options(request, options);
    request.spec.kv = options.kv.value_or(kModelKv);
    return request;
}

void check_append_options(const ModelOptions& options) {
    if (options.slots) return;
    for (const RequestField& field : request_fields()) {
        if (field.option == nullptr || field.from_options != nullptr) continue;
        const nlohmann::ordered_json value = field.option(options);
        if (value == field.option(ModelOptions{})) continue;
        throw InvalidRequest(std::string(field.name),
                             value.is_string() ? value.get<std::string>() : describe(value),
                             "nothing without slots, which asks for a model's appends");
    }
}

ModelOptions model_options_from_json(const nlohmann::json& object) {
    ModelOptions options;
    AttentionRequest request = request_of(options);  // the fields' setters know only this
    for (const auto& item : object.items()) {
        const std::string& name = item.key();
        if (name == kTensorParallel) {
            options.tensor_parallel = tensor_parallel(item.value());
        } else if (name == kStrict) {
            options.strict = strict(item.value());
        } else if (const RequestField* field = find_field(name);
                   field != nullptr && is_model_option(*field)) {
            field->set(request, name, item.value());
            field->to_options(request, options);
        } else {
            refuse_unknown(name);
        }
    }
    return options;
}

}  // namespace problem

ModelOptions parse_model_options(std::string_view json) {
    return problem::model_options_from_json(problem::parse_json_object(json, {.what = "options"}));
}

}  // namespace attnsmith
