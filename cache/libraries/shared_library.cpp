#include "cache/libraries/shared_library.hpp"

#include <dlfcn.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>
#include <string_view>

namespace attnsmith::cache {
namespace {

// dlopen() would wait for ever for who writes to a FIFO. What is not there is for the loader to say.
bool is_no_file(const char* name) {
    struct ::stat found;
    return std::string_view(name).find('/') != std::string_view::npos && ::stat(name, &found) == 0 &&
           !S_ISREG(found.st_mode);
}

// Null, with the reason, where it cannot be opened.
void* open_one(const char* name, std::string& reason) {
    if (is_no_file(name)) {
        reason = fmt::format("{}: not a regular file", name);
        return nullptr;
    }
    void* const handle = ::dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (handle != nullptr) return handle;
    const char* const said = ::dlerror();
    reason = said == nullptr ? fmt::format("{}: cannot be opened", name) : said;
    if (!reason.starts_with(name)) reason = fmt::format("{}: {}", name, reason);
    return nullptr;
}

}  // namespace

Result<SharedLibrary> SharedLibrary::open(std::span<const char* const> names) {
    std::string reasons;
    for (const char* const name : names) {
        std::string reason;
        if (void* const handle = open_one(name, reason)) return SharedLibrary(handle, name);
        reasons += reasons.empty() ? reason : "; " + reason;
    }
    return Status::recoverable_error(ENOSYS, {}, std::move(reasons));
}

void* SharedLibrary::address_of(const char* symbol) const { return ::dlsym(handle_, symbol); }

}  // namespace attnsmith::cache
