// A model's attentions as JSON.
#include <nlohmann/json.hpp>
#include <string>

#include "attnsmith/spec.hpp"

namespace attnsmith {
namespace {

using Json = nlohmann::ordered_json;

Json attention_json(const ModelAttention& attention) {
    return {{"name", attention.name},
            {"phase", attention.phase},
            {"layers", attention.layers},
            {"notes", attention.notes},
            {"request", Json::parse(to_json(attention.request))}};
}

}  // namespace

std::string to_json(const Model& model) {
    Json json = {{"model_type", model.model_type},
                 {"attentions", Json::array()},
                 {"unsupported", Json::array()},
                 {"warnings", Json::array()}};
    for (const ModelAttention& attention : model.attentions) {
        json["attentions"].push_back(attention_json(attention));
    }
    for (const UnsupportedPart& part : model.unsupported) {
        json["unsupported"].push_back({{"name", part.name}, {"reason", part.reason}});
    }
    for (const ModelWarning& warning : model.warnings) {
        json["warnings"].push_back(
            {{"kind", to_string(warning.kind)}, {"field", warning.field}, {"text", warning.text}});
    }
    return json.dump(2, ' ', false, Json::error_handler_t::replace);
}

}  // namespace attnsmith
