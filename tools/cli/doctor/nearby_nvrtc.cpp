#include "cli/doctor/nearby_nvrtc.hpp"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <vector>

#include "attnsmith/error.hpp"
#include "compiler/nvrtc.hpp"

namespace attnsmith::cli {
namespace {

namespace fs = std::filesystem;

// Folders within a folder, in order of their names; none of one that cannot be read.
std::vector<fs::path> folders_in(const fs::path& folder) {
    std::vector<fs::path> folders;
    std::error_code ignored;
    for (fs::directory_iterator it(folder, ignored), end; !ignored && it != end; it.increment(ignored)) {
        if (it->is_directory(ignored)) folders.push_back(it->path());
    }
    std::ranges::sort(folders);
    return folders;
}

bool holds_nvrtc(const fs::path& folder) {
    std::error_code ignored;
    for (fs::directory_iterator it(folder, ignored), end; !ignored && it != end; it.increment(ignored)) {
        if (it->path().filename().string().starts_with("libnvrtc.so")) return true;
    }
    return false;
}

// lib/python3.11/site-packages/nvidia/cu13/lib and the like, as NVIDIA's wheels have them.
std::vector<fs::path> wheel_folders(const fs::path& environment) {
    std::vector<fs::path> folders;
    for (const fs::path& python : folders_in(environment / "lib")) {
        for (const fs::path& package : folders_in(python / "site-packages/nvidia"))
            folders.push_back(package / "lib");
    }
    std::ranges::reverse(folders);  // cu13 before cu12
    return folders;
}

std::vector<fs::path> places() {
    std::vector<fs::path> folders;
    if (const auto environment = active_environment()) {
        folders = wheel_folders(*environment);
        folders.push_back(fs::path(*environment) / "lib");
    }
    std::error_code ignored;
    const fs::path program = fs::read_symlink("/proc/self/exe", ignored);
    folders.push_back(program.parent_path() / "../../cuda/lib");
    folders.push_back(fs::current_path(ignored) / "build/cuda/lib");
    return folders;
}

bool serves(const std::string& folder) {
    try {
        compiler::NvrtcOptions options;
        options.path = folder;
        (void)compiler::Nvrtc::open(options)->toolchain();  // compiles an empty program
        return true;
    } catch (const Error&) {
        return false;
    }
}

}  // namespace

std::optional<std::string> active_environment() {
    for (const char* name : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
        const char* const value = std::getenv(name);
        if (value != nullptr && *value != '\0') return value;
    }
    return std::nullopt;
}

std::optional<std::string> nearby_nvrtc() {
    for (const fs::path& place : places()) {
        const std::string folder = fs::absolute(place).lexically_normal().string();
        if (holds_nvrtc(folder) && serves(folder)) return folder;
    }
    return std::nullopt;
}

}  // namespace attnsmith::cli
