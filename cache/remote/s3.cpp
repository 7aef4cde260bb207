#include "cache/remote/s3.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>

#include "cache/remote/sigv4.hpp"
#include "cache/remote/url.hpp"

namespace attnsmith::cache {
namespace {

constexpr std::string_view kS3Scheme = "s3://";

bool is_small_or_digit(char letter) {
    return (letter >= 'a' && letter <= 'z') || (letter >= '0' && letter <= '9');
}

// What S3 has ever allowed, and nothing that would end the part of a URL that it is put into.
bool is_bucket(std::string_view name) {
    const bool letters = std::ranges::all_of(name, [](char letter) {
        return is_small_or_digit(letter) || (letter >= 'A' && letter <= 'Z') || letter == '-' ||
               letter == '.' || letter == '_';
    });
    return letters && name.size() >= 3 && name.size() <= 255 && name.front() != '.';
}

// One label of a host name: a certificate for *.s3.REGION.amazonaws.com is good for no more.
bool is_host_label(std::string_view bucket) {
    const bool letters =
        std::ranges::all_of(bucket, [](char letter) { return is_small_or_digit(letter) || letter == '-'; });
    return letters && bucket.size() <= 63 && bucket.front() != '-' && bucket.back() != '-';
}

// Such parts are taken out of a URL's path on its way.
bool has_dots_as_part(std::string_view prefix) {
    while (!prefix.empty()) {
        const std::string_view part = prefix.substr(0, prefix.find('/'));
        if (part == "." || part == "..") return true;
        prefix.remove_prefix(std::min(part.size() + 1, prefix.size()));
    }
    return false;
}

std::string amazon_domain(const std::string& region) {
    return fmt::format("s3.{}.amazonaws.com{}", region, region.starts_with("cn-") ? ".cn" : "");
}

Status no_s3_address(const char* why) { return Status::recoverable_error(EINVAL, {}, why); }

}  // namespace

bool is_s3_address(std::string_view text) { return text.starts_with(kS3Scheme); }

std::string s3_region_fault(std::string_view region) {
    const bool letters = std::ranges::all_of(
        region, [](char letter) { return is_small_or_digit(letter) || letter == '-' || letter == '_'; });
    return letters && !region.empty() ? "" : "a region has small letters, digits and hyphens";
}

std::string s3_endpoint_fault(std::string_view endpoint) {
    const std::size_t scheme = endpoint.starts_with("http://")    ? 7
                               : endpoint.starts_with("https://") ? 8
                                                                  : endpoint.size();
    const std::string_view host = endpoint.substr(scheme);
    if (host.empty() || host.front() == '/' || host.front() == ':')
        return "it begins with http:// or https:// and a host";
    if (endpoint.find('@') != endpoint.npos) return "it has no user: credentials have variables of their own";
    const bool plain =
        std::ranges::all_of(endpoint, [](char letter) { return letter > ' ' && letter < 0x7f; });
    if (!plain || endpoint.find_first_of("?#") != endpoint.npos)
        return "it has no query, no blanks and no letters beyond ASCII";
    return {};
}

Result<std::string> s3_url(std::string_view address, const S3Service& service) {
    address.remove_prefix(kS3Scheme.size());
    const std::string_view bucket = address.substr(0, address.find('/'));
    const std::string prefix = without_last_slashes(address.substr(bucket.size()));
    if (bucket.find('@') != bucket.npos)
        return no_s3_address("an s3:// address has no user: credentials are AWS_ACCESS_KEY_ID and its like");
    if (!is_bucket(bucket))
        return no_s3_address(
            "an s3:// address begins with a bucket's name: at least three letters, digits, hyphens, dots "
            "and underscores");
    if (prefix.find_first_of("?#") != prefix.npos) return no_s3_address("an s3:// address has no query");
    if (has_dots_as_part(prefix)) return no_s3_address("an s3:// address has no part that is . or ..");
    const std::string path = sigv4_encoded(prefix, "/");
    if (!service.endpoint.empty())
        return fmt::format("{}/{}{}", without_last_slashes(service.endpoint), bucket, path);
    const std::string domain = amazon_domain(service.region);
    return is_host_label(bucket) ? fmt::format("https://{}.{}{}", bucket, domain, path)
                                 : fmt::format("https://{}/{}{}", domain, bucket, path);
}

std::string s3_error_code(std::span<const std::byte> page) {
    constexpr std::string_view kBegin = "<Code>", kEnd = "</Code>";
    constexpr std::size_t kLongestCode = 64;
    const std::string_view text(reinterpret_cast<const char*>(page.data()), page.size());
    if (text.find("<Error") == text.npos) return {};
    const std::size_t begin = text.find(kBegin), end = text.find(kEnd);
    if (begin == text.npos || end == text.npos || end < begin) return {};
    const std::string_view code = text.substr(begin + kBegin.size(), end - begin - kBegin.size());
    // It goes into messages, and its server is anybody.
    const bool letters = std::ranges::all_of(code, [](char letter) {
        return is_small_or_digit(letter) || (letter >= 'A' && letter <= 'Z') || letter == '.';
    });
    return letters && code.size() <= kLongestCode ? std::string(code) : std::string();
}

std::string_view s3_error_meaning(std::string_view code) {
    struct Meaning {
        std::string_view code, text;
    };
    constexpr Meaning kMeanings[] = {
        {"AuthorizationHeaderMalformed", "the bucket may be in another region"},
        {"ExpiredToken", "the session token has expired"},
        {"InvalidAccessKeyId", "the server does not know the access key's ID"},
        {"NoSuchBucket", "there is no such bucket"},
        {"PermanentRedirect", "the bucket is in another region"},
        {"RequestTimeTooSkewed", "this machine's clock is not the server's"},
        {"SignatureDoesNotMatch", "the secret is not that of the access key's ID"},
        {"SlowDown", "too many requests at a time"},
    };
    const auto* const found = std::ranges::find(kMeanings, code, &Meaning::code);
    return found == std::end(kMeanings) ? std::string_view() : found->text;
}

}  // namespace attnsmith::cache
