// What a kernel does in a plan. An op says which of these it takes, and a family which one its kernels have.
#pragma once

#include <cstdint>
#include <string_view>

namespace attnsmith::problem {

enum class Role : std::uint8_t {
    attention,
    widen,         // before an attention: widens keys and values of 8 bits into the workspace
    merge_splits,  // after a split attention: joins what its splits left in the workspace
    merge_states,  // of op merge: joins the caller's attention states
    append,        // of op append: writes new tokens into a cache
    top_k          // of op top_k: selects the largest scores of rows
};

// As plans call it.
constexpr std::string_view to_string(Role role) {
    switch (role) {
        case Role::attention:
            return "attention";
        case Role::widen:
            return "widen";
        case Role::merge_splits:
        case Role::merge_states:
            return "merge";
        case Role::append:
            return "append";
        case Role::top_k:
            return "top_k";
    }
    return "?";
}

}  // namespace attnsmith::problem
