// What the handles of the API refuse when they hold nothing.
#pragma once

#include <fmt/format.h>

#include "attnsmith/error.hpp"

namespace attnsmith::engine {

// What a handle holds. Throws Error for one that holds nothing.
template <typename Pointer>
auto& held(const Pointer& impl, const char* name) {
    if (impl == nullptr) {
        throw Error(fmt::format("this {} is empty: it was default-constructed or moved from", name));
    }
    return *impl;
}

}  // namespace attnsmith::engine
