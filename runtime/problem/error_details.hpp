// What an Error keeps out of its own layout: the fields of its class, so that a later version can add some.
#pragma once

#include <string>

#include "attnsmith/error.hpp"

namespace attnsmith::problem {

struct ErrorDetails {
    explicit ErrorDetails(ErrorKind which) : kind(which) {}
    virtual ~ErrorDetails() = default;
    ErrorDetails(const ErrorDetails&) = delete;
    ErrorDetails& operator=(const ErrorDetails&) = delete;

    // `,"name":value` for each field. Text, not a JSON object: a JSON container allocates even when it is
    // destroyed, and this may run where memory is short.
    virtual std::string json() const = 0;

    // ErrorDetails::json() of an error; empty for an Error and nothing more.
    static std::string json_of(const Error& error) { return error.details_ ? error.details_->json() : ""; }

    // The same library missing, with what was tried in its place, in words.
    static LibraryMissing and_instead(const LibraryMissing& missing, const std::string& instead);

    const ErrorKind kind;
};

}  // namespace attnsmith::problem
