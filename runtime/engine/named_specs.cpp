#include "engine/named_specs.hpp"

#include <cstddef>

namespace attnsmith::engine {

std::string name_of(const ModelAttention& attention) {
    return attention.name.empty() ? std::string(to_string(attention.request.spec.op)) : attention.name;
}

NamedSpecs named_specs(const Coverage& coverage) {
    NamedSpecs result{.specs = coverage.specs(), .names = {}};
    // The specs are in the order of their first attentions.
    for (const ModelAttention& attention : coverage.attentions) {
        const std::size_t next = result.names.size();
        if (next < result.specs.size() && attention.request.spec == result.specs[next])
            result.names.push_back(name_of(attention));
    }
    return result;
}

std::vector<PrewarmRefusal> unsupported_of(const Coverage& coverage, const NamedSpecs& specs,
                                           std::vector<PrewarmRefusal> not_served) {
    std::vector<PrewarmRefusal> unsupported;
    for (const UnsupportedPart& part : coverage.unsupported)
        unsupported.push_back({.spec = {}, .sm = 0, .name = part.name, .reason = part.reason});
    for (PrewarmRefusal& refusal : not_served) {
        refusal.name = specs.names.at(refusal.spec.value());
        refusal.spec.reset();
        unsupported.push_back(std::move(refusal));
    }
    return unsupported;
}

}  // namespace attnsmith::engine
