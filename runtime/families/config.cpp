#include "families/config.hpp"

#include <algorithm>

namespace attnsmith::families {

int registers_ceiling(int threads, int ctas_per_sm) {
    constexpr int kPerSm = 65536;
    return std::min(255, kPerSm / (ctas_per_sm * threads) / 8 * 8);
}

}  // namespace attnsmith::families
