#include "cache/remote/transfer.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <exception>
#include <initializer_list>
#include <limits>
#include <new>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "cache/remote/http_date.hpp"
#include "cache/remote/letters.hpp"
#include "cache/remote/sigv4.hpp"
#include "cache/remote/without_sigpipe.hpp"

namespace attnsmith::cache {
namespace {

using namespace std::chrono_literals;
using SteadyClock = std::chrono::steady_clock;

// How soon a stop is noticed, whatever libcurl waits for meanwhile.
constexpr std::chrono::milliseconds kLookEvery = 50ms;

// What a server may have us set aside for a body by its mere word.
constexpr std::uint64_t kMostReserved = std::uint64_t{64} << 20;

std::string_view without_blanks(std::string_view text) {
    const std::size_t first = text.find_first_not_of(" \t\r\n");
    if (first == text.npos) return {};
    return text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
}

// What the callbacks of one transfer know. libcurl is C: nothing may be thrown through it.
class Receiver {
  public:
    explicit Receiver(const TransferRequest& request) : request_(request) {}

    // False: to be ended here.
    bool take_header(std::string_view line) {
        header_bytes_ += line.size();
        if (header_bytes_ > kMostHeaderBytes) return end_with(TransferEnd::headers_too_long);
        if (!headers_over_ || line.starts_with("HTTP/")) return take_header_line(line);
        return true;  // a trailer
    }

    bool take_body(std::span<const std::byte> part) {
        std::vector<std::byte>& body = result_.response.body;
        if (must_be_whole()) {
            if (part.size() > request_.max_bytes - body.size()) return end_with(TransferEnd::body_too_long);
            body.insert(body.end(), part.begin(), part.end());
            return true;
        }
        const std::uint64_t most = std::min<std::uint64_t>(request_.max_bytes, kMostOfAnyPage);
        const std::size_t kept = std::min<std::size_t>(part.size(), most - body.size());
        body.insert(body.end(), part.begin(), part.begin() + static_cast<std::ptrdiff_t>(kept));
        // A short rest is read, since that keeps the connection.
        page_bytes_ += part.size();
        return page_bytes_ <= kMostOfAnyPage || end_with(TransferEnd::complete);
    }

    std::size_t give_body(std::span<std::byte> room) {
        const std::size_t size = std::min(room.size(), request_.body.size() - sent_);
        if (size > 0) std::memcpy(room.data(), request_.body.data() + sent_, size);
        sent_ += size;
        return size;
    }

    // libcurl sends a body again where a connection that it had kept turns out to be closed.
    bool rewind_body(std::int64_t offset, int whence) {
        if (whence != SEEK_SET || offset < 0 || static_cast<std::uint64_t>(offset) > request_.body.size())
            return false;
        sent_ = static_cast<std::size_t>(offset);
        return true;
    }

    void keep_exception() { thrown_ = std::current_exception(); }
    void rethrow() const {
        if (thrown_) std::rethrow_exception(thrown_);
    }

    // Why a callback ended the transfer, if one did.
    std::optional<TransferEnd> own_end() const { return own_end_; }
    TransferResult& result() { return result_; }

  private:
    bool end_with(TransferEnd end) {
        own_end_ = end;
        return false;
    }

    bool must_be_whole() const {
        return request_.method == HttpMethod::get && result_.response.status / 100 == 2;
    }

    bool take_header_line(std::string_view line) {
        if (line.starts_with("HTTP/")) {  // of each response: 100 Continue comes before the final one
            result_.response.status = 0;
            result_.location.clear();
            result_.response.date.reset();
            age_ = {};
            content_length_ = 0;
            headers_over_ = false;
            const std::string_view rest = without_blanks(line.substr(std::min(line.find(' '), line.size())));
            std::from_chars(rest.data(), rest.data() + rest.size(), result_.response.status);
            return true;
        }
        if (without_blanks(line).empty()) return take_end_of_headers();
        const std::size_t colon = line.find(':');
        if (colon == line.npos) return true;
        const std::string_view name = line.substr(0, colon);
        const std::string_view value = without_blanks(line.substr(colon + 1));
        if (same_but_for_case(name, "content-length")) {
            const auto [end, error] =
                std::from_chars(value.data(), value.data() + value.size(), content_length_);
            if (error == std::errc::result_out_of_range)
                content_length_ = std::numeric_limits<std::uint64_t>::max();
        } else if (same_but_for_case(name, "location") && result_.location.empty()) {
            result_.location = value;
        } else if (same_but_for_case(name, "date")) {
            result_.response.date = parse_http_date(value);
        } else if (same_but_for_case(name, "age")) {
            age_ = parse_http_age(value);
        } else if (same_but_for_case(name, "transfer-encoding") && !same_but_for_case(value, "chunked") &&
                   !same_but_for_case(value, "identity")) {
            return end_with(TransferEnd::compressed);
        }
        return true;
    }

