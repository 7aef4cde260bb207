// Any bytes as what stands around a remote's documents: dates, ages and S3's error pages, which a server
// sends, and netrc files, addresses, paths and headers, which users write and a request is made of.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string>
#include <string_view>
#include <vector>

#include "cache/remote/address.hpp"
#include "cache/remote/http_date.hpp"
#include "cache/remote/netrc.hpp"
#include "cache/remote/remote.hpp"
#include "cache/remote/s3.hpp"
#include "cache/remote/sigv4.hpp"
#include "cache/remote/url.hpp"
#include "fuzz/fuzz.hpp"

using namespace attnsmith::cache;

namespace {

constexpr std::string_view kTime = "20130524T000000Z";

bool has_any(std::string_view text, std::string_view letters) {
    return text.find_first_of(letters) != text.npos;
}

bool is_printable(char letter) { return letter > ' ' && letter < 0x7f; }

// What is taken is the time that the text says, but for the weekday and for a leap second.
void judge_date(std::string_view text) {
    if (const auto date = parse_http_date(text)) {
        constexpr std::array<std::string_view, 12> kMonthNames = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                                                  "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
        const std::string compact = sigv4_time(*date);
        const std::string_view digits(compact);
        const auto month = static_cast<std::size_t>((digits[4] - '0') * 10 + digits[5] - '1');
        const std::string again =
            fmt::format("{} {} {} {}:{}:{} GMT", digits.substr(6, 2), kMonthNames.at(month),
                        digits.substr(0, 4), digits.substr(9, 2), digits.substr(11, 2), digits.substr(13, 2));
        require(text.substr(5) == again || text.substr(23, 2) == "60");
        // What a remote's answer adds and takes away.
        static_cast<void>(*date + parse_http_age("99999999999") + std::chrono::milliseconds(500) -
                          std::chrono::system_clock::time_point());
    }
    const std::chrono::seconds age = parse_http_age(text);
    require(age >= age.zero() && age <= std::chrono::hours(24 * 365));
}

// A code is a word that a terminal may be shown, and is in the page.
void judge_page(std::string_view text) {
    const std::string code = s3_error_code(std::as_bytes(std::span(text)));
    require(std::ranges::all_of(code, is_printable) && !has_any(code, "<>&"));
    require(code.empty() || text.find("<Code>" + code + "</Code>") != text.npos);
    static_cast<void>(s3_error_meaning(code));
}

std::string netrc_word(std::string_view word) {
    std::string quoted = "\"";
    for (const char letter : word) {
        if (letter == '"' || letter == '\\') quoted += '\\';
        quoted += letter;
    }
    return quoted + '"';
}

// What is taken makes no header of its own and is the same when it is written again; what is refused is not
// shown, for a password may be in it.
void judge_netrc(std::string_view text) {
    const Result<Netrc> netrc = parse_netrc(text);
    if (!netrc) {
        require(netrc.status().error_number == EBADMSG);
        require(netrc.status().message.starts_with("line "));
        require(std::ranges::all_of(netrc.status().message,
                                    [](char letter) { return letter == ' ' || is_printable(letter); }));
        return;
    }
    std::string written;
    for (const NetrcEntry& one : *netrc) {
        for (const std::string* word : {&one.machine, &one.login, &one.password})
            require(!has_any(*word, "\r\n"));
        written += one.machine.empty() ? "default" : "machine " + netrc_word(one.machine);
        written += fmt::format(" login {} password {}\n", netrc_word(one.login), netrc_word(one.password));
        if (!one.machine.empty()) require(entry_for(*netrc, one.machine) != nullptr);
    }
    const Result<Netrc> again = parse_netrc(written);
    require(again.ok() && again->size() == netrc->size());
    for (std::size_t i = 0; i < netrc->size(); ++i) {
        const NetrcEntry &one = (*netrc)[i], &same = (*again)[i];
        require(one.machine == same.machine && one.login == same.login && one.password == same.password);
    }
}

// No message and no name of a remote shows a user, a query or what confuses a terminal.
void judge_address(std::string_view text) {
    require(!has_any(shown_without_secrets(text), "@# \t\r\n\x1b"));
    const std::string http = "https://" + std::string(text), shown = shown_address(http);
    require(!names_user(shown) && !has_any(shown, "?#"));
    require(is_remote_address(shown));
    // A password with a / or a # that is not encoded ends what looks like the host.
    require(host_of(shown) == host_of(http) || text.find('@') != text.npos);
    for (const S3Service& service :
         {S3Service{.region = "eu-west-1"}, S3Service{.endpoint = "https://s3.example"}}) {
        const std::string address = "s3://bucket/" + std::string(text);
        const Result<std::string> url = s3_url(address, service);
        if (url) {
            require(std::ranges::all_of(*url, is_printable) && !has_any(*url, "?#@"));
            const bool own = !service.endpoint.empty();
            const std::string_view place =
                own ? "https://s3.example/bucket" : "https://bucket.s3.eu-west-1.amazonaws.com";
            require(url->starts_with(place) && (url->size() == place.size() || (*url)[place.size()] == '/'));
        }
        static_cast<void>(s3_url("s3://" + std::string(text), service));
    }
    if (s3_endpoint_fault(text).empty()) {
        const Result<std::string> url = s3_url("s3://bucket/x", {.endpoint = std::string(text)});
        require(url.ok() && std::ranges::all_of(*url, is_printable) && !has_any(*url, "?#@"));
        require(!host_of(*url).empty() && url->ends_with("/bucket/x"));
    }
    if (s3_region_fault(text).empty()) require(!has_any(text, "/@:.\r\n"));
}

std::string signature(std::string_view path, std::string_view query) {
    const AwsCredentials credentials{.access_key_id = "id", .secret_access_key = "secret", .region = "r"};
    return sigv4_authorization(
        credentials,
        {.method = "GET", .path = path, .query = query, .headers = {{"host", "h"}}, .payload_sha256 = "0"},
        kTime);
}

// Percent-encoding has one form and loses nothing, and what a server reads as the same request has one
// signature.
void judge_encoding(std::string_view text) {
    const std::string encoded = sigv4_encoded(text, "/");
    std::string small = encoded, decoded;
    for (std::size_t i = 0; i < encoded.size(); ++i) {
        const char letter = encoded[i];
        require(is_printable(letter) && !has_any(std::string_view(&letter, 1), "?#&=+@ "));
        if (letter != '%') {
            decoded += letter;
            continue;
        }
        decoded += static_cast<char>(std::stoi(encoded.substr(i + 1, 2), nullptr, 16));
        for (const std::size_t digit : {i + 1, i + 2})
            if (small[digit] >= 'A') small[digit] = static_cast<char>(small[digit] - 'A' + 'a');
        i += 2;
    }
    require(decoded == text);
    // A signature takes longer than all else here, so none is made of what is the same anyway.
    if (small != encoded) require(signature("/" + encoded, "") == signature("/" + small, ""));
    const std::string plain(text);
    if (plain != encoded && plain.find('%') == plain.npos)
        require(signature("/" + encoded, "") == signature("/" + plain, ""));
    // In another order, and between two ends, a query asks for the same.
    if (const std::size_t half = plain.find('&'); half != plain.npos)
        require(signature("/", plain) ==
                signature("/", plain.substr(half + 1) + "&" + plain.substr(0, half)));
}

// Whatever headers a user adds, a request has one of each that its signature is of.
void judge_headers(std::string_view text) {
    std::vector<std::string> further;
    while (!text.empty()) {
        const std::string_view line = text.substr(0, text.find('\n'));
        text.remove_prefix(std::min(line.size() + 1, text.size()));
        further.emplace_back(line);
    }
    Url url;
    url.scheme = "https";
    url.host = "h";
    url.port = "443";
    url.path = "/";
    const std::vector<std::string> lines = sigv4_headers(
        {.access_key_id = "id", .secret_access_key = "secret", .session_token = "t", .region = "r"}, "PUT",
        url, {}, further, std::chrono::system_clock::time_point());
    for (const std::string_view name :
         {"host:", "x-amz-date:", "x-amz-content-sha256:", "x-amz-security-token:", "authorization:"}) {
        require(std::ranges::count_if(lines, [&](const std::string& line) {
                    const std::string_view begin = std::string_view(line).substr(0, name.size());
                    return std::ranges::equal(begin, name, [](char one, char other) {
                        return (one >= 'A' && one <= 'Z' ? one - 'A' + 'a' : one) == other;
                    });
                }) == 1);
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    judge_date(text);
    judge_page(text);
    judge_netrc(text);
    judge_address(text);
    // A longer one has nothing new, and takes its time.
    judge_encoding(text.substr(0, 256));
    judge_headers(text.substr(0, 256));
    return 0;
}
