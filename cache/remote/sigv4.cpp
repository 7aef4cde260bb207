#include "cache/remote/sigv4.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <map>

#include "cache/digest/hmac_sha256.hpp"
#include "cache/digest/sha256.hpp"
#include "cache/remote/letters.hpp"

namespace attnsmith::cache {
namespace {

constexpr std::string_view kSigV4Algorithm = "AWS4-HMAC-SHA256";
constexpr std::string_view kDate = "x-amz-date", kPayload = "x-amz-content-sha256",
                           kToken = "x-amz-security-token";

bool is_unreserved(char letter) {
    return (letter >= 'A' && letter <= 'Z') || (letter >= 'a' && letter <= 'z') ||
           (letter >= '0' && letter <= '9') ||
           std::string_view("-._~").find(letter) != std::string_view::npos;
}

int hex_value(char digit) {
    if (digit >= '0' && digit <= '9') return digit - '0';
    if (digit >= 'a' && digit <= 'f') return digit - 'a' + 10;
    if (digit >= 'A' && digit <= 'F') return digit - 'A' + 10;
    return -1;
}

std::string percent_decoded(std::string_view text) {
    std::string decoded;
    for (std::size_t i = 0; i < text.size(); ++i) {
        const int high = text[i] == '%' && i + 2 < text.size() ? hex_value(text[i + 1]) : -1;
        const int low = high >= 0 ? hex_value(text[i + 2]) : -1;
        decoded += low >= 0 ? static_cast<char>(high * 16 + low) : text[i];
        if (low >= 0) i += 2;
    }
    return decoded;
}

// Without blanks at its ends, and with one for each run of them.
std::string header_value(std::string_view value) {
    std::string text;
    for (const char letter : value) {
        const bool blank = letter == ' ' || letter == '\t';
        if (!blank)
            text += letter;
        else if (!text.empty() && text.back() != ' ')
            text += ' ';
    }
    if (!text.empty() && text.back() == ' ') text.pop_back();
    return text;
}

std::string canonical_query(std::string_view query) {
    std::vector<std::pair<std::string, std::string>> parts;
    while (!query.empty()) {
        const std::string_view part = query.substr(0, query.find('&'));
        query.remove_prefix(std::min(part.size() + 1, query.size()));
        if (part.empty()) continue;
        const std::size_t name = std::min(part.find('='), part.size());
        parts.emplace_back(sigv4_encoded(percent_decoded(part.substr(0, name))),
                           sigv4_encoded(percent_decoded(part.substr(std::min(name + 1, part.size())))));
    }
    std::ranges::sort(parts);
    std::string text;
    for (const auto& [name, value] : parts)
        text += fmt::format("{}{}={}", text.empty() ? "" : "&", name, value);
    return text;
}

// By name; what a name has several times is one value, as HTTP has it.
std::map<std::string, std::string> canonical_headers(
    const std::vector<std::pair<std::string, std::string>>& headers) {
    std::map<std::string, std::string> all;
    for (const auto& [name, value] : headers) {
        auto [one, is_new] = all.try_emplace(in_small_letters(name), header_value(value));
        if (!is_new) one->second += "," + header_value(value);
    }
    return all;
}

std::span<const std::byte> bytes_of_text(std::string_view text) { return std::as_bytes(std::span(text)); }

// The key of a day, a region and S3, from which nobody gets the secret back.
Sha256Digest signing_key(const AwsCredentials& credentials, std::string_view day) {
    const std::string secret = "AWS4" + credentials.secret_access_key;
    Sha256Digest key = hmac_sha256(bytes_of_text(secret), bytes_of_text(day));
    for (const std::string_view part :
         {std::string_view(credentials.region), std::string_view("s3"), std::string_view("aws4_request")})
        key = hmac_sha256(std::as_bytes(std::span(key.bytes)), bytes_of_text(part));
    return key;
}

// What a server sees as the request's Host header.
std::string host_header(const Url& url) {
    const bool usual = url.port == (url.is_https() ? "443" : "80");
    return usual ? url.host : url.host + ":" + url.port;
}

}  // namespace

std::string sigv4_encoded(std::string_view text, std::string_view kept) {
    std::string encoded;
    for (const char letter : text) {
        if (is_unreserved(letter) || kept.find(letter) != std::string_view::npos)
            encoded += letter;
        else
            encoded += fmt::format("%{:02X}", static_cast<unsigned char>(letter));
    }
    return encoded;
}

std::string sigv4_time(std::chrono::system_clock::time_point time) {
    const auto day = std::chrono::floor<std::chrono::days>(time);
    const std::chrono::year_month_day date(day);
    const std::chrono::hh_mm_ss clock(std::chrono::floor<std::chrono::seconds>(time - day));
    return fmt::format("{:04}{:02}{:02}T{:02}{:02}{:02}Z", static_cast<int>(date.year()),
                       static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()),
                       clock.hours().count(), clock.minutes().count(), clock.seconds().count());
}