    bool take_end_of_headers() {
        if (result_.response.date) *result_.response.date += std::exchange(age_, {});
        if (result_.response.status < 200) return true;
        headers_over_ = true;
        if (!must_be_whole()) return true;
        if (content_length_ > request_.max_bytes) return end_with(TransferEnd::body_too_long);
        // For a longer one, memory is taken only as it comes: the length is the mere word of a server.
        result_.response.body.reserve(std::min(content_length_, kMostReserved));
        return true;
    }

    const TransferRequest& request_;
    TransferResult result_;
    std::optional<TransferEnd> own_end_;
    std::exception_ptr thrown_;
    std::size_t header_bytes_ = 0;
    std::uint64_t content_length_ = 0;
    std::chrono::seconds age_{};  // of an answer out of a proxy's cache
    std::size_t page_bytes_ = 0;
    bool headers_over_ = false;
    std::size_t sent_ = 0;
};

// libcurl's callbacks; `user` is a Receiver.
extern "C" {

std::size_t attnsmith_on_header(char* data, std::size_t size, std::size_t count, void* user) {
    auto* const receiver = static_cast<Receiver*>(user);
    try {
        return receiver->take_header({data, size * count}) ? size * count : 0;
    } catch (...) {
        receiver->keep_exception();
        return 0;
    }
}

std::size_t attnsmith_on_body(char* data, std::size_t size, std::size_t count, void* user) {
    auto* const receiver = static_cast<Receiver*>(user);
    try {
        return receiver->take_body(std::as_bytes(std::span(data, size * count))) ? size * count : 0;
    } catch (...) {
        receiver->keep_exception();
        return 0;
    }
}

std::size_t attnsmith_on_read(char* room, std::size_t size, std::size_t count, void* user) {
    return static_cast<Receiver*>(user)->give_body(std::as_writable_bytes(std::span(room, size * count)));
}

int attnsmith_on_seek(void* user, std::int64_t offset, int whence) {
    return static_cast<Receiver*>(user)->rewind_body(offset, whence) ? 0 : 1;
}

// Closed by exec: a program that the host starts keeps no connection of ours.
int attnsmith_on_open_socket(void*, int, CurlSocketAddress* address) {
    return ::socket(address->family, address->type | SOCK_CLOEXEC, address->protocol);
}

// The server is told, even where a child made by fork has a copy of the socket.
int attnsmith_on_close_socket(void*, int socket) {
    ::shutdown(socket, SHUT_RDWR);
    return ::close(socket);
}

}  // extern "C"

// The headers that libcurl is to send; owns them.
class HeaderList {
  public:
    explicit HeaderList(const CurlLibrary& curl) : curl_(curl) {}
    HeaderList(const HeaderList&) = delete;
    HeaderList& operator=(const HeaderList&) = delete;
    ~HeaderList() { curl_.slist_free_all(first_); }

    void add(const std::string& header) {
        CurlList* const longer = curl_.slist_append(first_, header.c_str());
        if (longer == nullptr) throw std::bad_alloc();
        first_ = longer;
    }
    const CurlList* first() const { return first_; }

  private:
    const CurlLibrary& curl_;
    CurlList* first_ = nullptr;
};

// Sets an easy handle's options, and forgets them at its end: they point to what lives no longer.
class TransferOptions {
  public:
    TransferOptions(const CurlLibrary& curl, CurlEasy* easy) : curl_(curl), easy_(easy) {
        curl_.easy_reset(easy_);
    }
    TransferOptions(const TransferOptions&) = delete;
    TransferOptions& operator=(const TransferOptions&) = delete;
    ~TransferOptions() { curl_.easy_reset(easy_); }

