#include "families/split.hpp"

#include <fmt/format.h>

namespace attnsmith::families {

std::string_view to_string(SplitPolicy policy) {
    switch (policy) {
        case SplitPolicy::none:
            return "none";
        case SplitPolicy::chunks:
            return "chunks";
        case SplitPolicy::shares:
            return "shares";
    }
    return "?";
}

std::string describe(const Split& split) {
    switch (split.policy) {
        case SplitPolicy::none:
            break;
        case SplitPolicy::chunks:
            return fmt::format("{} chunks of {} keys", split.parts, split.keys);
        case SplitPolicy::shares:
            return fmt::format("{} equal shares", split.parts);
    }
    return "KV not split";
}

}  // namespace attnsmith::families
