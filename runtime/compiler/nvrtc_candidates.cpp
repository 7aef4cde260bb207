#include "compiler/nvrtc_candidates.hpp"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <tuple>
#include <utility>

namespace attnsmith::compiler {
namespace {

namespace fs = std::filesystem;

// The numbers in a name: {13, 0, 88} of libnvrtc.so.13.0.88 and {12, 9} of cuda-12.9, which order as versions
// do.
std::vector<int> numbers_in(std::string_view text) {
    std::vector<int> numbers;
    for (std::size_t at = 0; at < text.size();) {
        int number = 0;
        const auto [end, error] = std::from_chars(text.data() + at, text.data() + text.size(), number);
        if (error == std::errc() && text[at] != '-') {
            numbers.push_back(number);
            at = static_cast<std::size_t>(end - text.data());
        } else {
            ++at;
        }
    }
    return numbers;
}

// Names in a folder that start with `prefix`, the newest version first. A folder that is not there has none.
std::vector<std::string> newest_first(const fs::path& folder, std::string_view prefix) {
    std::vector<std::string> names;
    std::error_code ignored;
    for (fs::directory_iterator it(folder, ignored), end; !ignored && it != end; it.increment(ignored)) {
        std::string name = it->path().filename().string();
        if (name.starts_with(prefix)) names.push_back(std::move(name));
    }
    std::sort(names.begin(), names.end(), [](const std::string& a, const std::string& b) {
        return std::tuple(numbers_in(b), b) < std::tuple(numbers_in(a), a);
    });
    return names;
}

// The NVRTC files in a folder; where there is none the name that one would have, so that an error can show
// it.
void add_folder(std::vector<std::string>& candidates, const fs::path& folder) {
    const std::vector<std::string> names = newest_first(folder, "libnvrtc.so");
    for (const std::string& name : names) candidates.push_back((folder / name).string());
    if (names.empty()) candidates.push_back((folder / "libnvrtc.so").string());
}

void add_toolkits(std::vector<std::string>& candidates) {
    const fs::path root = "/usr/local";
    for (const std::string& name : newest_first(root, "cuda")) {
        for (const char* folder : {"lib64", "lib"})
            if (std::error_code ignored; fs::is_directory(root / name / folder, ignored))
                add_folder(candidates, root / name / folder);
        for (const std::string& target : newest_first(root / name / "targets", ""))
            add_folder(candidates, root / name / "targets" / target / "lib");
    }
}

}  // namespace

std::vector<std::string> nvrtc_candidates(const NvrtcOptions& options) {
    std::vector<std::string> candidates;
    if (!options.path.empty()) {
        std::error_code ignored;
        if (fs::is_directory(options.path, ignored))
            add_folder(candidates, options.path);
        else
            candidates.push_back(options.path);
        return candidates;
    }
    candidates = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"};
    add_toolkits(candidates);
    for (const std::string& folder : options.extra_folders) add_folder(candidates, folder);
    return candidates;
}

}  // namespace attnsmith::compiler
