#include "families/config.hpp"

#include <algorithm>
#include <tuple>

#include "families/family.hpp"

namespace attnsmith::families {

int registers_ceiling(int threads, int ctas_per_sm) {
    constexpr int kPerSm = 65536;
    return std::min(255, kPerSm / (ctas_per_sm * threads) / 8 * 8);
}

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
