#include "families/family.hpp"

namespace attnsmith::families {

std::string_view to_string(Role role) {
    switch (role) {
        case Role::attention:
            return "attention";
        case Role::merge_splits:
        case Role::merge_states:
            return "merge";
    }
    return "?";
}

std::vector<KernelConfig> Family::tunable(const AttentionSpec&, const SmTraits&) const { return {}; }

}  // namespace attnsmith::families
