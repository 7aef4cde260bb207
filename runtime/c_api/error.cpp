#include "c_api/error.hpp"

#include <fmt/format.h>

#include <cstdlib>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "attnsmith/error.hpp"

struct attnsmith_error {
    attnsmith_code code;
    const char* message;
    const char* details;
};

namespace attnsmith::c_api {
namespace {

using Json = nlohmann::json;

// What is reported where there is no memory for a report.
constinit attnsmith_error out_of_memory{
    ATTNSMITH_OUT_OF_MEMORY, "the host is out of memory",
    R"({"code": "out_of_memory", "message": "the host is out of memory"})"};

struct OwnedError : attnsmith_error {
    std::string message_text;
    std::string details_text;
};

const char* name_of(attnsmith_code code) {
    switch (code) {
        case ATTNSMITH_INVALID_REQUEST:
            return "invalid_request";
        case ATTNSMITH_UNSUPPORTED:
            return "unsupported";
        case ATTNSMITH_COMPILE_ERROR:
            return "compile_error";
        case ATTNSMITH_DRIVER_ERROR:
            return "driver_error";
        case ATTNSMITH_LIBRARY_MISSING:
            return "library_missing";
        case ATTNSMITH_CACHE_ERROR:
            return "cache_error";
        case ATTNSMITH_KERNEL_MISSING:
            return "kernel_missing";
        default:
            return "failed";
    }
}

// The fields of the details are written as text: a JSON container allocates even where it is destroyed, and
// this may run where memory is short.
struct Failure {
    attnsmith_code code;
    std::string message;
    std::string fields;
};

// Paths and logs may be any bytes; what is handed out is UTF-8.
std::string json_text(std::string_view text) {
    return Json(std::string(text)).dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string valid_utf8(const std::string& text) { return Json::parse(json_text(text)).get<std::string>(); }

std::string field(const char* name, std::string_view value) {
    return fmt::format(R"(,"{}":{})", name, json_text(value));
}

template <typename Item, typename Write>
std::string list_field(const char* name, const std::vector<Item>& items, Write write) {
    std::string text = fmt::format(R"(,"{}":[)", name);
    for (const Item& item : items) text += (&item == &items.front() ? "" : ",") + write(item);
    return text + "]";
}

std::string refusal_json(const Refusal& refusal) {
    return fmt::format(R"({{"candidate":{},"reason":{}}})", json_text(refusal.candidate),
                       json_text(refusal.reason));
}

// The exception that is being handled; std::bad_alloc is thrown on.
Failure current_failure() {
    try {
        throw;
    } catch (const InvalidRequest& error) {
        return {ATTNSMITH_INVALID_REQUEST, error.what(),
                field("field", error.field()) + field("value", error.value()) +
                    field("accepted", error.accepted())};
    } catch (const Unsupported& error) {
        return {ATTNSMITH_UNSUPPORTED, error.what(), list_field("refusals", error.refusals(), refusal_json)};
    } catch (const CompileError& error) {
        return {ATTNSMITH_COMPILE_ERROR, error.what(),
                field("log", error.log()) + list_field("options", error.options(), json_text) +
                    field("numbered_source", error.numbered_source())};
    } catch (const DriverError& error) {
        return {ATTNSMITH_DRIVER_ERROR, error.what(),
                field("call", error.call()) + fmt::format(R"(,"driver_code":{})", error.code()) +
                    field("meaning", error.meaning())};
    } catch (const LibraryMissing& error) {
        return {ATTNSMITH_LIBRARY_MISSING, error.what(),
                field("library", error.library()) + list_field("tried", error.tried(), json_text)};
    } catch (const KernelMissing& error) {
        return {ATTNSMITH_KERNEL_MISSING, error.what(),
                fmt::format(R"(,"request":{},"sm":{})", error.request(), error.sm()) +
                    field("key", error.key()) + field("command", error.command())};
    } catch (const CacheError& error) {
        return {ATTNSMITH_CACHE_ERROR, error.what(), {}};
    } catch (const std::bad_alloc&) {
        throw;
    } catch (const std::exception& error) {
        return {ATTNSMITH_FAILED, error.what(), {}};
    } catch (...) {
        return {ATTNSMITH_FAILED, "an exception that is none of std::exception's", {}};
    }
}

attnsmith_error* make_error(const Failure& failure) {
    auto error = std::make_unique<OwnedError>();
    error->code = failure.code;
    error->message_text = valid_utf8(failure.message);
    error->details_text = fmt::format(R"({{"code":"{}"{}{}}})", name_of(failure.code),
                                      field("message", failure.message), failure.fields);
    error->message = error->message_text.c_str();
    error->details = error->details_text.c_str();
    return error.release();
}

}  // namespace

attnsmith_code report_exception(attnsmith_error** error) noexcept {
    try {
        const Failure failure = current_failure();
        if (error != nullptr) *error = make_error(failure);
        return failure.code;
    } catch (...) {  // there is no memory, or was none for the report
        if (error != nullptr) *error = &out_of_memory;
        return ATTNSMITH_OUT_OF_MEMORY;
    }
}

}  // namespace attnsmith::c_api

using namespace attnsmith::c_api;

attnsmith_code attnsmith_error_code(const attnsmith_error* error) {
    return error == nullptr ? static_cast<attnsmith_code>(ATTNSMITH_OK) : error->code;
}

const char* attnsmith_error_message(const attnsmith_error* error) {
    return error == nullptr ? "" : error->message;
}

const char* attnsmith_error_details(const attnsmith_error* error) {
    return error == nullptr ? "{}" : error->details;
}

void attnsmith_error_free(attnsmith_error* error) {
    if (error != &out_of_memory) delete static_cast<OwnedError*>(error);
}

void attnsmith_string_free(char* text) { std::free(text); }
