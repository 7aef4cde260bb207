// AWS's Signature Version 4, as S3 wants it in a request's headers. Internal to cache/.
//
// libcurl can sign, too (CURLOPT_AWS_SIGV4), but before 7.87 it signs no header of ours, such as a session
// token's, and no body of a PUT, and S3 refuses both. Long-lived distributions have 7.76 and 7.81.
#pragma once

#include <chrono>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cache/remote/http.hpp"
#include "cache/remote/url.hpp"

namespace attnsmith::cache {

// What a signature is of.
struct SigV4Request {
    std::string_view method;  // "GET"
    std::string_view path;    // as the URL has it, percent-encoded
    std::string_view query;   // likewise, without its ?
    // All that are signed; names in any case, "host" and "x-amz-date" among them.
    std::vector<std::pair<std::string, std::string>> headers;
    std::string payload_sha256;  // in hexadecimal digits
};

// "20130524T000000Z", in UTC.
std::string sigv4_time(std::chrono::system_clock::time_point time);

// The value of the Authorization header. `time` is that of the x-amz-date header.
std::string sigv4_authorization(const AwsCredentials& credentials, const SigV4Request& request,
                                std::string_view time);

// The headers, each "Name: value", that sign a request with this body: `Host`, `x-amz-date`,
// `x-amz-content-sha256`, `x-amz-security-token` where there is a token, and `Authorization`. Those of
// `further` come with them; the ones that are called x-amz-… are signed, as S3 demands, and the ones that
// have a name of the five are left out.
std::vector<std::string> sigv4_headers(const AwsCredentials& credentials, std::string_view method,
                                       const Url& url, std::span<const std::byte> body,
                                       const std::vector<std::string>& further,
                                       std::chrono::system_clock::time_point now);

// Every byte but letters, digits, `-`, `.`, `_`, `~` and those of `kept` as % and two capital digits: the one
// form in which a path is signed.
std::string sigv4_encoded(std::string_view text, std::string_view kept = {});

}  // namespace attnsmith::cache
