#include "families/fitting.hpp"

#include <fmt/format.h>

namespace attnsmith::families {

std::optional<std::string> shared_memory_refusal(std::int64_t bytes, const SmTraits& sm) {
    if (bytes <= sm.shared_bytes_per_block) return std::nullopt;
    return fmt::format("needs {} bytes of shared memory; a block of sm_{} has {}", bytes, sm.sm,
                       sm.shared_bytes_per_block);
}

}  // namespace attnsmith::families
