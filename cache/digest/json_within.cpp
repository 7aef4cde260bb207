#include "cache/digest/json_within.hpp"

#include <nlohmann/json.hpp>

namespace attnsmith::cache {

nlohmann::ordered_json parse_json_within(std::string_view text, int deepest) {
    using Json = nlohmann::ordered_json;
    bool is_too_deep = false;
    const auto within = [&](int depth, Json::parse_event_t, const Json&) {
        is_too_deep = is_too_deep || depth > deepest;
        return !is_too_deep;
    };
    Json json = Json::parse(text, within, false);
    return is_too_deep ? Json(Json::value_t::discarded) : json;
}

}  // namespace attnsmith::cache
