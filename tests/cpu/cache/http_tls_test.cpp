// The HTTP client over TLS, against servers of the `openssl` command.
#include <fcntl.h>
#include <spawn.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "cache/fixture.hpp"
#include "cache/http_server.hpp"
#include "cache/remote/curl_library.hpp"
#include "cache/remote/http.hpp"
#include "support/catch.hpp"
#include "support/variable.hpp"

extern char** environ;

namespace attnsmith::cache {

using namespace testing;
using namespace std::chrono_literals;

namespace {

bool has_tls(const char* test) {
    static const test::Variable direct("no_proxy", "*");
    static const Status status = curl_library().status();
    static const bool has_openssl = std::system("openssl version >/dev/null 2>&1") == 0;
    if (!status.ok()) WARN("SKIP " << test << ": " << status.to_string());
    if (!has_openssl) WARN("SKIP " << test << ": there is no openssl command");
    return status.ok() && has_openssl;
}

#define NEEDS_TLS(test) \
    if (!has_tls(test)) return

// A self-signed certificate and its key, for a name such as "IP:127.0.0.1" or "DNS:other.example".
struct Certificate {
    std::string file, key;
};

Certificate make_certificate(const TemporaryDirectory& directory, const std::string& id,
                             const std::string& name) {
    const Certificate made{directory / (id + ".crt"), directory / (id + ".key")};
    const std::string command =
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj "
        "/CN=attnsmith-test "
        "-addext subjectAltName=" +
        name + " -out " + made.file + " -keyout " + made.key + " 2>/dev/null";
    if (std::system(command.c_str()) != 0) throw std::runtime_error("openssl req failed");
    return made;
}

// `openssl s_server`, which answers with files of a directory, taken as whole responses.
class TlsServer {
  public:
    TlsServer(const TemporaryDirectory& directory, const Certificate& certificate,
              const std::string& further_options = {}) {
        int ends[2];
        if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe failed");
        const std::string command = "cd " + directory.path().string() +
                                    " && exec openssl s_server -accept 127.0.0.1:0 -HTTP -cert " +
                                    certificate.file + " -key " + certificate.key + " " + further_options;
        ::posix_spawn_file_actions_t actions;
        ::posix_spawn_file_actions_init(&actions);
        ::posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
        ::posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
        ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
        const char* const arguments[] = {"sh", "-c", command.c_str(), nullptr};
        const int error =
            ::posix_spawnp(&process_, "sh", &actions, nullptr, const_cast<char* const*>(arguments), environ);
        ::posix_spawn_file_actions_destroy(&actions);
        ::close(ends[1]);
        if (error != 0) throw std::runtime_error("posix_spawn failed");
        output_ = ::fdopen(ends[0], "r");
        char line[256];
        while (port_ == 0 && std::fgets(line, sizeof line, output_) != nullptr)
            (void)std::sscanf(line, "ACCEPT 127.0.0.1:%d", &port_);
    }
    TlsServer(const TlsServer&) = delete;
    TlsServer& operator=(const TlsServer&) = delete;
    ~TlsServer() {
        ::kill(process_, SIGKILL);
        ::waitpid(process_, nullptr, 0);
        std::fclose(output_);
    }

    // 0 when it has not come up.
    int port() const { return port_; }
    std::string url(const std::string& host, const std::string& file) const {
        return "https://" + host + ":" + std::to_string(port_) + "/" + file;
    }

