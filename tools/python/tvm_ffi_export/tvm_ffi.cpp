#include "tvm_ffi.hpp"

#include <dlfcn.h>

#include <atomic>

namespace attnsmith::tvm_ffi {
namespace {

bool find_all(void* library, Functions& found) {
#define ATTNSMITH_FIND(name, result, arguments)                                    \
    found.name = reinterpret_cast<decltype(found.name)>(dlsym(library, "" #name)); \
    if (found.name == nullptr) return false;
    ATTNSMITH_TVM_FFI_FUNCTIONS(ATTNSMITH_FIND)
#undef ATTNSMITH_FIND
    return true;
}

// Where a program is linked with it, or among the libraries that are loaded. Opens nothing.
bool find_loaded(Functions& found) {
    if (find_all(RTLD_DEFAULT, found)) return true;
    void* const library = dlopen("libtvm_ffi.so", RTLD_LAZY | RTLD_NOLOAD);
    return library != nullptr && find_all(library, found);  // it stays: its functions are kept
}

}  // namespace

const Functions* functions() {
    static std::atomic<const Functions*> known = nullptr;
    if (const Functions* const all = known.load(std::memory_order_acquire)) return all;
    Functions found;
    if (!find_loaded(found)) return nullptr;
    auto* const all = new Functions(found);  // never freed, as its library
    const Functions* none = nullptr;
    if (known.compare_exchange_strong(none, all, std::memory_order_acq_rel)) return all;
    delete all;
    return none;
}

}  // namespace attnsmith::tvm_ffi
