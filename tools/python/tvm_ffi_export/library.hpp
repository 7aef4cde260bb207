// libattnsmith, which is opened at the first call, and what the process has of it.
#pragma once

#include <string>

#include "attnsmith/attnsmith.h"

namespace attnsmith::tvm_ffi {

// f(name): attnsmith_name of the C ABI.
#define ATTNSMITH_LIBRARY_FUNCTIONS(f)                                                                    \
    f(abi_version) f(runtime_create) f(parse_request) f(prepare) f(kernel_free) f(kernel_workspace_bytes) \
        f(bind) f(call_launch_at) f(call_free) f(run) f(run_merge) f(buffer_allocate) f(buffer_upload)    \
            f(buffer_data) f(buffer_bytes) f(buffer_free) f(error_code) f(error_message) f(error_free)

struct LibraryFunctions {
#define ATTNSMITH_MEMBER(name) decltype(&attnsmith_##name) name = nullptr;
    ATTNSMITH_LIBRARY_FUNCTIONS(ATTNSMITH_MEMBER)
#undef ATTNSMITH_MEMBER
};

// Where files are; empty: as the library finds them.
struct Settings {
    std::string library, nvrtc, driver;
};

// Before the first call. False: it came already, and nothing has changed.
bool use(Settings settings);

class Library {
  public:
    // The one of this process. Throws a Failure where it cannot be opened; the next call tries again.
    static const Library& opened();

    LibraryFunctions call;
    attnsmith_runtime* runtime = nullptr;  // never freed: threads may outlive static objects
    Settings settings;

    // Throws a Failure unless the code is ATTNSMITH_OK. The error is read after the call that sets it.
    void check(attnsmith_code code, attnsmith_error* const& error) const;
    // A runtime with these options besides the settings.
    attnsmith_runtime* new_runtime(attnsmith_runtime_options options) const;
    // Whether calls on this stream go into a graph.
    bool is_captured(void* stream) const;

  private:
    explicit Library(Settings given);
};

}  // namespace attnsmith::tvm_ffi
