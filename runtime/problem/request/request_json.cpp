#include "problem/request/request_json.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "attnsmith/error.hpp"
#include "problem/compute_capability.hpp"
#include "problem/json_text.hpp"
#include "problem/request/ops.hpp"
#include "problem/request/request_fields.hpp"
#include "problem/spelling.hpp"

namespace attnsmith {
namespace problem {
namespace {

using nlohmann::json;

[[noreturn]] void refuse_unknown(const std::string& name) {
    std::vector<std::string_view> names;
    for (const RequestField& field : request_fields()) names.push_back(field.name);
    std::string accepted = "one of " + join_or(names);
    if (const std::string_view nearest = nearest_name(name, names); !nearest.empty()) {
        accepted = fmt::format("{} (did you mean that?), or {}", nearest, accepted);
    }
    throw InvalidRequest(field_name(name), "an unknown field", accepted);
}

void check_head_dim_fields(const json& object, Op op) {
    const OpRequest& request = op_request(op);
    if (request.checks_head_dims != nullptr && request.checks_head_dims(object)) return;
    if (!counts("head_dim", op)) {
        if (!object.contains("head_dim")) return;
        throw InvalidRequest(
            "head_dim", describe(object["head_dim"]),
            request.required.empty()
                ? fmt::format("nothing, with op {}", to_string(op))
                : fmt::format("nothing, with op {}: it takes {}", to_string(op), join_and(request.required)));
    }
    const std::string leading = leading_head_dim(op);
    const bool has_two = leading != "head_dim_vo";
    if (!object.contains("head_dim")) {
        if (object.contains(leading)) return;
        const bool half = has_two && object.contains("head_dim_vo");
        throw InvalidRequest(half ? leading : "head_dim", "nothing",
                             "a multiple of 8 from 8 to 512 (the field is required)");
    }
    for (const char* other : {"head_dim_qk", "head_dim_vo"}) {
        if (!object.contains(other)) continue;
        throw InvalidRequest(
            other, describe(object[other]),
            has_two ? "nothing beside head_dim, which sets it, too: either head_dim, or head_dim_qk "
                      "and head_dim_vo"
                    : "nothing beside head_dim, which sets it, too: either head_dim or head_dim_vo");
    }
}

void check_fields(const json& object) {
    // The op first: another op's fields are not misspelt, they are of an op that is not supported.
    AttentionRequest request;
    if (object.contains("op")) find_field("op")->set(request, "op", object["op"]);
    for (const auto& item : object.items()) {
        if (find_field(item.key()) == nullptr) refuse_unknown(item.key());
    }
    check_head_dim_fields(object, request.spec.op);
    for (const std::string_view name : op_request(request.spec.op).required) {
        if (!object.contains(name))
            throw InvalidRequest(std::string(name), "nothing",
                                 fmt::format("{} (the field is required)", find_field(name)->help));
    }
    if (counts("q_heads", request.spec.op) && !object.contains("q_heads")) {
        throw InvalidRequest("q_heads", "nothing", "a number of query heads (the field is required)");
    }
}

// validate() knows only the two dimensions, and 0 for no page size; the caller may have written the one field
// that sets both, and the 0.
Problem validate_fields(const AttentionRequest& request, const json& object) {
    try {
        // head_dim 0 sets head_dim_vo to the value that means "as head_dim_qk", which is refused first.
        return validate(request.spec, request.sizes);
    } catch (const InvalidRequest& error) {
        if (error.field() == "page_size" && error.value() == "nothing" && object.contains("page_size"))
            throw InvalidRequest("page_size", describe(object["page_size"]), error.accepted());
        if (!object.contains("head_dim") || error.field() != leading_head_dim(request.spec.op)) throw;
        throw InvalidRequest("head_dim", error.value(), error.accepted());
    }
}

}  // namespace

AttentionRequest request_from_json(const json& object) {
    if (!object.is_object()) throw InvalidRequest("request", describe(object), "a JSON object");
    check_fields(object);
    AttentionRequest request;
    for (const RequestField& field : request_fields()) {
        if (const auto found = object.find(field.name); found != object.end())
            field.set(request, field.name, *found);
    }
    request.spec = validate_fields(request, object).spec;
    return request;
}

namespace {

nlohmann::ordered_json fields_of(const AttentionRequest& request, bool with_sm) {
    nlohmann::ordered_json result = nlohmann::ordered_json::object();
    for (const RequestField& field : request_fields()) {
        const bool skipped = field.get == nullptr || (field.type == FieldType::sm_list && !with_sm);
        if (!skipped && counts(field.name, request.spec))
            result[std::string(field.name)] = field.get(request);
    }
    return result;
}

}  // namespace

nlohmann::ordered_json to_json(const Problem& problem) {
    return fields_of(AttentionRequest{problem.spec, problem.sizes, {}}, false);
}

}  // namespace problem

AttentionRequest parse_request(std::string_view json) {
    return problem::request_from_json(problem::parse_json_object(json, {.what = "request"}));
}

std::string to_json(const AttentionRequest& request) {
    const problem::Problem checked = problem::validate(request.spec, request.sizes);
    for (const int sm : request.sm) problem::check_sm("sm", sm);
    return problem::fields_of(AttentionRequest{checked.spec, checked.sizes, request.sm}, true).dump();
}

}  // namespace attnsmith
