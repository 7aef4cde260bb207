#include "cache/remote/http.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <memory>
#include <optional>
#include <thread>

#include "cache/fixture.hpp"
#include "cache/http_server.hpp"
#include "cache/remote/curl_library.hpp"
#include "cache/remote/transfer.hpp"
#include "cache/remote/url.hpp"
#include "support/catch.hpp"
#include "support/variable.hpp"

namespace attnsmith::cache {

using namespace testing;
using test::Variable;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

namespace {

// Whether libcurl is here; else says by name which test is not run.
bool has_libcurl(const char* test) {
    static const Status status = curl_library().status();
    static const Variable direct("no_proxy", "*");  // not by a proxy of the developer's machine
    if (!status.ok()) WARN("SKIP " << test << ": " << status.to_string());
    return status.ok();
}

#define NEEDS_LIBCURL(test) \
    if (!has_libcurl(test)) return

std::unique_ptr<HttpClient> client_with(HttpAccess access = {}) {
    Result<std::unique_ptr<HttpClient>> client = open_curl(std::move(access));
    if (!client) throw std::runtime_error(client.status().to_string());
    return std::move(client).value();
}

HttpRequest get(std::string url) { return {.url = std::move(url), .max_bytes = 1000, .timeout = 5s}; }

std::string text_of(std::span<const std::byte> bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

bool say_ok(const HttpReceived&, HttpConnection& connection) { return connection.reply(200, "hello"); }

// A server that answers each request with these bytes and then closes the connection.
HttpServer::Answer raw(std::string bytes) {
    return [bytes](const HttpReceived&, HttpConnection& connection) {
        connection.send(bytes);
        return false;
    };
}

bool hang(const HttpReceived&, HttpConnection& connection) {
    connection.hang();
    return false;
}

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

// The errno that a request ends with; 0 for a response.
int error_of(HttpClient& client, const HttpRequest& request) {
    const Result<HttpResponse> response = client.perform(request);
    if (!response) UNSCOPED_INFO(response.status().to_string());
    return response.status().error_number;
}

int error_of(const HttpServer& server) { return error_of(*client_with(), get(server.url("/x"))); }

}  // namespace

TEST_CASE("HTTP: a response has the server's status and body", "[cache][http]") {
    NEEDS_LIBCURL("statuses");
    const HttpServer server([](const HttpReceived& request, HttpConnection& connection) {
        return connection.reply(std::stoi(request.target.substr(1)), "page of " + request.target);
    });
    const auto client = client_with();
    for (const int status : {200, 403, 404, 500, 503}) {
        const auto response = client->perform(get(server.url("/" + std::to_string(status))));
        REQUIRE(response.ok());
        CHECK(response->status == status);
        CHECK(text_of(response->body) == "page of /" + std::to_string(status));
    }
    CHECK(server.connections() == 1);
}

TEST_CASE("HTTP: a response says what time it is at its server", "[cache][http]") {
    NEEDS_LIBCURL("HTTP: a response says what time it is at its server");
    std::string headers;
    HttpServer server(
        [&](const HttpReceived&, HttpConnection& connection) { return connection.reply(404, "", headers); });
    const auto client = client_with();
    const auto date_with = [&](std::string given) {
        headers = std::move(given);
        const auto response = client->perform(get(server.url("/x")));
        REQUIRE(response);
        return response->date;
    };
    const auto noon = std::chrono::sys_days(std::chrono::year(2030) / 3 / 1) + 12h;
    CHECK_FALSE(date_with("").has_value());
    CHECK_FALSE(date_with("Date: today\r\n").has_value());
    CHECK(date_with("date:  Fri, 01 Mar 2030 12:00:00 GMT\r\n") == noon);
    // A proxy's answer is as much older as it says, in whichever order.
    CHECK(date_with("Age: 60\r\nDate: Fri, 01 Mar 2030 12:00:00 GMT\r\n") == noon + 60s);
    CHECK(date_with("Date: Fri, 01 Mar 2030 12:00:00 GMT\r\nAge: 60\r\n") == noon + 60s);
    CHECK_FALSE(date_with("Age: 60\r\n").has_value());
}

TEST_CASE("HTTP: put sends its body with its length and waits for nothing before", "[cache][http]") {
    NEEDS_LIBCURL("put");
    const HttpServer server([](const HttpReceived&, HttpConnection& connection) {
        return connection.reply(201, "a page that nobody asked for");
    });
    const std::string text(3'000'000, 'p');
    const auto start = Clock::now();
    const auto response = client_with()->perform({.method = HttpMethod::put,
                                                  .url = server.url("/kernels/1?signed=yes"),
                                                  .body = std::as_bytes(std::span(text)),
                                                  .timeout = 5s});
    REQUIRE(response.ok());
    CHECK(response->status == 201);
    CHECK(response->body.empty());  // max_bytes is 0
    CHECK(seconds_since(start) < 0.9);
    const HttpReceived received = server.requests().at(0);
    CHECK(received.method == "PUT");
    CHECK(received.target == "/kernels/1?signed=yes");
    CHECK(received.body == text);
    CHECK(received.header("Content-Length") == std::to_string(text.size()));
    CHECK(received.header("Expect").empty());
    CHECK(received.header("Transfer-Encoding").empty());
    CHECK(received.header("Accept-Encoding").empty());
}

TEST_CASE("HTTP: an empty put is one", "[cache][http]") {
    NEEDS_LIBCURL("empty put");
    const HttpServer server(say_ok);
    const auto response =
        client_with()->perform({.method = HttpMethod::put, .url = server.url("/x"), .timeout = 5s});
    REQUIRE(response.ok());
    CHECK(server.requests().at(0).header("Content-Length") == "0");
}

TEST_CASE("HTTP: a server is told who asks", "[cache][http]") {
    NEEDS_LIBCURL("access");
    const HttpServer server(say_ok);
    const auto authorization = [&](HttpAccess access, const std::string& url) {
        REQUIRE(client_with(std::move(access))->perform(get(url)).ok());
        return server.requests().back().header("Authorization");
    };
    const std::string at_user = "http://us%40er:pa%3Ass@127.0.0.1:" + std::to_string(server.port()) + "/x";
    CHECK(authorization({}, server.url("/x")).empty());
    CHECK(authorization({.bearer_token = "abc"}, server.url("/x")) == "Bearer abc");
    CHECK(authorization({.user_and_password = "user:pass:word"}, server.url("/x")) ==
          "Basic dXNlcjpwYXNzOndvcmQ=");
    CHECK(authorization({.user_and_password = "user:pass:word"}, at_user) == "Basic dXNAZXI6cGE6c3M=");
    CHECK(authorization({.bearer_token = "abc"}, at_user) == "Bearer abc");
    const Netrc netrc = {{"other.example", "a", "b"}, {"127.0.0.1", "net", "rc"}};
    CHECK(authorization({.netrc = netrc}, server.url("/x")) == "Basic bmV0OnJj");
    CHECK(authorization({.user_and_password = "user:pass:word", .netrc = netrc}, server.url("/x")) ==
          "Basic dXNlcjpwYXNzOndvcmQ=");
    CHECK(authorization({.netrc = netrc}, at_user) == "Basic dXNAZXI6cGE6c3M=");
    CHECK(authorization({.netrc = {{"other.example", "a", "b"}}}, server.url("/x")).empty());
    CHECK(authorization({.headers = {"Authorization: Own", "X-One: 1"}}, server.url("/x")) == "Own");
    CHECK(server.requests().back().header("X-One") == "1");
}

TEST_CASE("HTTP: a redirect on the same server keeps the access", "[cache][http]") {
    NEEDS_LIBCURL("redirects on a server");
    const HttpServer server([](const HttpReceived& request, HttpConnection& connection) {
        if (request.target == "/there/b?c=d") return connection.reply(200, "there");
        return connection.reply(302, "a page", "Location: ../there/b?c=d\r\n");
    });
    const auto response = client_with({.bearer_token = "abc"})->perform(get(server.url("/here/a")));
    REQUIRE(response.ok());
    CHECK(response->status == 200);
    CHECK(text_of(response->body) == "there");
    CHECK(server.requests().at(1).header("Authorization") == "Bearer abc");
    CHECK(server.connections() == 1);
}

TEST_CASE("HTTP: a redirect to another server takes nothing along that says who asks", "[cache][http]") {
    NEEDS_LIBCURL("redirects elsewhere");
    std::string back;
    const HttpServer other([&](const HttpReceived& request, HttpConnection& connection) {
        if (request.target != "/back") return connection.reply(200, "elsewhere");
        return connection.reply(302, "", "Location: " + back + "\r\n");
    });
    const HttpServer server([&](const HttpReceived& request, HttpConnection& connection) {
        if (request.target == "/end") return connection.reply(200, "the end");
        if (request.target == "/again") return connection.reply(302, "", "Location: /end\r\n");
        return connection.reply(
            307, "",
            "Location: http://evil:word@127.0.0.1:" + std::to_string(other.port()) + request.target + "\r\n");
    });
    back = server.url("/again");
    const std::string at_user = "http://user:pass@127.0.0.1:" + std::to_string(server.port()) + "/x";
    const std::vector<std::pair<HttpAccess, std::string>> all = {
        {{.bearer_token = "abc", .headers = {"X-Secret: s"}}, server.url("/x")},
        {{.user_and_password = "user:pass", .headers = {"X-Secret: s"}}, server.url("/x")},
        {{.netrc = {{"", "net", "rc"}}}, server.url("/x")},
        {{.aws = AwsCredentials{"id", "secret", "token", "us-east-1"}, .headers = {"X-Secret: s"}},
         server.url("/x")},
        {{}, at_user},
    };
    for (const auto& [access, url] : all) {
        const auto response = client_with(access)->perform(get(url));
        REQUIRE(response.ok());
        CHECK(text_of(response->body) == "elsewhere");
        CHECK_FALSE(server.requests().back().header("Authorization").empty());
        CHECK(other.requests().back().header("Authorization").empty());
        CHECK(other.requests().back().header("X-Secret").empty());
        CHECK(other.requests().back().header("X-Amz-Security-Token").empty());
        CHECK(other.requests().back().header("Cookie").empty());
    }
    // Back at the first server, it has still lost it.
    REQUIRE(client_with(all[0].first)->perform(get(server.url("/back"))).ok());
    CHECK(server.requests().back().target == "/end");
    CHECK(server.requests().back().header("Authorization").empty());
    CHECK(server.requests().back().header("X-Secret").empty());
}

TEST_CASE("HTTP: two servers' connections are kept though one redirects to the other", "[cache][http]") {
    NEEDS_LIBCURL("connections of redirects");
    const HttpServer other(say_ok);
    const HttpServer server([&](const HttpReceived&, HttpConnection& connection) {
        return connection.reply(302, "", "Location: " + other.url("/x") + "\r\n");
    });
    const auto client = client_with();
    for (int i = 0; i < 5; ++i) REQUIRE(client->perform(get(server.url("/x"))).ok());
    CHECK(server.connections() == 1);
    CHECK(other.connections() == 1);
}

TEST_CASE("HTTP: ten redirects are followed and no more", "[cache][http]") {
    NEEDS_LIBCURL("number of redirects");
    const HttpServer server([](const HttpReceived& request, HttpConnection& connection) {
        const int left = std::stoi(request.target.substr(1));
        if (left == 0) return connection.reply(200, "");
        return connection.reply(301, "", "Location: /" + std::to_string(left - 1) + "\r\n");
    });
    const auto client = client_with();
    CHECK(error_of(*client, get(server.url("/10"))) == 0);
    CHECK(error_of(*client, get(server.url("/11"))) == EPROTO);
}

TEST_CASE("HTTP: a put follows no redirect", "[cache][http]") {
    NEEDS_LIBCURL("redirected put");
    const HttpServer server([](const HttpReceived&, HttpConnection& connection) {
        return connection.reply(307, "", "Location: /elsewhere\r\n");
    });
    const auto response =
        client_with()->perform({.method = HttpMethod::put, .url = server.url("/x"), .timeout = 5s});
    REQUIRE(response.ok());
    CHECK(response->status == 307);
    CHECK(server.requests().size() == 1);
}

TEST_CASE("HTTP: redirects lead to http and https alone", "[cache][http]") {
    NEEDS_LIBCURL("redirected to other schemes");
    const HttpServer server([](const HttpReceived& request, HttpConnection& connection) {
        return connection.reply(302, "", "Location: " + request.target.substr(1) + "\r\n");
    });
    const auto client = client_with();
    for (const char* where : {"file:///etc/passwd", "ftp://127.0.0.1/x", "gopher://127.0.0.1/x", "http://",
                              "http://127.0.0.1:99999/"})
        CHECK(error_of(*client, get(server.url(std::string("/") + where))) == EPROTO);
    // Without a Location it leads nowhere.
    const HttpServer nowhere(
        [](const HttpReceived&, HttpConnection& connection) { return connection.reply(302, "page"); });
    const auto response = client->perform(get(nowhere.url("/x")));
    REQUIRE(response.ok());
    CHECK(response->status == 302);
}

TEST_CASE("HTTP: a body of exactly max_bytes is taken, and one byte more refused", "[cache][http]") {
    NEEDS_LIBCURL("max_bytes");
    const HttpServer server([](const HttpReceived& request, HttpConnection& connection) {
        const std::string body(std::stoul(request.target.substr(2)), 'b');
        if (request.target[1] == 'l') return connection.reply(200, body);
        connection.send("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + body);
        return false;
    });
    const auto client = client_with();
    for (const std::string kind : {"/l", "/e"}) {
        const auto response = client->perform(get(server.url(kind + "1000")));
        REQUIRE(response.ok());
        CHECK(response->body.size() == 1000);
        CHECK(error_of(*client, get(server.url(kind + "1001"))) == EFBIG);
    }
    HttpRequest nothing = get(server.url("/l0"));
    nothing.max_bytes = 0;
    CHECK(error_of(*client, nothing) == 0);
    nothing.url = server.url("/e1");
    CHECK(error_of(*client, nothing) == EFBIG);
}

TEST_CASE("HTTP: a response that says it is too long is refused before any of it", "[cache][http]") {
    NEEDS_LIBCURL("Content-Length");
    for (const std::string length : {"1001", "99999999999999", "99999999999999999999999999"}) {
        const HttpServer server([&](const HttpReceived&, HttpConnection& connection) {
            connection.send("HTTP/1.1 200 OK\r\nContent-Length: " + length + "\r\n\r\n");
            connection.hang();
            return false;
        });
        const auto start = Clock::now();
        CHECK(error_of(server) == EFBIG);
        CHECK(seconds_since(start) < 1);
    }
}

TEST_CASE("HTTP: endless bodies end", "[cache][http]") {
    NEEDS_LIBCURL("endless bodies");
    const std::string kilobyte(1024, 'x');
    const HttpServer server([&](const HttpReceived& request, HttpConnection& connection) {
        const bool chunked = request.target == "/chunked";
        connection.send("HTTP/1.1 " + std::string(request.target == "/404" ? "404 No" : "200 OK") + "\r\n" +
                        (chunked ? "Transfer-Encoding: chunked\r\n\r\n" : "Connection: close\r\n\r\n"));
        connection.send_for_ever(chunked ? "400\r\n" + kilobyte + "\r\n" : kilobyte);
        return false;
    });
    const auto client = client_with();
    const auto start = Clock::now();
    CHECK(error_of(*client, get(server.url("/plain"))) == EFBIG);
    CHECK(error_of(*client, get(server.url("/chunked"))) == EFBIG);
    // The status is all that counts of an error page.
    const auto response = client->perform(get(server.url("/404")));
    REQUIRE(response.ok());
    CHECK(response->status == 404);
    CHECK(response->body.size() == 1000);
    CHECK(seconds_since(start) < 2);
}

TEST_CASE("HTTP: what is no whole response is an error", "[cache][http]") {
    NEEDS_LIBCURL("broken responses");
    CHECK(error_of(HttpServer(raw("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf"))) == ECONNRESET);
    CHECK(error_of(HttpServer(raw("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n"))) ==
          ECONNRESET);
    CHECK(error_of(HttpServer(raw(""))) == ECONNRESET);
    CHECK(error_of(HttpServer(hang, {.greet = [](HttpConnection&) { return false; }})) == ECONNRESET);
    CHECK(error_of(HttpServer(raw("SSH-2.0-OpenSSH_9.2p1\r\nand so on\r\n"))) == EPROTO);
    CHECK(error_of(HttpServer(raw(std::string("\x00\xff\x1b[31m\x07", 7) + "garbage\n"))) == EPROTO);
    CHECK(error_of(HttpServer(raw("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"))) ==
          EPROTO);
    CHECK(error_of(*client_with(), get("http://127.0.0.1:" + std::to_string(unused_port()) + "/x")) ==
          ECONNREFUSED);
}

TEST_CASE("HTTP: a response that claims to be compressed is not decoded", "[cache][http]") {
    NEEDS_LIBCURL("Content-Encoding");
    const HttpServer server([](const HttpReceived&, HttpConnection& connection) {
        return connection.reply(200, "as it is", "Content-Encoding: gzip\r\n");
    });
    const auto response = client_with()->perform(get(server.url("/x")));
    REQUIRE(response.ok());
    CHECK(text_of(response->body) == "as it is");
}

TEST_CASE("HTTP: endless headers end", "[cache][http]") {
    NEEDS_LIBCURL("endless headers");
    for (const std::string start : {"HTTP/1.1 200 OK\r\n", "HTTP/1.1 200 OK\r\nX-Endless: ", ""}) {
        const std::string line = start.empty()             ? "HTTP/1.1 100 Continue\r\n\r\n"
                                 : start.ends_with("\r\n") ? "X-Some: header of a flood\r\n"
                                                           : "h";
        std::string part;
        while (part.size() < 10000) part += line;
        const HttpServer server([&](const HttpReceived&, HttpConnection& connection) {
            connection.send(start);
            connection.send_for_ever(part);
            return false;
        });
        const auto began = Clock::now();
        CHECK(error_of(server) == EPROTO);
        CHECK(seconds_since(began) < 2);
    }
}

TEST_CASE("HTTP: a request ends at its timeout", "[cache][http]") {
    NEEDS_LIBCURL("timeouts");
    const auto client = client_with();
    const auto check_times_out = [&](const std::string& url) {
        HttpRequest request = get(url);
        request.timeout = 300ms;
        const auto start = Clock::now();
        CHECK(error_of(*client, request) == ETIMEDOUT);
        CHECK(seconds_since(start) >= 0.29);
        CHECK(seconds_since(start) < 0.8);
    };
    SECTION("after a request") { check_times_out(HttpServer(hang).url("/x")); }
    SECTION("a byte a second") {
        const HttpServer server([](const HttpReceived&, HttpConnection& connection) {
            connection.send("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n");
            connection.send_for_ever("1", 1s);
            return false;
        });
        check_times_out(server.url("/x"));
    }
    SECTION("redirects count together") {
        const HttpServer server([](const HttpReceived&, HttpConnection& connection) {
            connection.sleep_for(100ms);
            return connection.reply(302, "", "Location: /x\r\n");
        });
        check_times_out(server.url("/x"));
    }
    SECTION("before a connection is accepted") {
        const HttpServer server(say_ok, {.greet = {}, .accepts = false});
        for (int i = 0; i < 3; ++i) check_times_out(server.url("/x"));
    }
    SECTION("a server that does not read") {
        const HttpServer server(say_ok, {.greet = [](HttpConnection& connection) {
                                    connection.hang();
                                    return false;
                                }});
        const std::string much(20'000'000, 'm');
        const auto start = Clock::now();
        CHECK(error_of(*client, {.method = HttpMethod::put,
                                 .url = server.url("/x"),
                                 .body = std::as_bytes(std::span(much)),
                                 .timeout = 300ms}) == ETIMEDOUT);
        CHECK(seconds_since(start) < 0.8);
    }
    SECTION("none is over at once") {
        const HttpServer server(say_ok);
        CHECK(error_of(*client, {.url = server.url("/x"), .max_bytes = 10}) == ETIMEDOUT);
        CHECK(server.requests().empty());
    }
}

TEST_CASE("HTTP: a stop ends a request at once", "[cache][http]") {
    NEEDS_LIBCURL("stops");
    const auto client = client_with();
    const auto check_stops = [&](HttpRequest request) {
        std::stop_source stop;
        request.stop = stop.get_token();
        Clock::time_point asked;
        const std::jthread stopper([&] {
            std::this_thread::sleep_for(100ms);
            asked = Clock::now();
            stop.request_stop();
        });
        CHECK(error_of(*client, request) == ECANCELED);
        CHECK(seconds_since(asked) < 0.3);
    };
    SECTION("while the server is slow") { check_stops(get(HttpServer(hang).url("/x"))); }
    SECTION("while the server sends") {
        const HttpServer server([](const HttpReceived&, HttpConnection& connection) {
            connection.send("HTTP/1.1 200 OK\r\n\r\n");
            connection.send_for_ever(std::string(10000, 's'));
            return false;
        });
        HttpRequest request = get(server.url("/x"));
        request.max_bytes = std::uint64_t{1} << 40;
        check_stops(request);
    }
    SECTION("while it connects") {
        const HttpServer server(say_ok, {.greet = {}, .accepts = false});
        for (int i = 0; i < 3; ++i) check_stops(get(server.url("/x")));
    }
    SECTION("while it waits for a connection") {
        const HttpServer server(hang);
        std::stop_source others;
        std::vector<std::jthread> threads;
        for (int i = 0; i < HttpClient::kMaxConnections; ++i)
            threads.emplace_back([&] {
                HttpRequest request = get(server.url("/busy"));
                request.stop = others.get_token();
                (void)client->perform(request);
            });
        while (server.requests().size() < HttpClient::kMaxConnections) std::this_thread::sleep_for(1ms);
        check_stops(get(server.url("/waits")));
        others.request_stop();
    }
    SECTION("before it") {
        const HttpServer server(say_ok);
        std::stop_source stop;
        stop.request_stop();
        HttpRequest request = get(server.url("/x"));
        request.stop = stop.get_token();
        CHECK(error_of(*client, request) == ECANCELED);
        CHECK(server.connections() == 0);
    }
}

TEST_CASE("HTTP: a connection is kept for the next request", "[cache][http]") {
    NEEDS_LIBCURL("kept connections");
    const HttpServer server(say_ok);
    const auto client = client_with();
    for (int i = 0; i < 20; ++i) {
        HttpRequest request = get(server.url("/x"));
        request.method = i % 2 == 0 ? HttpMethod::get : HttpMethod::put;
        REQUIRE(client->perform(request).ok());
    }
    CHECK(server.connections() == 1);
    // Another client, perhaps with another certificate, has its own.
    REQUIRE(client_with()->perform(get(server.url("/x"))).ok());
    CHECK(server.connections() == 2);
}

TEST_CASE("HTTP: a kept connection that the server has closed costs no request", "[cache][http]") {
    NEEDS_LIBCURL("closed connections");
    const HttpServer server([](const HttpReceived&, HttpConnection& connection) {
        connection.reply(200, "hello");
        return connection.sleep_for(1ms) && false;  // without having said so
    });
    const auto client = client_with();
    const std::string body = "body";
    for (int i = 0; i < 30; ++i) {
        HttpRequest request = get(server.url("/x"));
        request.method = i % 3 == 0 ? HttpMethod::put : HttpMethod::get;
        if (request.method == HttpMethod::put) request.body = std::as_bytes(std::span(body));
        CHECK(error_of(*client, request) == 0);
        if (i % 2 == 0) std::this_thread::sleep_for(2ms);  // the close arrives before or with the next one
    }
}

TEST_CASE("HTTP: a process has at most eight connections", "[cache][http]") {
    NEEDS_LIBCURL("number of connections");
    const HttpServer server([](const HttpReceived&, HttpConnection& connection) {
        connection.sleep_for(10ms);
        return connection.reply(200, "hello");
    });
    const std::unique_ptr<HttpClient> clients[] = {client_with(), client_with()};
    std::atomic<int> succeeded{0};
    {
        std::vector<std::jthread> threads;
        for (int i = 0; i < 50; ++i)
            threads.emplace_back([&, i] {
                if (clients[i % 2]->perform(get(server.url("/x"))).ok()) ++succeeded;
            });
    }
    CHECK(succeeded == 50);
    CHECK(server.requests().size() == 50);
    CHECK(server.most_open_connections() <= HttpClient::kMaxConnections);
}

TEST_CASE("HTTP: a connection makes room for one to another server", "[cache][http]") {
    NEEDS_LIBCURL("connections to many servers");
    std::vector<std::unique_ptr<HttpServer>> servers;
    for (int i = 0; i < 2 * HttpClient::kMaxConnections; ++i)
        servers.push_back(std::make_unique<HttpServer>(say_ok));
    const auto client = client_with();
    int open = 0;
    for (const auto& server : servers) REQUIRE(client->perform(get(server->url("/x"))).ok());
    for (const auto& server : servers) open += server->open_connections();
    CHECK(open == HttpClient::kMaxConnections);
    // What was used last is what is kept.
    REQUIRE(client->perform(get(servers.back()->url("/x"))).ok());
    CHECK(servers.back()->connections() == 1);
}

TEST_CASE("HTTP: no client uses the connection of another", "[cache][http]") {
    NEEDS_LIBCURL("connections of clients");
    std::atomic<int> inside{0};
    const HttpServer server([&](const HttpReceived&, HttpConnection& connection) {
        ++inside;  // all at once, so that each has a connection of its own
        for (int i = 0; i < 1000 && inside < HttpClient::kMaxConnections; ++i) connection.sleep_for(1ms);
        return connection.reply(200, "hello");
    });
    const auto one = client_with(), other = client_with();
    {
        std::vector<std::jthread> threads;
        for (int i = 0; i < HttpClient::kMaxConnections; ++i)
            threads.emplace_back([&] { (void)one->perform(get(server.url("/x"))); });
    }
    REQUIRE(server.connections() == HttpClient::kMaxConnections);
    REQUIRE(other->perform(get(server.url("/x"))).ok());
    CHECK(server.connections() == HttpClient::kMaxConnections + 1);
    CHECK(server.open_connections() == HttpClient::kMaxConnections);
}

TEST_CASE("HTTP: a client that goes closes its connections", "[cache][http]") {
    NEEDS_LIBCURL("clients that go");
    const HttpServer server(say_ok);
    REQUIRE(client_with()->perform(get(server.url("/x"))).ok());
    CHECK(server.open_connections() == 0);
}

TEST_CASE("HTTP: waiting for a connection counts", "[cache][http]") {
    NEEDS_LIBCURL("waiting for a connection");
    const HttpServer server(hang);
    const auto client = client_with();
    std::vector<std::jthread> threads;
    for (int i = 0; i < HttpClient::kMaxConnections; ++i)
        threads.emplace_back([&] {
            HttpRequest request = get(server.url("/busy"));
            request.timeout = 1s;
            (void)client->perform(request);
        });
    while (server.requests().size() < HttpClient::kMaxConnections) std::this_thread::sleep_for(1ms);
    HttpRequest request = get(server.url("/waits"));
    request.timeout = 200ms;
    const auto start = Clock::now();
    const Status status = client->perform(request).status();
    CHECK(status.error_number == ETIMEDOUT);
    CHECK(status.message.find("8 connections") != std::string::npos);
    CHECK(seconds_since(start) < 0.6);
}

TEST_CASE("HTTP: a child made by fork has connections of its own", "[cache][http]") {
    NEEDS_LIBCURL("fork");
    if (!kMayForkBesideBusyThreads) {
        WARN("SKIP fork beside a request: this sanitizer's allocator may hang in the child");
        return;
    }
    const HttpServer server([](const HttpReceived& request, HttpConnection& connection) {
        if (request.target == "/slow") connection.sleep_for(400ms);
        return connection.reply(200, request.target);
    });
    const auto client = client_with();
    REQUIRE(client->perform(get(server.url("/kept"))).ok());
    std::vector<std::jthread> threads;
    std::atomic<int> whole{0};
    for (int i = 0; i < HttpClient::kMaxConnections; ++i)  // all that the parent may have
        threads.emplace_back([&] {
            const auto response = client->perform(get(server.url("/slow")));
            if (response.ok() && text_of(response->body) == "/slow") ++whole;
        });
    while (server.requests().size() < 1 + HttpClient::kMaxConnections) std::this_thread::sleep_for(1ms);
    ChildProcess child([&] {
        auto in_child = [&](HttpClient& asked) {
            const auto response = asked.perform(get(server.url("/child")));
            return response.ok() && text_of(response->body) == "/child";
        };
        if (!in_child(*client) || !in_child(*client)) return 1;
        const auto another = open_curl({});
        if (!another.ok() || !in_child(**another)) return 2;
        return 0;
    });
    CHECK(child.wait() == 0);
    threads.clear();
    CHECK(whole == HttpClient::kMaxConnections);
    // The child took none of the parent's, nor did its end close any.
    REQUIRE(client->perform(get(server.url("/after"))).ok());
    const auto requests = server.requests();
    for (const HttpReceived& request : requests)
        if (request.target == "/child") CHECK(request.connection > HttpClient::kMaxConnections);
    CHECK(requests.back().connection <= HttpClient::kMaxConnections);
}

TEST_CASE("HTTP: a host that nobody knows", "[cache][http]") {
    NEEDS_LIBCURL("unknown host");
    HttpRequest request = get("http://attnsmith.invalid/x");
    request.timeout = 500ms;
    const auto start = Clock::now();
    const int error = error_of(*client_with(), request);
    CHECK((error == EHOSTUNREACH || error == ETIMEDOUT));  // a name server may be slow, or there be none
    CHECK(seconds_since(start) < 1);
}

TEST_CASE("HTTP: what is no URL of http or https is said to be none", "[cache][http]") {
    NEEDS_LIBCURL("URLs");
    const auto client = client_with();
    for (const char* url :
         {"", "x", "/etc/passwd", "file:///etc/passwd", "ftp://127.0.0.1/", "http://",
          "http:", "http://127.0.0.1:99999/", "http://127.0.0.1/a b", "http://127.0.0.1/\r\nX: y",
          "http://a%0d%0ab:c@127.0.0.1/", "//127.0.0.1/", "127.0.0.1/x"}) {
        CAPTURE(url);
        CHECK(error_of(*client, get(url)) == EINVAL);
    }
    const Status status = client->perform(get("http//me:my@secret@host/path?token#part")).status();
    CHECK(status.error_number == EINVAL);
    CHECK(status.path == "host/path");
}

TEST_CASE("HTTP: parts of a URL", "[cache][http]") {
    NEEDS_LIBCURL("parts of a URL");
    const CurlLibrary& curl = *curl_library().value();
    const auto url = parse_url(curl, "HTTPS://u%20s:p%40@Host.Example:8443/a/b?c=d#e");
    REQUIRE(url);
    CHECK(url->text == "https://Host.Example:8443/a/b?c=d");
    CHECK(url->origin() == "https://host.example:8443");
    CHECK(url->user == "u s");
    CHECK(url->password == "p@");
    CHECK(url->shown == "https://Host.Example:8443/a/b");
    CHECK(parse_url(curl, "https://h/")->origin() == parse_url(curl, "https://H:443/x")->origin());
    CHECK(parse_url(curl, "http://h/")->origin() != parse_url(curl, "https://h/")->origin());
    CHECK(parse_url(curl, "http://[::1]:80/x")->origin() == "http://[::1]:80");
    CHECK(parse_redirect(curl, *url, "../x?y")->text == "https://Host.Example:8443/x?y");
    CHECK(parse_redirect(curl, *url, "//other/x")->origin() == "https://other:443");
    CHECK_FALSE(parse_redirect(curl, *url, "http://me@other/x")->user);
}

TEST_CASE("HTTP: no message has a secret or a control character", "[cache][http]") {
    NEEDS_LIBCURL("secrets in messages");
    const HttpServer garbage(raw(std::string("\x1b[31m\x07garbage\r\n\r\n")));
    const HttpServer truncated(raw("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n"));
    const HttpServer too_long(raw("HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n"));
    const HttpServer loop([](const HttpReceived&, HttpConnection& connection) {
        return connection.reply(302, "", "Location: /hidden-path?hidden-query\r\n");
    });
    const HttpServer away(raw("HTTP/1.1 302 No\r\nLocation: ftp://hidden-host/\x1b[31m\r\n\r\n"));
    const HttpServer slow(hang);
    const std::string path = "/x?hidden-query=1#hidden-part";
    for (const int port : {garbage.port(), truncated.port(), too_long.port(), loop.port(), away.port(),
                           slow.port(), unused_port()}) {
        for (const HttpAccess& access :
             {HttpAccess{.bearer_token = "hidden-token", .headers = {"X-Key: hidden-header"}},
              HttpAccess{.user_and_password = "hidden-user:hidden-password"},
              HttpAccess{.aws = AwsCredentials{"hidden-id", "hidden-secret", "hidden-session", "here"}}}) {
            const std::string at = "127.0.0.1:" + std::to_string(port);
            HttpRequest request = get("http://hidden-name:hidden-word@" + at + path);
            request.timeout = 200ms;
            const auto response = client_with(access)->perform(request);
            REQUIRE_FALSE(response.ok());
            const Status status = response.status();
            CAPTURE(status.to_string());
            CHECK(status.recoverable());
            CHECK(status.path == "http://" + at + "/x");
            CHECK_FALSE(status.message.empty());
            CHECK(status.to_string().find("hidden") == std::string::npos);
            const std::string line = status.to_string();
            CHECK(std::all_of(line.begin(), line.end(), [](char c) { return c >= ' ' && c <= '~'; }));
        }
    }
    // libcurl's words name the host; where that is a user's name, too, they are not used.
    HttpRequest request = get("http://attnsmith.invalid/x");
    request.timeout = 200ms;
    const auto named = client_with({.user_and_password = "attnsmith.invalid:x"})->perform(request);
    CHECK(named.status().message.find("attnsmith.invalid") == std::string::npos);
}

TEST_CASE("HTTP: what would make another header is no access", "[cache][http]") {
    NEEDS_LIBCURL("faulty access");
    for (const HttpAccess& access :
         {HttpAccess{.bearer_token = "hidden\r\nX: y"}, HttpAccess{.user_and_password = "hidden\n"},
          HttpAccess{.headers = {"X: hidden\r\nY: z"}}, HttpAccess{.headers = {"hidden"}},
          HttpAccess{.headers = {": hidden"}}, HttpAccess{.netrc = {{"", "hidden", "x\ny"}}},
          HttpAccess{.aws = AwsCredentials{"hidden", "x\n", "", "here"}},
          HttpAccess{.aws = AwsCredentials{"hidden", "x", "y\r", "here"}}}) {
        const Status status = open_curl(access).status();
        CHECK(status.error_number == EINVAL);
        CHECK(status.to_string().find("hidden") == std::string::npos);
    }
}

TEST_CASE("HTTP: a proxy is the environment's, and access for the server is not for it", "[cache][http]") {
    NEEDS_LIBCURL("proxies");
    const HttpServer proxy([](const HttpReceived& request, HttpConnection& connection) {
        return connection.reply(request.method == "CONNECT" ? 403 : 200, "by proxy");
    });
    const Variable http("http_proxy", proxy.url("/"));
    const Variable https("https_proxy", proxy.url("/"));
    const Variable without("no_proxy", "none");
    const auto client = client_with({.bearer_token = "abc", .headers = {"X-Secret: s"}});
    const auto response = client->perform(get("http://attnsmith.invalid/x"));
    REQUIRE(response.ok());
    CHECK(text_of(response->body) == "by proxy");
    CHECK(proxy.requests().at(0).target == "http://attnsmith.invalid/x");
    CHECK(error_of(*client, get("https://attnsmith.invalid/x")) != 0);
    CHECK(proxy.requests().at(1).method == "CONNECT");
    CHECK(proxy.requests().at(1).header("Authorization").empty());
    CHECK(proxy.requests().at(1).header("X-Secret").empty());
}

TEST_CASE("HTTP: a system without libcurl is told what to install", "[cache][http]") {
    const TemporaryDirectory directory;
    const std::string fifo = directory / "libcurl.so";
    REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
    const std::string text = directory / "text.so";
    write_text(text, "no library");
    for (const char* name : {"libcurl-of-nobody.so.4", fifo.c_str(), text.c_str(), "libc.so.6"}) {
        const char* const names[] = {name};
        const Status status = open_curl_library(names).status();
        CAPTURE(status.to_string());
        CHECK(status.error_number == ENOENT);
        CHECK(status.recoverable());
        CHECK(status.path == name);
        CHECK(status.message.find("libcurl 7.75 or newer") != std::string::npos);
        CHECK(status.message.find("apt-get install libcurl4") != std::string::npos);
        CHECK(status.message.find('\n') == std::string::npos);
    }
    NEEDS_LIBCURL("libcurl after what is none");
    const char* const both[] = {"libc.so.6", "libcurl.so.4"};
    CHECK(open_curl_library(both).ok());
}

}  // namespace attnsmith::cache
