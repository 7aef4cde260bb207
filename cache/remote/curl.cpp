// A request of open_curl's client: the URL, a connection and a transfer for it and for each redirect, and
// what to say of its end.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "cache/remote/connections.hpp"
#include "cache/remote/curl_library.hpp"
#include "cache/remote/http.hpp"
#include "cache/remote/transfer.hpp"
#include "cache/remote/url.hpp"

namespace attnsmith::cache {
namespace {

using namespace std::chrono_literals;

constexpr int kMostRedirects = 10;
// libcurl counts milliseconds in an int.
constexpr std::chrono::milliseconds kLongestRequest = 24h * 7;

constinit std::atomic<std::uint64_t> clients_made{0};

bool is_redirect(int status) {
    return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

// From https nothing leads back to http.
bool may_lead(const Url& from, const Url& to) { return to.is_https() || !from.is_https(); }

bool has_control_character(std::string_view text) {
    return std::any_of(text.begin(), text.end(), [](char letter) {
        return static_cast<unsigned char>(letter) < 0x20 || letter == 0x7f;
    });
}

// Empty, or what is wrong with it, without its text. A line break would make headers of its rest.
std::string fault_of(const HttpAccess& access) {
    if (has_control_character(access.bearer_token)) return "the bearer token has a control character";
    if (has_control_character(access.user_and_password))
        return "the user or the password has a control character";
    for (const NetrcEntry& one : access.netrc) {
        if (has_control_character(one.login) || has_control_character(one.password))
            return "a user or a password of the netrc file has a control character";
    }
    if (access.aws) {
        for (const std::string* part : {&access.aws->access_key_id, &access.aws->secret_access_key,
                                        &access.aws->session_token, &access.aws->region}) {
            if (has_control_character(*part)) return "the AWS credentials have a control character";
        }
    }
    for (const std::string& header : access.headers) {
        if (has_control_character(header)) return "a header has a control character";
        const std::size_t colon = header.find(':');
        if (colon == header.npos || colon == 0) return "a header is not of the form \"Name: value\"";
    }
    return {};
}

std::pair<std::string, std::string> user_and_password_of(const HttpAccess& access) {
    const std::string& both = access.user_and_password;
    const std::size_t colon = std::min(both.find(':'), both.size());
    return {both.substr(0, colon), both.substr(std::min(colon + 1, both.size()))};
}

// libcurl's words on one line, without what a server may have put into them to confuse a terminal.
std::string one_line(std::string text) {
    for (char& letter : text) {
        const auto byte = static_cast<unsigned char>(letter);
        if (byte < 0x20) letter = ' ';
        if (byte >= 0x7f) letter = '?';
    }
    text.erase(text.find_last_not_of(' ') + 1);
    return text;
}

class CurlClient final : public HttpClient {
  public:
    CurlClient(const CurlLibrary& curl, HttpAccess access) : curl_(curl), access_(std::move(access)) {}
    ~CurlClient() override { Connections::of_this_process().close_all_of(number_); }

    Result<HttpResponse> perform(const HttpRequest& request) override;

  private:
    struct Asked {
        const HttpRequest& request;
        Url url;  // of the request at first, then of a redirect
        std::chrono::steady_clock::time_point deadline;
        std::string shown;  // the request's own URL, for its Status
        bool with_access = true;
        int redirects = 0;
    };

    void take_user(Url& url) const;
    Result<TransferResult> ask_once(const Asked& asked) const;
    // Success, or why the redirect is not followed.
    Status follow(Asked& asked, const std::string& location) const;

    Status failure(const Asked& asked, int error_number, std::string message) const {
        if (asked.redirects > 0) message += ", after a redirect";
        return Status::recoverable_error(error_number, asked.shown, std::move(message));
    }
    Status failure_of(const Asked& asked, const TransferResult& result) const;
    Status libcurl_failure(const Asked& asked, const TransferResult& result) const;
    std::string reason_without_secrets(const Asked& asked, const TransferResult& result) const;

    const CurlLibrary& curl_;
    const HttpAccess access_;
    const std::uint64_t number_ = ++clients_made;
};

Result<HttpResponse> CurlClient::perform(const HttpRequest& request) {
    const auto start = std::chrono::steady_clock::now();
    std::optional<Url> url = parse_url(curl_, request.url);
    if (!url)
        return Status::recoverable_error(EINVAL, shown_without_secrets(request.url),
                                         "is no URL of http or https");
    take_user(*url);
    Asked asked{.request = request,
                .url = *url,
                .deadline = start + std::min(request.timeout, kLongestRequest),
                .shown = url->shown};
    for (;;) {
        Result<TransferResult> result = ask_once(asked);
        if (!result) return result.status();
        if (result->end != TransferEnd::complete) return failure_of(asked, *result);
        if (request.method == HttpMethod::put || !is_redirect(result->response.status) ||
            result->location.empty())
            return std::move(result->response);
        if (Status refused = follow(asked, result->location); !refused.ok()) return refused;
    }
}

// Where the URL does not say who asks, the client does, and the netrc file after it.
void CurlClient::take_user(Url& url) const {
    if (url.user || access_.aws || !access_.bearer_token.empty()) return;
    if (!access_.user_and_password.empty()) {
        std::tie(url.user.emplace(), url.password) = user_and_password_of(access_);
    } else if (const NetrcEntry* const entry = entry_for(access_.netrc, url.host)) {
        url.user = entry->login;
        url.password = entry->password;
    }
}

Result<TransferResult> CurlClient::ask_once(const Asked& asked) const {
    const HttpRequest& request = asked.request;
    // A redirect has a connection of its own, so that both servers' are there for the next request.
    const Connections::Lease connection =
        Connections::of_this_process().take(curl_, number_, asked.url.origin(), asked.deadline, request.stop);
    if (request.stop.stop_requested()) return failure_of(asked, {.end = TransferEnd::stopped});
    if (!connection.held())
        return failure(asked, ETIMEDOUT,
                       fmt::format("none of this process's {} connections came free within {:g} s",
                                   kMaxConnections, static_cast<double>(request.timeout.count()) / 1e3));
    if (std::chrono::steady_clock::now() >= asked.deadline)
        return failure_of(asked, {.end = TransferEnd::timed_out});
    return transfer(*connection, {.method = request.method,
                                  .url = asked.url,
                                  .body = request.body,
                                  .max_bytes = request.max_bytes,
                                  .deadline = asked.deadline,
                                  .stop = request.stop,
                                  .access = access_,
                                  .with_access = asked.with_access});
}

Status CurlClient::follow(Asked& asked, const std::string& location) const {
    if (asked.redirects == kMostRedirects)
        return failure(asked, EPROTO, fmt::format("it redirects more than {} times", kMostRedirects));
    std::optional<Url> next = parse_redirect(curl_, asked.url, location);
    if (!next) return failure(asked, EPROTO, "it redirects to what is no URL of http or https");
    if (!may_lead(asked.url, *next)) return failure(asked, EPROTO, "it redirects from https to http");
    const bool same_server = next->origin() == asked.url.origin();
    // Not given back on the way back: a server that others redirect to us is not one that we asked.
    asked.with_access = asked.with_access && same_server;
    if (same_server) {
        next->user = asked.url.user;
        next->password = asked.url.password;
    }
    asked.url = *std::move(next);
    ++asked.redirects;
    return Status::success();
}

Status CurlClient::failure_of(const Asked& asked, const TransferResult& result) const {
    switch (result.end) {
        case TransferEnd::timed_out:
            return failure(asked, ETIMEDOUT,
                           fmt::format("there was no whole response within {:g} s",
                                       static_cast<double>(asked.request.timeout.count()) / 1e3));
        case TransferEnd::stopped:
            return failure(asked, ECANCELED, "the request was stopped");
        case TransferEnd::body_too_long:
            return failure(asked, EFBIG,
                           fmt::format("the response is longer than the {} bytes that it may have",
                                       asked.request.max_bytes));
        case TransferEnd::headers_too_long:
            return failure(
                asked, EPROTO,
                fmt::format("the response's headers are longer than {} KiB", kMostHeaderBytes >> 10));
        case TransferEnd::compressed:
            return failure(asked, EPROTO, "the response is compressed, which was not asked for");
        default:
            return libcurl_failure(asked, result);
    }
}

Status CurlClient::libcurl_failure(const Asked& asked, const TransferResult& result) const {
    const std::string reason = reason_without_secrets(asked, result);
    switch (result.code) {
        case CurlCode::not_resolved_proxy:
        case CurlCode::not_resolved:
            return failure(asked, EHOSTUNREACH, "the name cannot be resolved: " + reason);
        case CurlCode::not_connected: {
            const int error = result.os_error;
            return failure(asked,
                           error == ETIMEDOUT                    ? ETIMEDOUT
                           : error == 0 || error == ECONNREFUSED ? ECONNREFUSED
                                                                 : EHOSTUNREACH,
                           "cannot connect: " + reason);
        }
        case CurlCode::partial_file:
        case CurlCode::got_nothing:
        case CurlCode::send_error:
        case CurlCode::receive_error:
            return failure(asked, ECONNRESET, "the connection ended before the response: " + reason);
        case CurlCode::out_of_memory:  // said of a line that is too long, too
            return failure(asked, EPROTO, "libcurl had no memory, or no room for a line of the response");
        default:
            return failure(asked, EPROTO, "the transfer failed: " + reason);
    }
}

// What quotes a secret is left out whole, for libcurl's general words.
std::string CurlClient::reason_without_secrets(const Asked& asked, const TransferResult& result) const {
    const auto quotes = [&](std::string_view secret) {
        return !secret.empty() && result.reason.find(secret) != std::string::npos;
    };
    const auto [user, password] = user_and_password_of(access_);
    bool secret = quotes(access_.bearer_token) || quotes(user) || quotes(password) ||
                  quotes(asked.url.query) || quotes(asked.url.user.value_or("")) ||
                  quotes(asked.url.password);
    if (access_.aws) {
        secret = secret || quotes(access_.aws->access_key_id) || quotes(access_.aws->secret_access_key) ||
                 quotes(access_.aws->session_token);
    }
    for (const std::string& header : access_.headers) {
        const std::size_t value = header.find_first_not_of(" \t", header.find(':') + 1);
        secret = secret || quotes(header.substr(std::min(value, header.size())));
    }
    // A proxy's variable, which libcurl quotes where it does not understand it.
    secret = secret || result.reason.find('@') != std::string::npos;
    return one_line(secret ? curl_.easy_strerror(result.code) : result.reason);
}

}  // namespace

Result<std::unique_ptr<HttpClient>> open_curl(HttpAccess access) {
    if (std::string fault = fault_of(access); !fault.empty())
        return Status::recoverable_error(EINVAL, "", std::move(fault));
    const Result<const CurlLibrary*> curl = curl_library();
    if (!curl) return curl.status();
    return std::unique_ptr<HttpClient>(std::make_unique<CurlClient>(**curl, std::move(access)));
}

}  // namespace attnsmith::cache
