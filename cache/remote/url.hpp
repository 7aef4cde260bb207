// URLs of http and https, as libcurl itself reads them. Internal to cache/.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "cache/remote/curl_library.hpp"

namespace attnsmith::cache {

struct Url {
    std::string text;    // without user, password and fragment
    std::string scheme;  // "http" or "https"
    std::string host;    // small letters
    std::string port;    // always, the scheme's own where the URL has none
    std::string path;    // percent-encoded, as it is sent
    std::string query;   // may be a secret: a signed URL's is
    // Decoded; where the URL has none, nothing.
    std::optional<std::string> user;
    std::string password;
    std::string shown;  // for messages: without user, password, query and fragment

    bool is_https() const { return scheme == "https"; }
    // "https://host:443"
    std::string origin() const { return scheme + "://" + host + ":" + port; }
};

// Nothing for what is no URL of http or https, or has a byte that no URL has: a control character or a blank.
std::optional<Url> parse_url(const CurlLibrary& curl, std::string_view text);

// Where a response's Location leads from `base`, which it may be relative to. A user that it names is left
// out: no server says as whom to ask another one.
std::optional<Url> parse_redirect(const CurlLibrary& curl, const Url& base, std::string_view location);

// For messages about what is no URL: nothing up to its last @, which a password may be in, nor after the
// first ? or #, and no control characters.
std::string shown_without_secrets(std::string_view text);

// A path is put behind it.
std::string without_last_slashes(std::string_view text);

}  // namespace attnsmith::cache
