// What a call fails with, as the caller of tvm-ffi gets it.
#pragma once

#include <string>
#include <string_view>

namespace attnsmith::tvm_ffi {

struct Failure {
    const char* kind;  // "ValueError", ...: tvm-ffi has Python's names
    std::string message;
};

// In the words of the library's own errors.
inline Failure refused(const char* kind, std::string_view field, std::string_view value,
                       std::string_view accepted) {
    return {kind, std::string(field) + ": " + std::string(value) + " is not accepted; expected " +
                      std::string(accepted)};
}

}  // namespace attnsmith::tvm_ffi
