#include "c_api/request.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "attnsmith/error.hpp"
#include "c_api/arguments.hpp"
#include "problem/request/problem.hpp"
#include "problem/request/request_fields.hpp"

namespace attnsmith::c_api {
namespace {

using problem::CRequest;
using problem::FieldRole;
using problem::RequestField;

// The fields of one struct, which errors call `name`.
void read_fields(AttentionRequest& request, const CRequest& given, bool (*is_member)(const RequestField&),
                 std::string_view name) {
    for (const RequestField& field : problem::request_fields()) {
        if (field.from_c == nullptr || !is_member(field)) continue;
        try {
            field.from_c(request, field.name, given);
        } catch (const InvalidRequest& error) {
            refuse(fmt::format("{}.{}", name, error.field()), error.value(), error.accepted());
        }
    }
}

bool is_size(const RequestField& field) { return field.role == FieldRole::size; }

CRequest write_fields(const AttentionRequest& request) {
    CRequest c;
    for (const RequestField& field : problem::request_fields()) {
        if (field.to_c != nullptr) field.to_c(request, c);
    }
    return c;
}

}  // namespace

AttentionSpec read_spec(const attnsmith_spec* given, std::string_view name) {
    AttentionRequest request;
    const attnsmith_spec spec = read_struct(given, name);
    check_reserved(name, spec.reserved);
    read_fields(request, {.spec = spec}, problem::is_of_spec, name);
    return request.spec;
}

PlanSizes read_sizes(const attnsmith_sizes* given) {
    if (given == nullptr) return {};
    AttentionRequest request;
    read_fields(request, {.sizes = read_struct(given, "sizes")}, is_size, "sizes");
    return request.sizes;
}

void write_spec(attnsmith_spec& to, std::size_t size, const AttentionSpec& spec) {
    const attnsmith_spec whole = write_fields({spec, {}, {}}).spec;
    attnsmith_spec part{};
    std::memcpy(&part, &whole, std::min(size, sizeof part));
    part.size = sizeof part;
    if (problem::validate(read_spec(&part, "spec"), {}).spec != spec) {
        refuse("spec.size", std::to_string(size),
               fmt::format("{}: the request has what the caller's header has no field for", sizeof whole));
    }
    write_struct(to, size, whole);
}

attnsmith_sizes to_c(const PlanSizes& sizes) { return write_fields({{}, sizes, {}}).sizes; }

}  // namespace attnsmith::c_api