std::string sigv4_authorization(const AwsCredentials& credentials, const SigV4Request& request,
                                std::string_view time) {
    std::string lines, names;
    for (const auto& [name, value] : canonical_headers(request.headers)) {
        lines += fmt::format("{}:{}\n", name, value);
        names += (names.empty() ? "" : ";") + name;
    }
    const std::string path = request.path.empty() ? "/" : std::string(request.path);
    const std::string canonical =
        fmt::format("{}\n{}\n{}\n{}\n{}\n{}", request.method, sigv4_encoded(percent_decoded(path), "/"),
                    canonical_query(request.query), lines, names, request.payload_sha256);
    const std::string_view day = time.substr(0, time.find('T'));
    const std::string scope = fmt::format("{}/{}/s3/aws4_request", day, credentials.region);
    const std::string to_sign = fmt::format("{}\n{}\n{}\n{}", kSigV4Algorithm, time, scope,
                                            sha256_of(bytes_of_text(canonical)).hex());
    const Sha256Digest key = signing_key(credentials, day);
    return fmt::format("{} Credential={}/{}, SignedHeaders={}, Signature={}", kSigV4Algorithm,
                       credentials.access_key_id, scope, names,
                       hmac_sha256(std::as_bytes(std::span(key.bytes)), bytes_of_text(to_sign)).hex());
}

std::vector<std::string> sigv4_headers(const AwsCredentials& credentials, std::string_view method,
                                       const Url& url, std::span<const std::byte> body,
                                       const std::vector<std::string>& further,
                                       std::chrono::system_clock::time_point now) {
    const std::string time = sigv4_time(now);
    SigV4Request request{.method = method,
                         .path = url.path,
                         .query = url.query,
                         .headers = {{"Host", host_header(url)}, {std::string(kDate), time}},
                         .payload_sha256 = sha256_of(body).hex()};
    request.headers.emplace_back(kPayload, request.payload_sha256);
    if (!credentials.session_token.empty()) request.headers.emplace_back(kToken, credentials.session_token);
    std::vector<std::string> lines;
    for (const auto& [name, value] : request.headers) lines.push_back(name + ": " + value);
    for (const std::string& header : further) {
        const std::size_t colon = std::min(header.find(':'), header.size());
        const std::string name = in_small_letters(header.substr(0, colon));
        if (name == "host" || name == "authorization" || name == kDate || name == kPayload || name == kToken)
            continue;
        const std::string value =
            header_value(std::string_view(header).substr(std::min(colon + 1, header.size())));
        // libcurl sends none that is empty.
        if (name.starts_with("x-amz-") && !value.empty()) request.headers.emplace_back(name, value);
        lines.push_back(header);
    }
    lines.push_back("Authorization: " + sigv4_authorization(credentials, request, time));
    return lines;
}

}  // namespace attnsmith::cache