    void set(CurlLong option, long value) { check(curl_.easy_setopt(easy_, number(option), value)); }
    void set(CurlText option, const std::string& value) { set(option, value.c_str()); }
    void set(CurlText option, const char* value) { check(curl_.easy_setopt(easy_, number(option), value)); }
    void set(CurlPointer option, const void* value) {
        check(curl_.easy_setopt(easy_, number(option), value));
    }
    void set(CurlOffset option, std::int64_t value) {
        check(curl_.easy_setopt(easy_, number(option), value));
    }
    template <class R, class... A>
    void set(CurlFunction option, R (*function)(A...)) {
        check(curl_.easy_setopt(easy_, number(option), function));
    }
    // What an older libcurl does not know and works without.
    void try_set(CurlLong option, long value) { curl_.easy_setopt(easy_, number(option), value); }

    CurlCode first_error() const { return first_error_; }

  private:
    template <class Option>
    static int number(Option option) {
        return static_cast<int>(option);
    }
    void check(CurlCode code) {
        if (first_error_ == CurlCode::ok) first_error_ = code;
    }

    const CurlLibrary& curl_;
    CurlEasy* easy_;
    CurlCode first_error_ = CurlCode::ok;
};

void set_method(TransferOptions& options, const TransferRequest& request) {
    switch (request.method) {
        case HttpMethod::get:
            options.set(CurlLong::http_get, 1);
            break;
        case HttpMethod::put:
            options.set(CurlLong::upload, 1);
            options.set(CurlOffset::upload_size, static_cast<std::int64_t>(request.body.size()));
            break;
    }
}

// A signature or a token takes the place of the URL's user, which CurlClient::take_user() has settled.
void set_access(TransferOptions& options, const TransferRequest& request) {
    const HttpAccess& access = request.access;
    if (!request.with_access) return;
    if (!access.client_certificate.empty())
        options.set(CurlText::client_certificate, access.client_certificate);
    if (!access.client_key.empty()) options.set(CurlText::client_key, access.client_key);
    if (access.aws || !access.bearer_token.empty()) return;  // in headers
    if (!request.url.user) return;
    options.set(CurlText::user, *request.url.user);
    options.set(CurlText::password, request.url.password);
}

const char* word_of(HttpMethod method) { return method == HttpMethod::put ? "PUT" : "GET"; }

void add_headers(HeaderList& headers, const TransferRequest& request) {
    headers.add("Expect:");  // none: a server that does not know it would cost a second
    const HttpAccess& access = request.access;
    if (!request.with_access) return;
    if (access.aws) {
        for (const std::string& header :
             sigv4_headers(*access.aws, word_of(request.method), request.url, request.body, access.headers,
                           std::chrono::system_clock::now()))
            headers.add(header);
        return;
    }
    if (!access.bearer_token.empty()) headers.add("Authorization: Bearer " + access.bearer_token);
    for (const std::string& header : access.headers) headers.add(header);
}

void set_security(TransferOptions& options, const TransferRequest& request) {
    options.set(CurlLong::protocols, kCurlHttp | kCurlHttps);
    options.set(CurlLong::redirect_protocols, kCurlHttp | kCurlHttps);
    options.set(CurlLong::follow_location, 0);  // libcurl would send our headers to other hosts
    options.set(CurlLong::verify_peer, 1);
    options.set(CurlLong::verify_host, 2);
    options.set(CurlLong::ssl_version, kCurlTls12);
    options.set(CurlLong::http_auth, kCurlBasic);
    options.set(CurlLong::header_option, kCurlHeadersSeparate);  // ours are not for a proxy
    options.set(CurlLong::http_09_allowed, 0);
    if (!request.access.ca_file.empty()) {
        options.set(CurlText::ca_file, request.access.ca_file);
        options.set(CurlText::ca_folder,
                    static_cast<const char*>(nullptr));  // the system's, which adds to it
    }
}

// Everything but the time it may take. No Accept-Encoding is asked for, and so none is decoded.
void set_options(TransferOptions& options, const TransferRequest& request, const HeaderList& headers,
                 Receiver& receiver, char* error) {
    options.set(CurlPointer::error_buffer, error);
    options.set(CurlText::url, request.url.text);
    options.set(CurlText::user_agent, "attnsmith");
    // One transfer at a time is all that a connection here has, and HTTP/1.1 the simplest way to that.
    options.set(CurlLong::http_version, kCurlHttp11);
    options.set(CurlLong::suppress_connect_headers, 1);  // a proxy's are no part of the response
    options.set(CurlPointer::http_header, headers.first());
    options.set(CurlFunction::header, attnsmith_on_header);
    options.set(CurlPointer::header_data, &receiver);
    options.set(CurlFunction::write, attnsmith_on_body);
    options.set(CurlPointer::write_data, &receiver);
    options.set(CurlFunction::read, attnsmith_on_read);
    options.set(CurlPointer::read_data, &receiver);
    options.set(CurlFunction::seek, attnsmith_on_seek);
    options.set(CurlPointer::seek_data, &receiver);
    options.set(CurlFunction::open_socket, attnsmith_on_open_socket);
    options.set(CurlFunction::close_socket, attnsmith_on_close_socket);
    // No SIGALRM in a host program. A libcurl that looks names up in the calling thread (without AsynchDNS;
    // no distribution's) can then not end a lookup: it lasts as long as the resolver's own limit, 5 s a name
    // server and try by default. Others look up in a thread, which quick_exit lets be where a transfer ends
    // before; libcurl before 7.87 waits for it.
    options.set(CurlLong::no_signal, 1);
    options.try_set(CurlLong::quick_exit, 1);
    set_security(options, request);
    set_method(options, request);
    set_access(options, request);
}

std::chrono::milliseconds left_until(SteadyClock::time_point deadline) {
    return std::chrono::ceil<std::chrono::milliseconds>(deadline - SteadyClock::now());
}

// libcurl's outcome, or nothing and why not.
std::optional<CurlCode> drive(const Connection& connection, const TransferRequest& request,
                              TransferEnd& why_not) {
    const CurlLibrary& curl = *connection.curl;
    for (;;) {
        int ignored = 0;
        if (curl.multi_perform(connection.multi, &ignored) != 0) return CurlCode::out_of_memory;
        while (const CurlMessage* const message = curl.multi_info_read(connection.multi, &ignored))
            if (message->kind == kCurlMessageDone && message->easy == connection.easy)
                return message->data.result;
        const std::chrono::milliseconds left = left_until(request.deadline);
        if (request.stop.stop_requested() || left <= 0ms) {
            why_not = request.stop.stop_requested() ? TransferEnd::stopped : TransferEnd::timed_out;
            return std::nullopt;
        }
        const auto wait = static_cast<int>(std::min(left, kLookEvery).count());
        if (curl.multi_poll(connection.multi, nullptr, 0, wait, nullptr) != 0) return CurlCode::out_of_memory;
    }
}

// The easy handle as a part of its multi handle; taking it out closes what is not over.
class InMulti {
  public:
    explicit InMulti(const Connection& connection) : connection_(connection) {
        if (connection.curl->multi_add_handle(connection.multi, connection.easy) != 0) throw std::bad_alloc();
    }
    InMulti(const InMulti&) = delete;
    InMulti& operator=(const InMulti&) = delete;
    ~InMulti() { connection_.curl->multi_remove_handle(connection_.multi, connection_.easy); }

