#include "compiler/nvrtc_library.hpp"

#include <dlfcn.h>
#include <link.h>

#include <filesystem>
#include <system_error>
#include <type_traits>
#include <utility>

#include "attnsmith/error.hpp"
#include "compiler/inside.hpp"
#include "compiler/signals.hpp"

namespace attnsmith::compiler {
namespace {

namespace fs = std::filesystem;

constexpr NvrtcVersion kOldest{12, 0};
constexpr const char* kInstall =
    "install it with `pip install nvidia-cuda-nvrtc` (or the CUDA toolkit), and set ATTNSMITH_NVRTC_PATH to "
    "its file or folder where it is found in none of the usual places";
constexpr const char* kCorrect =
    "correct what ATTNSMITH_NVRTC_PATH or nvrtc_path names, or unset it: the usual places are tried then";
constexpr const char* kWithout =
    "; kernels that are in the cache need no NVRTC, and a cache folder that was filled on another machine "
    "can be copied";

std::string file_of(void* library, const std::string& name) {
    link_map* map = nullptr;
    if (dlinfo(library, RTLD_DI_LINKMAP, &map) != 0 || map == nullptr || map->l_name == nullptr ||
        *map->l_name == '\0')
        return name;
    return map->l_name;
}

void close_library(void* handle) {
    if (handle != nullptr) dlclose(handle);
}

// Empty, or why it is nothing to open: dlopen() would wait for ever for who writes to a FIFO. A bare name is
// looked for by the loader.
std::string why_no_file(const std::string& name) {
    std::error_code missing;
    const fs::file_status status = fs::status(name, missing);
    if (name.find('/') == name.npos || missing || fs::is_regular_file(status)) return {};
    return fs::is_directory(status) ? "is a directory, not a file"
           : fs::is_fifo(status)    ? "is a FIFO, not a regular file"
                                    : "is a device or a socket, not a regular file";
}

// Adds, to why the loader found no library of a bare name, that a file of that name lies here: the loader
// does not look for it here.
std::string with_file_here(const std::string& name, const std::string& reason) {
    std::error_code ignored;
    if (name.find('/') != name.npos || !fs::exists(name, ignored)) return reason;
    return reason + " (a name without a slash is looked for where the loader looks for libraries; the file " +
           "in the current directory is ./" + name + ")";
}

// Empty, or why this file does not serve.
std::string open_one(const std::string& name, NvrtcLibrary& library) {
    if (std::string reason = why_no_file(name); !reason.empty()) return reason;
    // RTLD_NODELETE: it keeps threads and thread-local data, which must not lose their code.
    library.handle = {dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE), close_library};
    if (library.handle == nullptr) {
        const char* reason = dlerror();
        return with_file_here(name, reason == nullptr ? "cannot be opened" : reason);
    }
    wait_before_objects_of(library.handle.get());
    library.path = file_of(library.handle.get(), name);
    std::string missing;
    const auto find = [&](auto& field, const char* symbol) {
        field =
            reinterpret_cast<std::remove_reference_t<decltype(field)>>(dlsym(library.handle.get(), symbol));
        if (field == nullptr && missing.empty()) missing = symbol;
    };
#define ATTNSMITH_RESOLVE(field, symbol) find(library.field, #symbol);
    ATTNSMITH_NVRTC_ENTRIES(ATTNSMITH_RESOLVE)
#undef ATTNSMITH_RESOLVE
    if (library.version == nullptr) return "is not NVRTC: it has no nvrtcVersion";
    if (library.version(&library.found.major, &library.found.minor) != NVRTC_SUCCESS)
        return "nvrtcVersion failed";
    if (library.found < kOldest)
        return "is NVRTC " + std::to_string(library.found.major) + "." + std::to_string(library.found.minor) +
               "; 12.0 or newer is needed";
    return missing.empty() ? "" : "has no " + missing;
}

// NVRTC opens its builtins by their bare name, counting on its own run path ($ORIGIN). That path is not used
// where another library stands between it and dlopen, as the sanitizers and some profilers do; so they are
// opened here, by their full path, and NVRTC is given what is open already. Where they lie elsewhere NVRTC
// may still find them itself.
void open_builtins(NvrtcLibrary& library) {
    const std::string version =
        std::to_string(library.found.major) + "." + std::to_string(library.found.minor);
    const fs::path builtins = fs::path(library.path).parent_path() / ("libnvrtc-builtins.so." + version);
    if (!why_no_file(builtins.string()).empty()) return;
    library.builtins = {dlopen(builtins.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE), close_library};
}

}  // namespace

NvrtcLibrary open_nvrtc_library(const NvrtcOptions& options) {
    std::vector<std::string> tried;
    for (const std::string& name : nvrtc_candidates(options)) {
        NvrtcLibrary library;
        const std::string reason = open_one(name, library);
        if (reason.empty()) {
            open_builtins(library);
            leave_signals_to_host(library.handle.get());
            return library;
        }
        // dlerror() mostly begins with the name already.
        tried.push_back(reason.starts_with(name) ? reason : name + ": " + reason);
    }
    throw LibraryMissing("NVRTC (libnvrtc.so.13 or .12)", std::move(tried),
                         std::string(options.path.empty() ? kInstall : kCorrect) + kWithout);
}

}  // namespace attnsmith::compiler
