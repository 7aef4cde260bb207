// attnsmith prewarm --dry-run.
#pragma once

#include <string>
#include <vector>

#include "cli/asked/asked.hpp"

namespace attnsmith::cli {

// Prints every kernel that prewarm would see to, with its key and whether it is in the cache. `names` are
// those of the specs, which are those of `asked`, each once. Returns the exit code.
int dry_run(const Command& command, const Asked& asked, const std::vector<AttentionSpec>& specs,
            const std::vector<std::string>& names, const std::vector<int>& sms);

}  // namespace attnsmith::cli
