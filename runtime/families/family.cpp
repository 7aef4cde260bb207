#include "families/family.hpp"

namespace attnsmith::families {

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

std::optional<std::string> Family::refusal(const AttentionSpec&, const SmTraits&) const {
    return std::nullopt;
}

std::vector<Candidate> Family::candidates(const AttentionSpec& spec, const SmTraits& sm,
                                          const TuningTable& tuning, std::vector<Refusal>& rejected) const {
    if (const auto reason = refusal(spec, sm)) {
        rejected.push_back({std::string(to_string(backend())), *reason});
        return {};
    }
    return serving(spec, sm, tuning, rejected);
}

std::vector<KernelConfig> Family::tunable(const AttentionSpec&, const SmTraits&) const { return {}; }

}  // namespace attnsmith::families
