// Where NVRTC may be: the files that are tried, one after the other. Opens none of them.
#pragma once

#include <string>
#include <vector>

namespace attnsmith::compiler {

struct NvrtcOptions {
    // File or folder. Not empty: nothing else is tried.
    std::string path;
    // Tried after the loader's own search and /usr/local/cuda*: where Python wheels keep it (nvidia/cu13/lib,
    // nvidia/cuda_nvrtc/lib).
    std::vector<std::string> extra_folders;
};

// The file names and folders that Nvrtc::open() would try, in order.
std::vector<std::string> nvrtc_candidates(const NvrtcOptions& options);

}  // namespace attnsmith::compiler
