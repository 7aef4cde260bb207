#include "c_api/error.hpp"

#include <cstdlib>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>
#include <string>

#include "problem/failure.hpp"
#include "problem/json_text.hpp"

struct attnsmith_error {
    attnsmith_code code;
    const char* message;
    const char* details;
    const char* field;
    std::int32_t driver_code;
};

namespace attnsmith::c_api {
namespace {

// What is reported where there is no memory for a report.
constinit attnsmith_error out_of_memory{
    ATTNSMITH_CODE_OUT_OF_MEMORY, "the host is out of memory",
    R"({"code": "out_of_memory", "message": "the host is out of memory"})", "", 0};

struct OwnedError : attnsmith_error {
    OwnedError() : attnsmith_error{} {}

    std::string message_text;
    std::string details_text;
    std::string field_text;
};

std::string valid_utf8(const std::string& text) {
    return problem::parse_json(problem::json_string(text)).value().get<std::string>();
}

attnsmith_error* make_error(const problem::Failure& failure) {
    auto error = std::make_unique<OwnedError>();
    error->code = failure.code;
    error->driver_code = failure.driver_code;
    error->field_text = valid_utf8(failure.field);
    error->message_text = valid_utf8(failure.message);
    error->details_text = "{" + problem::fields_text(failure) + "}";
    error->message = error->message_text.c_str();
    error->field = error->field_text.c_str();
    error->details = error->details_text.c_str();
    return error.release();
}

}  // namespace

attnsmith_code report_exception(attnsmith_error** error) noexcept {
    try {
        const problem::Failure failure = problem::current_failure();
        if (error != nullptr) *error = make_error(failure);
        return failure.code;
    } catch (...) {  // there is no memory, or was none for the report
        if (error != nullptr) *error = &out_of_memory;
        return ATTNSMITH_CODE_OUT_OF_MEMORY;
    }
}

}  // namespace attnsmith::c_api

using namespace attnsmith::c_api;

attnsmith_code attnsmith_error_code(const attnsmith_error* error) noexcept {
    return error == nullptr ? static_cast<attnsmith_code>(ATTNSMITH_OK) : error->code;
}

const char* attnsmith_error_message(const attnsmith_error* error) noexcept {
    return error == nullptr ? "" : error->message;
}

const char* attnsmith_error_details(const attnsmith_error* error) noexcept {
    return error == nullptr ? "{}" : error->details;
}

const char* attnsmith_error_field(const attnsmith_error* error) noexcept {
    return error == nullptr ? "" : error->field;
}

std::int32_t attnsmith_error_driver_code(const attnsmith_error* error) noexcept {
    return error == nullptr ? 0 : error->driver_code;
}

void attnsmith_error_free(attnsmith_error* error) noexcept {
    if (error != &out_of_memory) delete static_cast<OwnedError*>(error);
}

void attnsmith_string_free(char* text) noexcept { std::free(text); }
