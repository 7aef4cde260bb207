#include "cache/libraries/shared_library.hpp"

#include <sys/stat.h>

#include <cerrno>
#include <string_view>

namespace attnsmith::cache {
namespace {

// Whether a path names something that is no regular file: dlopen() would wait for ever for who writes to a
// FIFO. Whether it is there at all is for dlopen() to say.
bool is_no_regular_file(const char* name) {
    struct ::stat found {};
    return std::string_view(name).find('/') != std::string_view::npos && ::stat(name, &found) == 0 &&
           !S_ISREG(found.st_mode);
}

// The handle, or null and why.
void* open_library(const char* name, std::string& reason) {
    if (is_no_regular_file(name)) {
        reason = "is no regular file";
        return nullptr;
    }
    void* const handle = ::dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (handle == nullptr) {
        const char* const said = ::dlerror();
        reason = said == nullptr ? "cannot be opened" : said;
    }
    return handle;
}

}  // namespace

Result<SharedLibrary> SharedLibrary::open(std::span<const char* const> names) {
    std::string first_reason = "has no name";
    for (const char* const name : names) {
        std::string reason;
        if (void* const handle = open_library(name, reason)) return SharedLibrary(handle, name);
        if (name == names.front()) first_reason = reason;
    }
    return Status::recoverable_error(ENOENT, names.empty() ? "" : names.front(),
                                     "cannot open the library (" + first_reason + ")");
}

}  // namespace attnsmith::cache
