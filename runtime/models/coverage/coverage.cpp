#include "models/coverage/coverage.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <utility>
#include <vector>

#include "attnsmith/error.hpp"
#include "models/coverage/variants.hpp"
#include "models/options.hpp"
#include "problem/compute_capability.hpp"
#include "problem/json_text.hpp"
#include "problem/request/problem.hpp"
#include "problem/request/request_fields.hpp"
#include "problem/request/sm_list.hpp"

namespace attnsmith {
namespace {

using nlohmann::json;
using problem::Variant;

bool is_same_part(const UnsupportedPart& a, const UnsupportedPart& b) {
    return a.name == b.name && a.reason == b.reason;
}
bool is_same_part(const SkippedPart& a, const SkippedPart& b) { return a == b; }
bool is_same_part(const ModelWarning& a, const ModelWarning& b) { return a == b; }
bool is_same_part(const AttentionSpec& a, const AttentionSpec& b) { return a == b; }
bool is_same_part(const ModelAttention& a, const ModelAttention& b) {
    return a.name == b.name && a.phase == b.phase && a.request == b.request;
}

// Equal for equal parts, and seldom for others.
std::size_t hash_of(const UnsupportedPart& part) { return problem::hash_of({part.name, part.reason}); }
std::size_t hash_of(const SkippedPart& part) { return problem::hash_of({part.name, part.reason}); }
std::size_t hash_of(const ModelWarning& warning) { return problem::hash_of({warning.field, warning.text}); }
std::size_t hash_of(const AttentionSpec& spec) { return problem::hash_of(spec); }
std::size_t hash_of(const ModelAttention& attention) {
    return problem::hash_of({attention.name, attention.phase}) * 31 + hash_of(attention.request.spec);
}

// A list that has each part once. A program's records may be tens of thousands, so none is looked for from
// the front.
template <typename Part>
class Once {
  public:
    // REQUIRES: `parts` outlives this, and nobody else changes it.
    explicit Once(std::vector<Part>& parts) : parts_(parts) {
        for (std::size_t i = 0; i < parts_.size(); ++i) places_.emplace(hash_of(parts_[i]), i);
    }

    // False: it is there already.
    bool add(Part part) {
        const std::size_t hash = hash_of(part);
        const auto [first, last] = places_.equal_range(hash);
        const bool is_there = std::any_of(
            first, last, [&](const auto& place) { return is_same_part(parts_[place.second], part); });
        if (is_there) return false;
        places_.emplace(hash, parts_.size());
        parts_.push_back(std::move(part));
        return true;
    }

  private:
    std::vector<Part>& parts_;
    std::unordered_multimap<std::size_t, std::size_t> places_;
};

template <typename Part>
void add_all(std::vector<Part>& parts, std::vector<Part> others) {
    Once<Part> once(parts);
    for (Part& part : others) once.add(std::move(part));
}

// Words of pages are a mistake, which validation names, in a request that has no paged KV at all.
std::vector<Variant> variants_of_request(const json& object, std::vector<SkippedPart>& skipped) {
    constexpr KvStorage kDefault = AttentionSpec{}.kv;
    std::vector<Variant> variants = problem::variants_of(object, kDefault, skipped);
    const auto is_paged = [](const Variant& variant) { return problem::is_paged(variant, kDefault); };
    if (std::ranges::any_of(variants, is_paged)) return variants;
    std::erase_if(skipped, [](const SkippedPart& part) { return part.reason == problem::kNoPages; });
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
        Once<ModelAttention> once(seen_);
        for (ModelAttention& attention : model.attentions) {
            if (!once.add(attention)) continue;
            attention.name = problem::labelled(std::move(attention.name), variant);
            result_.attentions.push_back(std::move(attention));
        }
        add_all(result_.unsupported, std::move(model.unsupported));
        add_all(result_.warnings, std::move(model.warnings));
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
    for (ModelAttention& attention : other.attentions) rename(attention.name);
    for (UnsupportedPart& part : other.unsupported) rename(part.name);
    for (ModelWarning& warning : other.warnings) rename(warning.field);
    for (SkippedPart& part : other.skipped) rename(part.name);
    add_all(attentions, std::move(other.attentions));
    add_all(unsupported, std::move(other.unsupported));
    add_all(warnings, std::move(other.warnings));
    add_all(skipped, std::move(other.skipped));
}

std::vector<AttentionSpec> Coverage::specs() const {
    std::vector<AttentionSpec> specs;
    Once<AttentionSpec> once(specs);
    for (const ModelAttention& attention : attentions) once.add(attention.request.spec);
    return specs;
}

std::size_t problem::hash_of(std::initializer_list<std::string_view> texts) {
    std::size_t hash = 0;
    for (const std::string_view text : texts) hash = hash * 31 + std::hash<std::string_view>{}(text);
    return hash;
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
    const json request = problem::parse_json_object(text, {.what = "request"});
    Coverage coverage = problem::coverage_of_request(request);
    if (const auto sm = request.find("sm"); sm != request.end()) {
        for (std::string& sentence : problem::unused_sm_suffixes(*sm))
            coverage.warnings.push_back({WarningKind::ignored, "sm", std::move(sentence)});
    }
    return coverage;
}

Coverage problem::coverage_of_model(std::string_view config_json, const json& options) {
    ModelCoverage coverage;
    for (const Variant& variant : problem::variants_of(options, problem::kModelKv, coverage.skipped())) {
        const ModelOptions given = problem::model_options_from_json(problem::with_choices(options, variant));
        coverage.add(parse_model(config_json, given), variant);
    }
    return std::move(coverage).result();
}

Coverage model_coverage(std::string_view config_json, std::string_view options_json) {
    return problem::coverage_of_model(config_json,
                                      problem::parse_json_object(options_json, {.what = "options"}));
}

Coverage model_coverage(std::string_view config_json, const std::vector<ModelOptions>& variants) {
    if (variants.empty()) throw InvalidRequest("variants", "nothing", "options, at least once");
    ModelCoverage coverage;
    const std::vector<std::string> labels = problem::labels_of(variants);
    for (std::size_t i = 0; i < variants.size(); ++i)
        coverage.add(parse_model(config_json, variants[i]), {.words = {}, .label = labels[i]});
    return std::move(coverage).result();
}

Coverage coverage_of(const std::vector<AttentionRequest>& requests) {
    Coverage coverage;
    for (std::size_t i = 0; i < requests.size(); ++i) {
        const AttentionRequest& given = requests[i];
        std::string name(to_string(given.spec.op));
        if (requests.size() > 1) name += fmt::format(" {}", i);
        try {
            const problem::Problem checked = problem::validate(given.spec, given.sizes);
            for (const int sm : given.sm) problem::check_sm("sm", sm);
            ModelAttention attention;
            attention.name = std::move(name);
            attention.request = {checked.spec, checked.sizes, given.sm};
            const auto is_same = [&](const auto& other) { return other.request == attention.request; };
            if (std::ranges::none_of(coverage.attentions, is_same))
                coverage.attentions.push_back(std::move(attention));
        } catch (const Unsupported& error) {
            coverage.unsupported.push_back({std::move(name), error.what()});
        } catch (const InvalidRequest& error) {
            throw InvalidRequest(fmt::format("requests[{}].{}", i, error.field()), error.value(),
                                 error.accepted());
        }
    }
    return coverage;
}

}  // namespace attnsmith
