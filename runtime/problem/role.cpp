#include "problem/role.hpp"

namespace attnsmith::problem {

std::string_view to_string(Role role) {
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
    }
    return "?";
}

}  // namespace attnsmith::problem
