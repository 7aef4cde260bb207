// The one way out of every function of the C ABI: exceptions become codes and error objects.
#pragma once

#include <utility>

#include "attnsmith/attnsmith.h"

namespace attnsmith::c_api {

// The code of the exception that is being handled. Where `error` is not null, *error becomes an object that
// describes it.
attnsmith_code report_exception(attnsmith_error** error) noexcept;

// Runs `body`; whatever it throws is reported.
template <typename Body>
attnsmith_code guarded(attnsmith_error** error, Body&& body) noexcept {
    try {
        std::forward<Body>(body)();
    } catch (...) {
        return report_exception(error);
    }
    if (error != nullptr) *error = nullptr;
    return ATTNSMITH_OK;
}

}  // namespace attnsmith::c_api
