#include "cli/asked/field_help.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "models/options.hpp"
#include "planner/plan.hpp"
#include "planner/repository_tuning.hpp"
#include "problem/compute_capability.hpp"
#include "problem/json_text.hpp"
#include "problem/request/problem.hpp"
#include "problem/request/request_fields.hpp"
#include "problem/spelling.hpp"
#include "problem/vocabulary.hpp"

namespace attnsmith::cli {
namespace {

using nlohmann::ordered_json;
using problem::RequestField;

// Nothing for what is absent, 0 or false by default: the field's own text says what that means. Nothing
// for a word that says itself that it is the default.
std::string default_text(const RequestField& field, const AttentionRequest& request) {
    if (field.get == nullptr) return {};
    const ordered_json value = field.get(request);
    if (value.is_string() && value != "standard") return value.get<std::string>();
    return value.is_number() && value != 0 ? problem::one_line(value) : std::string();
}

std::string model_default_text(const RequestField& field) {
    const ModelOptions options;
    if (field.name == "dtype" && !options.dtype) return "the model's own";
    return default_text(field, problem::request_of(options));
}

std::string defaults_text(const RequestField& field, FieldSource source, const AttentionRequest& request) {
    const std::string own = source == FieldSource::model ? "" : default_text(field, request);
    const bool of_model = source != FieldSource::request && problem::is_model_option(field);
    const std::string model = of_model ? model_default_text(field) : "";
    if (source == FieldSource::model) return model.empty() ? "" : "default " + model;
    if (model.empty() || model == own) return own.empty() ? "" : "default " + own;
    const std::string with_model = "with --model " + model;
    return own.empty() ? "default " + with_model : fmt::format("default {}; {}", own, with_model);
}

bool is_planned_somewhere(const AttentionSpec& spec) {
    return std::ranges::any_of(problem::known_sms(), [&](int sm) {
        try {
            (void)planner::kernel_set(spec, sm, planner::repository_tuning());
            return true;
        } catch (const Unsupported&) {
            return false;
        }
    });
}

// An ordinary request with that word, or nothing where the two do not go together.
std::optional<AttentionSpec> request_with(nlohmann::json request, const RequestField& field,
                                          std::string_view word) {
    request[std::string(field.name)] = word;
    try {
        const Op op =
            problem::kOpWords.parse("op", request.value("op", std::string(to_string(Op::attention))));
        if (problem::counts("q_heads", op)) request["q_heads"] = 8;
        if (op == Op::mla)
            request.update({{"head_dim_ckv", 512}, {"head_dim_kpe", 64}, {"scale", 0.1}});
        else if (problem::counts("head_dim", op))
            request["head_dim"] = 128;
        return problem::request_from_json(request).spec;
    } catch (const Error&) {
        return std::nullopt;
    }
}

bool is_served(const RequestField& field, std::string_view word) {
    const nlohmann::json dense = nlohmann::json::object();
    const nlohmann::json paged = {{"kv", "paged"}, {"page_size", 16}};
    const nlohmann::json half = {{"dtype", "fp16"}};
    const nlohmann::json stored = {{"kv_dtype", "e4m3"}};
    const nlohmann::json append = {{"op", "append"}}, rotated = {{"op", "append"}, {"rope", "half"}};
    const std::initializer_list requests{dense, paged, half, stored, append, rotated};
    return std::ranges::any_of(requests, [&](const nlohmann::json& request) {
        const auto spec = request_with(request, field, word);
        return spec && is_planned_somewhere(*spec);
    });
}

std::string unserved_text(const RequestField& field) {
    if (!field.words) return {};
    std::vector<std::string_view> unserved;
    for (const std::string_view word : field.words()) {
        if (!is_served(field, word)) unserved.push_back(word);
    }
    if (unserved.empty()) return {};
    return fmt::format("nothing serves {} yet", problem::join_or(unserved));
}

}  // namespace

std::string field_details(const RequestField& field, FieldSource source, const AttentionRequest& request) {
    const std::string defaults = defaults_text(field, source, request);
    const std::string unserved = unserved_text(field);
    if (defaults.empty() && unserved.empty()) return {};
    return fmt::format(" ({}{}{})", defaults, defaults.empty() || unserved.empty() ? "" : "; ", unserved);
}

}  // namespace attnsmith::cli
