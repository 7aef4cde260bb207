#include "families/backend.hpp"

namespace attnsmith::families {

std::string_view to_string(Backend backend) {
    switch (backend) {
        case Backend::mma:
            return "mma";
        case Backend::wgmma:
            return "wgmma";
        case Backend::cuda_core:
            return "cuda_core";
    }
    return "?";
}

}  // namespace attnsmith::families
