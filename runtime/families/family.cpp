#include "families/family.hpp"

#include <tuple>

namespace attnsmith::families {

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

// What a config asks its family.

Backend KernelConfig::backend() const { return family->backend(); }

std::string KernelConfig::name() const { return family->kernel_name(*this); }

std::strong_ordering KernelConfig::operator<=>(const KernelConfig& other) const {
    const auto order = [](const KernelConfig& one) {
        return std::tuple(one.family == nullptr ? std::string_view() : one.family->name(), one.sm,
                          std::string_view(one.target), one.threads, one.ctas_per_sm, one.shared_bytes);
    };
    const std::strong_ordering by_head = order(*this) <=> order(other);
    return by_head != 0 ? by_head : constants <=> other.constants;
}

}  // namespace attnsmith::families
