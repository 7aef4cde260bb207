// NVRTC where a user has it but the library does not look: for the remedy of `attnsmith doctor`.
#pragma once

#include <optional>
#include <string>

namespace attnsmith::cli {

// The folder of an NVRTC that opens and compiles: in the active Python or Conda environment (VIRTUAL_ENV,
// CONDA_PREFIX), or where tools/setup/setup.sh puts one, in build/cuda beside the program or below the
// working directory.
std::optional<std::string> nearby_nvrtc();

// Looks into the active Python environment; gives nothing where there is none.
std::optional<std::string> active_environment();

}  // namespace attnsmith::cli
