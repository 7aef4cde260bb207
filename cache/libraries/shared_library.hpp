// Libraries of the system that are opened at run time and nowhere linked. Internal to cache/.
#pragma once

#include <dlfcn.h>

#include <span>
#include <string>
#include <utility>

#include "cache/files/status.hpp"

namespace attnsmith::cache {

// Stays open for as long as the process lives: such libraries keep threads and thread-local data, which must
// not lose their code. Copies are the same library.
class SharedLibrary {
  public:
    // The first of `names` that can be opened. A name without a slash is looked for where the loader looks.
    // ENOENT, with the first name and why it cannot be opened, where none can.
    static Result<SharedLibrary> open(std::span<const char* const> names);

    // False, and `function` is null, where the library has no such symbol. F is a function's type.
    template <class F>
    bool find(const char* symbol, F*& function) const {
        function = reinterpret_cast<F*>(::dlsym(handle_, symbol));
        return function != nullptr;
    }

    // The one of the names that was opened.
    const std::string& name() const { return name_; }

  private:
    SharedLibrary(void* handle, std::string name) : handle_(handle), name_(std::move(name)) {}

    void* handle_;
    std::string name_;
};

}  // namespace attnsmith::cache
