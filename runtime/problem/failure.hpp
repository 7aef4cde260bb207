// What an exception says, as a code and as JSON: one text for the C ABI's error details and for what
// `attnsmith --json` prints.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "attnsmith/attnsmith.h"
#include "attnsmith/error.hpp"

namespace attnsmith::problem {

struct Failure {
    attnsmith_code code = ATTNSMITH_CODE_FAILED;
    std::string message{};  // as what() has it, which may hold any bytes
    std::string fields{};   // `,"name":value` for each of the exception's own fields
    std::string field{};    // of an InvalidRequest, which may hold any bytes
    int driver_code = 0;    // of a DriverError
};

// Describes an error of the library.
Failure failure_of(const Error& error);

// Describes the exception that is being handled. Throws std::bad_alloc where that is what is handled.
Failure current_failure();

// `"code":"...","message":"..."` and the fields: the inside of an object.
std::string fields_text(const Failure& failure);

// "libcuda.so.1, libcuda.so: cannot open shared object file": of LibraryMissing::tried(), each reason once.
std::string tried_text(const std::vector<std::string>& tried);

// A JSON string of any bytes: what is no UTF-8 is replaced.
std::string json_string(std::string_view text);

}  // namespace attnsmith::problem
