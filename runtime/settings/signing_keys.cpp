#include "settings/signing_keys.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "attnsmith/cache.hpp"
#include "attnsmith/error.hpp"
#include "cache/signing/key_file.hpp"
#include "cache/signing/system_ed25519.hpp"
#include "problem/vocabulary.hpp"

namespace attnsmith {

SigningKey make_signing_key(const std::string& file) {
    if (file.empty()) throw InvalidRequest("file", "nothing", "the name of a file");
    const cache::Result<cache::PublicKey> made = cache::write_new_keys(file);
    if (!made) throw CacheError("no key is made: " + made.status().to_string(), file);
    return {.key_id = made->id(), .secret_key_file = file, .public_key_file = file + ".pub"};
}

}  // namespace attnsmith

namespace attnsmith::engine {
namespace {

InvalidRequest refused(std::string_view field, const std::string& file, const char* what,
                       const cache::Status& status) {
    return InvalidRequest(std::string(field), problem::quote(file),
                          fmt::format("the file of {} key ({})", what, status.message));
}

}  // namespace

cache::PublicKey read_trust_key(std::string_view field, const std::string& file) {
    cache::Result<cache::PublicKey> key = cache::read_public_key(file);
    if (!key) throw refused(field, file, "a public", key.status());
    return *key;
}

cache::SecretKey read_sign_key(std::string_view field, const std::string& file) {
    cache::Result<cache::SecretKey> key = cache::read_secret_key(file);
    if (!key) throw refused(field, file, "a secret", key.status());
    return *key;
}

std::vector<cache::PublicKey> read_trust_keys(std::string_view field, const std::vector<std::string>& files) {
    std::vector<cache::PublicKey> keys;
    for (const std::string& file : files) keys.push_back(read_trust_key(field, file));
    if (keys.empty()) return keys;
    if (const auto opened = cache::ed25519(); !opened) {
        throw CacheError(fmt::format("{} names keys, and nothing can verify a signature: {}", field,
                                     opened.status().to_string()));
    }
    return keys;
}

}  // namespace attnsmith::engine
