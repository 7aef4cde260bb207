#include "library.hpp"

#include <dlfcn.h>

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <utility>
#include <vector>

#include "failure.hpp"

namespace attnsmith::tvm_ffi {
namespace {

std::mutex mutex;
Settings chosen;
std::atomic<const Library*> known = nullptr;

const char* or_null(const std::string& text) { return text.empty() ? nullptr : text.c_str(); }

// The folder that this file's library lies in, with a slash; empty where it is not known.
std::string own_folder() {
    Dl_info info{};
    if (dladdr(reinterpret_cast<void*>(&or_null), &info) == 0 || info.dli_fname == nullptr) return {};
    const std::string file = info.dli_fname;
    const std::size_t slash = file.rfind('/');
    return slash == std::string::npos ? std::string() : file.substr(0, slash + 1);
}

// The files and names to try, in order; what is named by the user is the only one.
std::vector<std::string> candidates(const std::string& given) {
    if (!given.empty()) return {given};
    const char* const named = std::getenv("ATTNSMITH_LIBRARY");
    if (named != nullptr && *named != '\0') return {named};
    std::vector<std::string> names;
    if (const std::string folder = own_folder(); !folder.empty()) names.push_back(folder + "libattnsmith.so");
    names.emplace_back("libattnsmith.so");
    return names;
}

// Why it is none of this ABI, or empty.
std::string open(const std::string& name, LibraryFunctions& call) {
    void* const library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return dlerror();
#define ATTNSMITH_FIND(function)                                                                       \
    call.function = reinterpret_cast<decltype(call.function)>(dlsym(library, "attnsmith_" #function)); \
    if (call.function == nullptr) return name + ": it has no attnsmith_" #function;                    \
    if (#function == std::string_view("abi_version") && call.abi_version() != ATTNSMITH_ABI_VERSION)   \
        return name + ": its ABI version is " + std::to_string(call.abi_version()) +                   \
               "; this export needs " + std::to_string(ATTNSMITH_ABI_VERSION);
    ATTNSMITH_LIBRARY_FUNCTIONS(ATTNSMITH_FIND)
#undef ATTNSMITH_FIND
    return {};
}

}  // namespace

bool use(Settings settings) {
    const std::lock_guard lock(mutex);
    if (known.load(std::memory_order_relaxed) != nullptr) return false;
    chosen = std::move(settings);
    return true;
}

const Library& Library::opened() {
    if (const Library* const all = known.load(std::memory_order_acquire)) return *all;
    const std::lock_guard lock(mutex);
    if (known.load(std::memory_order_relaxed) == nullptr)
        known.store(new Library(chosen), std::memory_order_release);
    return *known.load(std::memory_order_relaxed);
}

Library::Library(Settings given) : settings(std::move(given)) {
    std::string tried;
    for (const std::string& name : candidates(settings.library)) {
        const std::string reason = open(name, call);
        if (reason.empty()) {
            runtime = new_runtime({});
            return;
        }
        tried += (tried.empty() ? "" : ", ") + reason;
    }
    throw Failure{"RuntimeError",
                  "libattnsmith could not be opened; tried " + tried +
                      "; set ATTNSMITH_LIBRARY to the libattnsmith.so of a build or an installation"};
}

attnsmith_runtime* Library::new_runtime(attnsmith_runtime_options options) const {
    options.size = sizeof options;
    options.nvrtc_path = or_null(settings.nvrtc);
    options.driver_path = or_null(settings.driver);
    attnsmith_runtime* made = nullptr;
    attnsmith_error* error = nullptr;
    check(call.runtime_create(&options, &made, &error), error);
    return made;
}

void Library::check(attnsmith_code code, attnsmith_error* const& error) const {
    if (code == ATTNSMITH_OK) return;
    Failure failure{"RuntimeError", "attnsmith failed, and could not say why"};
    if (code == ATTNSMITH_CODE_INVALID_REQUEST) failure.kind = "ValueError";
    if (code == ATTNSMITH_CODE_UNSUPPORTED) failure.kind = "NotImplementedError";
    if (code == ATTNSMITH_CODE_OUT_OF_MEMORY) failure.kind = "MemoryError";
    if (error != nullptr) failure.message = call.error_message(error);
    call.error_free(error);
    throw failure;
}

bool Library::is_captured(void* stream) const {
    // The driver is loaded by now; a program without it has no streams.
    const char* const name = settings.driver.empty() ? "libcuda.so.1" : settings.driver.c_str();
    void* const driver = dlopen(name, RTLD_LAZY | RTLD_NOLOAD);
    if (driver == nullptr) return false;
    const auto is_capturing = reinterpret_cast<int (*)(void*, int*)>(dlsym(driver, "cuStreamIsCapturing"));
    int status = 0;
    const bool is_captured = is_capturing != nullptr && is_capturing(stream, &status) == 0 && status != 0;
    dlclose(driver);
    return is_captured;
}

}  // namespace attnsmith::tvm_ffi
