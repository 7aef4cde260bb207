// Whose cache directories are used: machine code comes out of them and runs with the rights of whoever loads
// it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "cache/files/file_system.hpp"
#include "cache/files/status.hpp"

namespace attnsmith::cache {

enum class Trust : std::uint8_t {
    owner,  // this process's effective user or root owns it, and nobody else may write to it
    group,  // or its group may write to it, and the owner is one of those or this process is of that group
    all,    // anything: whoever can write there can run code here
};

// Nothing if a directory or file of this owner, group and mode is trusted; else what speaks against it: owner
// and mode.
std::optional<std::string> reason_for_distrust(const FileInfo& info, Trust trust);

// What would make it trusted, of all that could be done. REQUIRES: there is a reason for distrust.
std::string trust_remedy(const FileInfo& info, Trust trust);
// Success where it is trusted, else EPERM with the reason and the remedy; the path is the caller's to set.
Status check_trusted(const FileInfo& info, Trust trust);

}  // namespace attnsmith::cache
