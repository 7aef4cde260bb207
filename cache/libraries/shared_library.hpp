// Libraries of the system that are opened at run time, so that a build needs none of them and a machine only
// those that are used. Internal to cache/.
#pragma once

#include <span>
#include <string>
#include <utility>

#include "cache/files/status.hpp"

namespace attnsmith::cache {

// Stays open for ever, copies and all: libraries leave threads, handlers and thread-local data behind, which
// must not lose their code.
class SharedLibrary {
  public:
    // The first of these that can be opened. A name without a slash is looked for where the loader looks for
    // libraries. Its symbols are kept apart from the program's, which may have another version of it. ENOSYS
    // where none can be opened, with what the loader says of each.
    static Result<SharedLibrary> open(std::span<const char* const> names);

    // Whether it has the function; null where it does not.
    template <class F>
    bool find(const char* symbol, F*& function) const {
        function = reinterpret_cast<F*>(address_of(symbol));
        return function != nullptr;
    }

    // As it was asked for.
    const std::string& name() const { return name_; }

  private:
    SharedLibrary(void* handle, std::string name) : handle_(handle), name_(std::move(name)) {}

    void* address_of(const char* symbol) const;

    void* handle_;
    std::string name_;
};

}  // namespace attnsmith::cache
