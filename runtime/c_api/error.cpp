#include "c_api/error.hpp"

#include <cstdlib>
#include <new>
#include <nlohmann/json.hpp>
#include <string>

#include "attnsmith/error.hpp"

struct attnsmith_error {
    attnsmith_code code;
    const char* message;
    const char* details;
};

namespace attnsmith::c_api {
namespace {

using Json = nlohmann::ordered_json;

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
        default:
            return "failed";
    }
}

struct Failure {
    attnsmith_code code;
    std::string message;
    Json fields = Json::object();
};

Json to_json(const std::vector<Refusal>& refusals) {
    Json json = Json::array();
    for (const Refusal& refusal : refusals) {
        json.push_back({{"candidate", refusal.candidate}, {"reason", refusal.reason}});
    }
    return json;
}

// The exception that is being handled; std::bad_alloc is thrown on.
Failure current_failure() {
    try {
        throw;
    } catch (const InvalidRequest& error) {
        return {ATTNSMITH_INVALID_REQUEST,
                error.what(),
                {{"field", error.field()}, {"value", error.value()}, {"accepted", error.accepted()}}};
    } catch (const Unsupported& error) {
        Json fields = Json::object();
        fields["refusals"] = to_json(error.refusals());
        return {ATTNSMITH_UNSUPPORTED, error.what(), fields};
    } catch (const CompileError& error) {
        return {ATTNSMITH_COMPILE_ERROR,
                error.what(),
                {{"log", error.log()},
                 {"options", error.options()},
                 {"numbered_source", error.numbered_source()}}};
    } catch (const DriverError& error) {
        return {ATTNSMITH_DRIVER_ERROR,
                error.what(),
                {{"call", error.call()}, {"driver_code", error.code()}, {"meaning", error.meaning()}}};
    } catch (const LibraryMissing& error) {
        return {ATTNSMITH_LIBRARY_MISSING,
                error.what(),
                {{"library", error.library()}, {"tried", error.tried()}}};
    } catch (const CacheError& error) {
        return {ATTNSMITH_CACHE_ERROR, error.what()};
    } catch (const std::bad_alloc&) {
        throw;
    } catch (const std::exception& error) {
        return {ATTNSMITH_FAILED, error.what()};
    } catch (...) {
        return {ATTNSMITH_FAILED, "an exception that is none of std::exception's"};
    }
}

// Messages may quote paths, which are any bytes; what is handed out is UTF-8.
std::string valid_utf8(const std::string& text) {
    const Json json = text;
    return Json::parse(json.dump(-1, ' ', false, Json::error_handler_t::replace)).get<std::string>();
}

attnsmith_error* make_error(const Failure& failure) {
    Json details = {{"code", name_of(failure.code)}, {"message", failure.message}};
    details.update(failure.fields);
    auto* error = new OwnedError;
    error->code = failure.code;
    try {
        error->message_text = valid_utf8(failure.message);
        error->details_text = details.dump(-1, ' ', false, Json::error_handler_t::replace);
    } catch (...) {
        delete error;
        throw;
    }
    error->message = error->message_text.c_str();
    error->details = error->details_text.c_str();
    return error;
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
