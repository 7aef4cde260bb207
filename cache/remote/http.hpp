// HTTP as a remote layer needs it: whole bodies up to a length that is known beforehand, and an end to every
// wait. Internal to cache/.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "cache/files/status.hpp"
#include "cache/remote/netrc.hpp"

namespace attnsmith::cache {

enum class HttpMethod { get, put };

struct HttpRequest {
    HttpMethod method = HttpMethod::get;
    std::string url;
    std::span<const std::byte> body = {};  // of a put
    // A longer body of what is got is refused: by its Content-Length before any of it is read, else as soon
    // as it is longer. An error page or the answer to a put is cut off instead, at this or at 64 KiB: its
    // status is what counts.
    std::uint64_t max_bytes = 0;
    // For all of it: waiting for a connection, the name, TLS, redirects, the transfer. Zero is over at once.
    std::chrono::milliseconds timeout{0};
    std::stop_token stop = {};  // ends the request within a tenth of a second
};

struct HttpResponse {
    int status = 0;               // 200, 404, ...
    std::vector<std::byte> body;  // of any status, at most HttpRequest::max_bytes
    // What time the server says it is, to the second; absent where it does not say. An answer out of a
    // proxy's cache is as much older as its Age, which is added.
    std::optional<std::chrono::system_clock::time_point> date = {};
};

// Who signs requests to S3. `session_token` is empty for credentials that do not expire; nothing else may be.
struct AwsCredentials {
    std::string access_key_id = {};
    std::string secret_access_key = {};
    std::string session_token = {};
    std::string region = {};  // "us-east-1": a signature is good for one region
};

// How a server is told who asks. Nothing of it is ever in a message, nor goes to another host by a redirect:
// to another scheme, host or port. Of several ways, the first: a signature, the token, a user in the URL,
// user_and_password, netrc.
struct HttpAccess {
    std::optional<AwsCredentials> aws = {};  // each request is signed (sigv4.hpp)
    std::string bearer_token = {};
    std::string user_and_password = {};     // "user:password", for basic authentication
    Netrc netrc = {};                       // users and passwords by host
    std::vector<std::string> headers = {};  // "Name: value", further ones
    std::string client_certificate = {};    // a PEM file
    std::string client_key = {};            // a PEM file; empty: it is in that of the certificate
    std::string ca_file = {};               // PEM, in place of the system's
};

// Thread-safe, also right after fork. Connections are kept alive, at most kMaxConnections of all clients of a
// process; further requests wait for one, which counts as theirs: their timeout goes on.
class HttpClient {
  public:
    static constexpr int kMaxConnections = 8;

    virtual ~HttpClient() = default;

    // A response of any status is a success. Else a recoverable status whose path is the URL without its
    // user, query and fragment: ETIMEDOUT, ECANCELED, EFBIG (longer than max_bytes), ECONNREFUSED,
    // EHOSTUNREACH (a name that is not known, too), ECONNRESET (a connection that ended before the response
    // did), EPROTO (TLS, a redirect that is not allowed, what is no HTTP), EINVAL (no URL).
    virtual Result<HttpResponse> perform(const HttpRequest& request) = 0;
};

// By libcurl (7.75 or newer), which is opened here and nowhere linked: ENOENT where the system has none, with
// the remedy; EINVAL for an access of which a line break or the like would make other headers. http and https
// alone. Redirects go from https to https and from http to http or https, ten at most, and lose `access` on
// another host; a put follows none. Proxies are those of the environment (http_proxy and the like), as
// libcurl reads them.
Result<std::unique_ptr<HttpClient>> open_curl(HttpAccess access);

}  // namespace attnsmith::cache
