// Users' tuning tables, from files.
#pragma once

#include <string>
#include <vector>

#include "families/tuning.hpp"

namespace attnsmith::engine {

// What planning goes by: the files' entries, those of files in front first, then the repository's. Throws
// InvalidRequest for a file that cannot be read, or is no tuning table.
families::TuningTable load_tuning(const std::vector<std::string>& files);

}  // namespace attnsmith::engine