  private:
    ::pid_t process_ = -1;
    std::FILE* output_ = nullptr;
    int port_ = 0;
};

Result<HttpResponse> get(const HttpAccess& access, std::string url) {
    auto client = open_curl(access);
    if (!client) return client.status();
    return (*client)->perform({.url = std::move(url), .max_bytes = 1000, .timeout = 5s});
}

void write_hello(const TemporaryDirectory& directory) {
    write_text(directory / "hello", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
}

}  // namespace

TEST_CASE("HTTPS: a server must have a certificate that is trusted, for its name", "[cache][http]") {
    NEEDS_TLS("certificates of servers");
    const TemporaryDirectory directory;
    write_hello(directory);
    const Certificate right = make_certificate(directory, "right", "IP:127.0.0.1");
    const Certificate wrong = make_certificate(directory, "wrong", "DNS:other.example");
    const TlsServer server(directory, right);
    const TlsServer other(directory, wrong);
    REQUIRE(server.port() != 0);
    REQUIRE(other.port() != 0);

    const auto response = get({.ca_file = right.file}, server.url("127.0.0.1", "hello"));
    INFO(response.status().to_string());
    REQUIRE(response.ok());
    CHECK(response->body == bytes_of("hello"));

    const Status wrong_name =
        get({.bearer_token = "hidden", .ca_file = wrong.file}, other.url("127.0.0.1", "hello?hidden"))
            .status();
    INFO(wrong_name.to_string());
    CHECK(wrong_name.error_number == EPROTO);
    CHECK(wrong_name.path == other.url("127.0.0.1", "hello"));
    CHECK(wrong_name.message.find("certificate") != std::string::npos);
    CHECK(wrong_name.to_string().find("hidden") == std::string::npos);

    for (const HttpAccess& access :
         {HttpAccess{}, HttpAccess{.ca_file = wrong.file}, HttpAccess{.ca_file = directory / "none"}}) {
        const Status status = get(access, server.url("127.0.0.1", "hello")).status();
        INFO(status.to_string());
        CHECK(status.error_number == EPROTO);
        CHECK(status.message.find('\n') == std::string::npos);
    }
}

TEST_CASE("HTTPS: a server that asks for one is shown the client's certificate", "[cache][http]") {
    NEEDS_TLS("certificates of clients");
    const TemporaryDirectory directory;
    write_hello(directory);
    const Certificate right = make_certificate(directory, "right", "IP:127.0.0.1");
    const Certificate ours = make_certificate(directory, "ours", "DNS:client.example");
    const TlsServer server(directory, right, "-Verify 1 -verify_return_error -CAfile " + ours.file);
    REQUIRE(server.port() != 0);
    HttpAccess access{.client_certificate = ours.file, .client_key = ours.key, .ca_file = right.file};
    const auto response = get(access, server.url("127.0.0.1", "hello"));
    INFO(response.status().to_string());
    CHECK(response.ok());

    access.client_certificate = directory / "both";
    write_text(access.client_certificate, read_text(ours.file) + read_text(ours.key));
    access.client_key.clear();
    CHECK(get(access, server.url("127.0.0.1", "hello")).ok());

    access.client_certificate.clear();
    CHECK_FALSE(get(access, server.url("127.0.0.1", "hello")).ok());
}

TEST_CASE("HTTPS: no redirect leads to http, but one from http to https does", "[cache][http]") {
    NEEDS_TLS("redirects between http and https");
    const TemporaryDirectory directory;
    write_hello(directory);
    const HttpServer plain([&](const HttpReceived& request, HttpConnection& connection) {
        return connection.reply(302, "", "Location: " + request.target.substr(1) + "\r\n");
    });
    write_text(directory / "down",
               "HTTP/1.1 302 Found\r\nContent-Length: 0\r\nLocation: " + plain.url("/x") + "\r\n\r\n");
    const Certificate right = make_certificate(directory, "right", "IP:127.0.0.1");
    const TlsServer server(directory, right);
    REQUIRE(server.port() != 0);
    const Status status =
        get({.bearer_token = "abc", .ca_file = right.file}, server.url("127.0.0.1", "down")).status();
    CHECK(status.error_number == EPROTO);
    CHECK(plain.connections() == 0);
    CHECK(get({.ca_file = right.file}, plain.url("/" + server.url("127.0.0.1", "hello"))).ok());
}

TEST_CASE("HTTPS: what speaks no TLS is an error", "[cache][http]") {
    NEEDS_TLS("https of a server without TLS");
    const HttpServer plain([](const HttpReceived&, HttpConnection&) { return false; },
                           {.greet = [](HttpConnection& connection) {
                               connection.send("HTTP/1.1 400 No TLS here\r\n\r\n");
                               return true;
                           }});
    const TemporaryDirectory directory;
    const HttpAccess access{.ca_file = make_certificate(directory, "right", "IP:127.0.0.1").file};
    const Status status = get(access, "https://127.0.0.1:" + std::to_string(plain.port()) + "/x").status();
    INFO(status.to_string());
    CHECK(status.error_number == EPROTO);
    // A handshake that hangs ends, too.
    const HttpServer mute([](const HttpReceived&, HttpConnection&) { return false; },
                          {.greet = [](HttpConnection& connection) {
                              connection.hang();
                              return false;
                          }});
    const auto client = open_curl(access);
    REQUIRE(client.ok());
    const auto start = std::chrono::steady_clock::now();
    CHECK((*client)
              ->perform({.url = "https://127.0.0.1:" + std::to_string(mute.port()) + "/x", .timeout = 200ms})
              .status()
              .error_number == ETIMEDOUT);
    CHECK(std::chrono::steady_clock::now() - start < 600ms);
}

}  // namespace attnsmith::cache
