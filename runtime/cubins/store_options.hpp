// The cache's store of what settings say.
#pragma once

#include "cache/entries/options.hpp"
#include "settings/environment.hpp"

namespace attnsmith::engine {

// The store of these directories. `warn` is still to be set.
cache::Options store_options(const Settings& settings);

}  // namespace attnsmith::engine
