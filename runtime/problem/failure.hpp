// What an exception says, as a code and as JSON: one text for the C ABI's error details and for what
// `attnsmith --json` prints.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "attnsmith/attnsmith.h"

namespace attnsmith::problem {

struct Failure {
    attnsmith_code code = ATTNSMITH_CODE_FAILED;
    std::string message{};  // as what() has it, which may hold any bytes
    // `,"name":value` for each of the exception's own fields. They are text, not a JSON object: a JSON
    // container allocates even where it is destroyed, and this may run where memory is short.
    std::string fields{};
};

// "invalid_request", ...; "failed" for a code without a name of its own.
std::string_view name_of(attnsmith_code code);

// Describes the exception that is being handled. Throws std::bad_alloc where that is what is handled.
Failure current_failure();

// `"code":"...","message":"..."` and the fields: the inside of an object.
std::string fields_text(const Failure& failure);

// "libcuda.so.1, libcuda.so: cannot open shared object file": of LibraryMissing::tried(), each reason once.
std::string tried_text(const std::vector<std::string>& tried);

// A JSON string of any bytes: what is no UTF-8 is replaced.
std::string json_string(std::string_view text);

}  // namespace attnsmith::problem
