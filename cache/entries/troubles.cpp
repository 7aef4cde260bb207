#include "cache/entries/troubles.hpp"

#include <algorithm>

namespace attnsmith::cache {

Trouble operator|(Trouble a, Trouble b) {
    return Trouble{static_cast<std::uint32_t>(a) | static_cast<std::uint32_t>(b)};
}

Trouble untrusted_layer(std::size_t layer) {
    constexpr std::size_t kLayersToldApart = 16;
    return Trouble{static_cast<std::uint32_t>(Trouble::untrusted_directory)
                   << std::min(layer, kLayersToldApart - 1)};
}

void Troubles::tell(std::string_view message) const {
    if (warn_) warn_(message);
}

void Troubles::tell_once(Trouble trouble, std::string_view message) const {
    const auto bits = static_cast<std::uint32_t>(trouble);
    const bool first_time = (told_.fetch_or(bits, std::memory_order_relaxed) & bits) == 0;
    if (first_time) tell(message);
}

}  // namespace attnsmith::cache
