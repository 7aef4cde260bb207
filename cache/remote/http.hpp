// HTTP as a remote layer needs it: whole bodies up to a length that is known beforehand, and an end to every
// wait. Internal to cache/.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "cache/files/status.hpp"

namespace attnsmith::cache {

enum class HttpMethod { get, head, put };

struct HttpRequest {
    HttpMethod method = HttpMethod::get;
    std::string url;
    std::span<const std::byte> body = {};  // of a put
    // A longer response is refused: by its Content-Length before any of it is read, else as soon as it is
    // longer.
    std::uint64_t max_bytes = 0;
    // For all of it: the name, the connection, TLS, redirects, the transfer.
    std::chrono::milliseconds timeout{0};
    std::stop_token stop = {};  // ends the request within a tenth of a second
};

struct HttpResponse {
    int status = 0;               // 200, 404, ...
    std::vector<std::byte> body;  // of any status, within HttpRequest::max_bytes
};

// How a server is told who asks. Nothing of it is ever in a message, nor goes to another host by a redirect.
struct HttpAccess {
    std::string bearer_token;
    std::string user_and_password;     // "user:password", for basic authentication
    std::string netrc_file;            // empty: none is read
    std::vector<std::string> headers;  // "Name: value", further ones
    std::string client_certificate;    // a PEM file
    std::string client_key;            // a PEM file; empty: it is in that of the certificate
    std::string ca_file;               // PEM, in place of the system's
};

// Thread-safe, also right after fork. Keeps connections alive, at most kMaxConnections; further requests
// wait for one, which counts as theirs: their timeout goes on.
class HttpClient {
  public:
    static constexpr int kMaxConnections = 8;

    virtual ~HttpClient() = default;

    // A response of any status is a success. Else a recoverable status whose path is the URL without its user
    // and its query: ETIMEDOUT, ECANCELED, EFBIG (longer than max_bytes), ECONNREFUSED, EHOSTUNREACH (a name
    // that is not known, too), EPROTO (TLS, a redirect that is not allowed, what is no HTTP), EINVAL (no
    // URL).
    virtual Result<HttpResponse> perform(const HttpRequest& request) = 0;
};

// By libcurl (7.75 or newer), which is opened here and nowhere linked: ENOENT where the system has none, with
// the remedy. http and https alone. Redirects go from https to https and from http to http or https, ten at
// most, and lose `access` on another host; a put follows none. Proxies are those of the environment
// (http_proxy and the like), as libcurl reads them.
Result<std::unique_ptr<HttpClient>> open_curl(HttpAccess access);

}  // namespace attnsmith::cache