  private:
    const Connection& connection_;
};

void describe_failure(const Connection& connection, const char* error, TransferResult& result) {
    const CurlLibrary& curl = *connection.curl;
    result.reason = *error != '\0' ? error : curl.easy_strerror(result.code);
    long os_error = 0;
    if (curl.easy_getinfo(connection.easy, kCurlInfoOsError, &os_error) == CurlCode::ok)
        result.os_error = static_cast<int>(os_error);
}

}  // namespace

TransferResult transfer(Connection& connection, const TransferRequest& request) {
    const CurlLibrary& curl = *connection.curl;
    const WithoutSigpipe guard;
    Receiver receiver(request);
    TransferResult& result = receiver.result();
    std::array<char, kCurlErrorSize> error{};
    HeaderList headers(curl);
    add_headers(headers, request);
    TransferOptions options(curl, connection.easy);
    set_options(options, request, headers, receiver, error.data());
    const auto left = static_cast<long>(std::max(left_until(request.deadline), 1ms).count());
    options.set(CurlLong::timeout_ms, left);
    options.set(CurlLong::connect_timeout_ms, left);  // else 300 s
    result.code = options.first_error();
    std::optional<CurlCode> code = result.code;
    if (result.code == CurlCode::ok) {
        const InMulti in_multi(connection);
        code = drive(connection, request, result.end);
        if (code && *code != CurlCode::ok) {
            result.code = *code;
            describe_failure(connection, error.data(), result);
        }
    } else {
        result.reason = curl.easy_strerror(result.code);
    }
    receiver.rethrow();
    if (receiver.own_end())
        result.end = *receiver.own_end();
    else if (code)
        result.end = *code == CurlCode::ok          ? TransferEnd::complete
                     : *code == CurlCode::timed_out ? TransferEnd::timed_out
                                                    : TransferEnd::failed;
    return std::move(result);
}

}  // namespace attnsmith::cache
