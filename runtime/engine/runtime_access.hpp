// What a Runtime holds, for the other parts of the library and for the project's own tools and tests. Its
// members are in engine/runtime_impl.hpp.
#pragma once

#include "attnsmith/runtime.hpp"

namespace attnsmith {
namespace detail {

struct Access {
    using RuntimeImpl = Runtime::Impl;
    static RuntimeImpl& impl_of(const Runtime& runtime) { return runtime.impl(); }
};

}  // namespace detail

namespace engine {

using RuntimeImpl = detail::Access::RuntimeImpl;
inline RuntimeImpl& impl_of(const Runtime& runtime) { return detail::Access::impl_of(runtime); }

}  // namespace engine
}  // namespace attnsmith
