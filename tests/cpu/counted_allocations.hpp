// How often this program takes memory from the heap, for tests of what may not.
#pragma once

#include <cstddef>

namespace attnsmith::test {

// Allocations by operator new that this thread has made.
std::size_t allocations();

}  // namespace attnsmith::test
