// The stub of the CUDA driver that the tests give as driver_path, with two devices of compute capability 9.0.
#pragma once

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>

#include "attnsmith/attnsmith.h"
#include "support/fake_cuda/fake_cuda.h"

namespace attnsmith::test {

// Its state. To be called once before any runtime opens the driver.
inline fake_cuda_state& fake_driver() {
    static fake_cuda_state& state = [&]() -> fake_cuda_state& {
        setenv("FAKE_CUDA_SM", "90", 1);
        setenv("FAKE_CUDA_DEVICES", "2", 1);
        void* const library = dlopen(ATTNSMITH_FAKE_CUDA, RTLD_NOW);
        void* const symbol = library == nullptr ? nullptr : dlsym(library, "fake_cuda_get_state");
        if (symbol == nullptr) throw std::runtime_error(std::string("no fake driver: ") + dlerror());
        return *reinterpret_cast<fake_cuda_state* (*)()>(symbol)();
    }();
    return state;
}

// A folder of this process, removed with the object.
class TemporaryFolder {
  public:
    TemporaryFolder() {
        std::string name = (std::filesystem::temp_directory_path() / "attnsmith-c-XXXXXX").string();
        if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
        path_ = name;
    }
    TemporaryFolder(const TemporaryFolder&) = delete;
    TemporaryFolder& operator=(const TemporaryFolder&) = delete;
    ~TemporaryFolder() {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }

    const std::string& path() const { return path_; }

  private:
    std::string path_;
};

// Options over the stub driver with one cache directory; `directory` must outlive them.
inline attnsmith_runtime_options options_in(const char* const* directory) {
    attnsmith_runtime_options options{};
    options.size = sizeof options;
    options.cache_dirs = directory;
    options.cache_dir_count = 1;
    options.driver_path = ATTNSMITH_FAKE_CUDA;
    return options;
}

// The caller frees it.
inline attnsmith_runtime* open_runtime(const TemporaryFolder& folder) {
    const char* const directory = folder.path().c_str();
    const attnsmith_runtime_options options = options_in(&directory);
    attnsmith_runtime* runtime = nullptr;
    if (attnsmith_runtime_create(&options, &runtime, nullptr) != ATTNSMITH_OK)
        throw std::runtime_error("no runtime over the fake driver");
    return runtime;
}

}  // namespace attnsmith::test
