// attnsmith prewarm --dry-run.
#pragma once

#include <vector>

#include "cli/asked/asked.hpp"

namespace attnsmith::cli {

// Prints every kernel that prewarm would see to, with its key and whether it is in the cache. Returns the
// exit code.
int dry_run(const Command& command, const Asked& asked, const std::vector<int>& sms);

}  // namespace attnsmith::cli
