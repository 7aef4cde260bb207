// Models and coverages as JSON.
#include <nlohmann/json.hpp>
#include <string>

#include "attnsmith/coverage.hpp"
#include "attnsmith/spec.hpp"
#include "problem/json_text.hpp"
#include "problem/report/json.hpp"
#include "problem/report/parts.hpp"

namespace attnsmith {
namespace problem {

template <>
struct Written<AttentionRequest> {
    static nlohmann::ordered_json write(const AttentionRequest& request) {
        return parse_ordered_json(to_json(request)).value();
    }
};

template <>
struct ReportTable<ModelAttention> {
    static constexpr auto fields =
        std::tuple(field("name", &ModelAttention::name), field("phase", &ModelAttention::phase),
                   field("layers", &ModelAttention::layers), field("notes", &ModelAttention::notes),
                   field("request", &ModelAttention::request));
};

template <>
struct ReportTable<Model> {
    static constexpr auto fields =
        std::tuple(field("model_type", &Model::model_type), field("attentions", &Model::attentions),
                   field("unsupported", &Model::unsupported), field("warnings", &Model::warnings));
};

template <>
struct ReportTable<Coverage> {
    static constexpr auto fields =
        std::tuple(field("attentions", &Coverage::attentions), field("unsupported", &Coverage::unsupported),
                   field("warnings", &Coverage::warnings), field("skipped", &Coverage::skipped));
};

}  // namespace problem

std::string to_json(const Model& model) { return problem::indented(problem::json_of(model)); }
std::string to_json(const Coverage& coverage) { return problem::indented(problem::json_of(coverage)); }

}  // namespace attnsmith
