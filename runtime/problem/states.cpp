// The words of what became of kernels and entries.
#include "attnsmith/cache.hpp"
#include "attnsmith/prewarm.hpp"

namespace attnsmith {
namespace {

constexpr std::string_view kNone = "(not an enumerator)";  // of what a caller made by a cast

}  // namespace

std::string_view to_string(PrewarmState state) noexcept {
    switch (state) {
        case PrewarmState::hit:
            return "hit";
        case PrewarmState::remote:
            return "remote";
        case PrewarmState::compiled:
            return "compiled";
        case PrewarmState::waited:
            return "waited";
        case PrewarmState::missing:
            return "missing";
        case PrewarmState::failed:
            return "failed";
        case PrewarmState::cancelled:
            return "cancelled";
    }
    return kNone;
}

std::string_view to_string(PushState state) noexcept {
    switch (state) {
        case PushState::pushed:
            return "pushed";
        case PushState::present:
            return "present";
        case PushState::failed:
            return "failed";
        case PushState::cancelled:
            return "cancelled";
        case PushState::gone:
            return "gone";
    }
    return kNone;
}

}  // namespace attnsmith
