// One request and its response on one connection, without redirects. Internal to cache/.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stop_token>
#include <string>

#include "cache/remote/connections.hpp"
#include "cache/remote/curl_library.hpp"
#include "cache/remote/http.hpp"
#include "cache/remote/url.hpp"

namespace attnsmith::cache {

struct TransferRequest {
    HttpMethod method = HttpMethod::get;
    const Url& url;
    std::span<const std::byte> body = {};
    std::uint64_t max_bytes = 0;
    std::chrono::steady_clock::time_point deadline;
    const std::stop_token& stop;
    const HttpAccess& access;
    // Whether the server may see who asks. Its ca_file is used either way: it says whom we trust.
    bool with_access = true;
};

enum class TransferEnd {
    complete,
    timed_out,
    stopped,
    body_too_long,
    headers_too_long,
    compressed,  // in its Transfer-Encoding, which libcurl would decode without being asked
    failed,      // as libcurl says
};

struct TransferResult {
    TransferEnd end = TransferEnd::failed;
    HttpResponse response = {};
    std::string location = {};  // of a response that has one, as the server wrote it
    CurlCode code = CurlCode::ok;
    int os_error = 0;         // errno of a connection that failed, or 0
    std::string reason = {};  // libcurl's own words, which may quote the server and the request
};

// Throws std::bad_alloc alone.
TransferResult transfer(Connection& connection, const TransferRequest& request);

// A GET's body counts only when it is whole. Of any other response, such as a server's error page or its
// answer to a PUT, no more than this and HttpRequest::max_bytes is kept, and what is longer is no failure.
inline constexpr std::size_t kMostOfAnyPage = std::size_t{64} << 10;

// All headers of a response together may take so much: nobody sends more, and all of it is looked through.
inline constexpr std::size_t kMostHeaderBytes = std::size_t{256} << 10;

}  // namespace attnsmith::cache
