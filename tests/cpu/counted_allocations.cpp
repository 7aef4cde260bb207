#include "counted_allocations.hpp"

#include <cstdlib>
#include <new>

namespace {

thread_local std::size_t counted = 0;

void* allocate(std::size_t bytes, std::size_t alignment) {
    ++counted;
    void* memory = nullptr;
    if (posix_memalign(&memory, alignment, bytes == 0 ? 1 : bytes) != 0) throw std::bad_alloc();
    return memory;
}

}  // namespace

namespace attnsmith::test {

std::size_t allocations() { return counted; }

}  // namespace attnsmith::test

// The other forms call these, but for AddressSanitizer's, whose nothrow form allocates by itself: what delete
// frees here would not be what new gave.
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept try {
    return operator new(bytes);
} catch (const std::bad_alloc&) {
    return nullptr;
}
void* operator new(std::size_t bytes) { return allocate(bytes, __STDCPP_DEFAULT_NEW_ALIGNMENT__); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
    return allocate(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
