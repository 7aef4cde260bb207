#include "problem/coverage.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "attnsmith/error.hpp"
#include "problem/json_text.hpp"
#include "problem/model_options.hpp"
#include "problem/request_fields.hpp"
#include "problem/variants.hpp"

namespace attnsmith {
namespace {

using nlohmann::json;
using problem::Variant;

template <typename Part, typename Same>
void add_once(std::vector<Part>& parts, Part part, Same same) {
    const auto is_same = [&](const Part& other) { return same(other, part); };
    if (std::ranges::none_of(parts, is_same)) parts.push_back(std::move(part));
}

template <typename Part>
void add_once(std::vector<Part>& parts, Part part) {
    add_once(parts, std::move(part), [](const Part& a, const Part& b) { return a == b; });
}

bool is_same_part(const UnsupportedPart& a, const UnsupportedPart& b) {
    return a.name == b.name && a.reason == b.reason;
}

bool is_same_attention(const ModelAttention& a, const ModelAttention& b) {
    return a.name == b.name && a.phase == b.phase && a.request == b.request;
}

// Of a request that has no paged KV at all, words of pages are a mistake, which validation names.
std::vector<Variant> variants_of_request(const json& object, std::vector<SkippedPart>& skipped) {
    constexpr KvStorage kDefault = AttentionSpec{}.kv;
    std::vector<Variant> variants = problem::variants_of(object, kDefault, skipped);
    const auto is_paged = [](const Variant& variant) { return problem::is_paged(variant, kDefault); };
    if (std::ranges::any_of(variants, is_paged)) return variants;
    skipped.clear();
    for (const problem::RequestField& field : problem::request_fields()) {
        const auto given = object.find(field.name);
        if (!field.of_pages || given == object.end()) continue;
        for (Variant& variant : variants)
            variant.words[std::string(field.name)] = given->is_array() ? given->front() : *given;
    }
    return variants;
}

// What the attentions of one model, over all variants, are known by: with the label another name would be
// another attention.
class ModelCoverage {
  public:
    void add(Model model, const Variant& variant) {
        for (ModelAttention& attention : model.attentions) {
            if (std::ranges::any_of(seen_,
                                    [&](const auto& one) { return is_same_attention(one, attention); }))
                continue;
            seen_.push_back(attention);
            attention.name = problem::labelled(std::move(attention.name), variant);
            result_.attentions.push_back(std::move(attention));
        }
        for (UnsupportedPart& part : model.unsupported)
            add_once(result_.unsupported, std::move(part), is_same_part);
        for (ModelWarning& warning : model.warnings) add_once(result_.warnings, std::move(warning));
    }

    std::vector<SkippedPart>& skipped() { return result_.skipped; }
    Coverage result() && { return std::move(result_); }

  private:
    std::vector<ModelAttention> seen_;
    Coverage result_;
};

}  // namespace

void Coverage::add(Coverage other, std::string_view prefix) {
    const auto rename = [&](std::string& name) { name.insert(0, prefix); };
    for (ModelAttention& attention : other.attentions) {
        rename(attention.name);
        add_once(attentions, std::move(attention), is_same_attention);
    }
    for (UnsupportedPart& part : other.unsupported) {
        rename(part.name);
        add_once(unsupported, std::move(part), is_same_part);
    }
    for (ModelWarning& warning : other.warnings) {
        rename(warning.field);
        add_once(warnings, std::move(warning));
    }
    for (SkippedPart& part : other.skipped) {
        rename(part.name);
        add_once(skipped, std::move(part));
    }
}

std::vector<AttentionSpec> Coverage::specs() const {
    std::vector<AttentionSpec> specs;
    for (const ModelAttention& attention : attentions) add_once(specs, attention.request.spec);
    return specs;
}

Coverage problem::coverage_of_request(const json& object) {
    Coverage coverage;
    for (const Variant& variant : variants_of_request(object, coverage.skipped)) {
        ModelAttention attention;
        try {
            attention.request = problem::request_from_json(problem::with_choices(object, variant));
        } catch (const Unsupported& error) {
            if (variant.label.empty()) throw;
            coverage.unsupported.push_back({variant.label, error.what()});
            continue;
        }
        const auto is_same = [&](const auto& other) { return other.request == attention.request; };
        if (std::ranges::any_of(coverage.attentions, is_same)) continue;
        if (!variant.label.empty())
            attention.name = problem::labelled(std::string(to_string(attention.request.spec.op)), variant);
        coverage.attentions.push_back(std::move(attention));
    }
    return coverage;
}

Coverage request_coverage(std::string_view text) {
    return problem::coverage_of_request(problem::parse_json_object(text, {.what = "request"}));
}

Coverage problem::coverage_of_model(std::string_view config_json, const json& options) {
    ModelCoverage coverage;
    for (const Variant& variant : problem::variants_of(options, ModelOptions{}.kv, coverage.skipped())) {
        const ModelOptions given = problem::model_options_from_json(problem::with_choices(options, variant));
        coverage.add(parse_model(config_json, given), variant);
    }
    return std::move(coverage).result();
}

Coverage model_coverage(std::string_view config_json, std::string_view options_json) {
    return problem::coverage_of_model(config_json,
                                      problem::parse_json_object(options_json, {.what = "options"}));
}

std::string to_json(const Coverage& coverage) {
    const Model model{.model_type = {},
                      .attentions = coverage.attentions,
                      .unsupported = coverage.unsupported,
                      .warnings = coverage.warnings};
    auto json = nlohmann::ordered_json::parse(to_json(model));
    json.erase("model_type");
    json["skipped"] = nlohmann::ordered_json::array();
    for (const SkippedPart& part : coverage.skipped)
        json["skipped"].push_back({{"name", part.name}, {"reason", part.reason}});
    return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace attnsmith
