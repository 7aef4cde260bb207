// Keys that sign bundles and that bundles are trusted by, as options and variables name them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cache/signing/keys.hpp"

namespace attnsmith::engine {

// Both throw InvalidRequest naming `field` where the file has no such key, or is not to be used.
cache::PublicKey read_trust_key(std::string_view field, const std::string& file);
cache::SecretKey read_sign_key(std::string_view field, const std::string& file);

// All of them. Throws CacheError where there are any and nothing could verify a signature.
std::vector<cache::PublicKey> read_trust_keys(std::string_view field, const std::vector<std::string>& files);

}  // namespace attnsmith::engine
