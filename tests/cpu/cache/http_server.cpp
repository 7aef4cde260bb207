#include "cache/http_server.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <stdexcept>
#include <tuple>

namespace attnsmith::cache::testing {
namespace {

using namespace std::chrono_literals;

// A socket bound to a port of 127.0.0.1 that the system chose.
std::pair<int, int> bound_socket() {
    const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ::sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ::socklen_t size = sizeof address;
    auto* const any = reinterpret_cast<::sockaddr*>(&address);
    if (socket < 0 || ::bind(socket, any, size) != 0 || ::getsockname(socket, any, &size) != 0)
        throw std::runtime_error("cannot bind a socket to 127.0.0.1");
    return {socket, ntohs(address.sin_port)};
}

// Not whether the thread that serves it has noticed: that may take a while.
bool is_open_at_client(int socket) {
    char ignored;
    return ::recv(socket, &ignored, 1, MSG_PEEK | MSG_DONTWAIT) != 0;
}

}  // namespace

std::string HttpReceived::header(std::string_view name) const {
    for (const auto& [key, value] : headers)
        if (key.size() == name.size() && ::strncasecmp(key.data(), name.data(), name.size()) == 0)
            return value;
    return {};
}

bool HttpConnection::send(std::string_view bytes) {
    while (!bytes.empty()) {
        const ::ssize_t sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
        if (sent <= 0) return false;
        bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
    return true;
}

bool HttpConnection::reply(int status, std::string_view body, std::string_view headers) {
    std::string response = "HTTP/1.1 " + std::to_string(status) +
                           " As Told\r\nContent-Length: " + std::to_string(body.size()) + "\r\n";
    response.append(headers).append("\r\n").append(body);
    return send(response);
}

bool HttpConnection::sleep_for(std::chrono::milliseconds time) {
    std::unique_lock lock(server_.mutex_);
    return !server_.ending_changed_.wait_for(lock, time, [this] { return server_.ending_; });
}

void HttpConnection::send_for_ever(std::string_view bytes, std::chrono::milliseconds pause) {
    while (send(bytes) && sleep_for(pause)) {
    }
}

void HttpConnection::hang() {
    while (sleep_for(1h)) {
    }
}

bool HttpConnection::read_more() {
    std::array<char, 16384> part;
    const ::ssize_t size = ::recv(socket_, part.data(), part.size(), 0);
    if (size > 0) unread_.append(part.data(), static_cast<std::size_t>(size));
    return size > 0;
}

bool HttpConnection::read_line(std::string& line) {
    std::size_t end = 0;
    while ((end = unread_.find("\r\n")) == unread_.npos)
        if (!read_more()) return false;
    line = unread_.substr(0, end);
    unread_.erase(0, end + 2);
    return true;
}

bool HttpConnection::read_request(HttpReceived& request) {
    std::string line;
    if (!read_line(line)) return false;
    const std::size_t first = line.find(' ');
    request.method = line.substr(0, first);
    request.target = line.substr(first + 1, line.rfind(' ') - first - 1);
    request.connection = number_;
    while (read_line(line) && !line.empty()) {
        const std::size_t colon = line.find(':');
        const std::size_t value = line.find_first_not_of(' ', colon + 1);
        request.headers.emplace_back(line.substr(0, colon), value == line.npos ? "" : line.substr(value));
    }
    const std::string length = request.header("Content-Length");
    const std::size_t size = length.empty() ? 0 : std::stoul(length);
    while (unread_.size() < size)
        if (!read_more()) return false;
    request.body = unread_.substr(0, size);
    unread_.erase(0, size);
    return line.empty();
}

HttpServer::HttpServer(Answer answer, Options options)
    : answer_(std::move(answer)), options_(std::move(options)) {
    std::tie(listening_, port_) = bound_socket();
    if (::listen(listening_, options_.accepts ? 128 : 0) != 0) throw std::runtime_error("cannot listen");
    if (options_.accepts) acceptor_ = std::thread([this] { accept_all(); });
}

HttpServer::~HttpServer() {
    {
        const std::lock_guard lock(mutex_);
        ending_ = true;
        for (const int socket : open_) ::shutdown(socket, SHUT_RDWR);
    }
    ending_changed_.notify_all();
    if (acceptor_.joinable()) acceptor_.join();
    for (std::thread& thread : threads_) thread.join();
    ::close(listening_);
}

std::string HttpServer::url(std::string_view path) const {
    return "http://127.0.0.1:" + std::to_string(port_) + std::string(path);
}

std::vector<HttpReceived> HttpServer::requests() const {
    const std::lock_guard lock(mutex_);
    return requests_;
}

int HttpServer::connections() const {
    const std::lock_guard lock(mutex_);
    return accepted_;
}

int HttpServer::open_connections() const {
    const std::lock_guard lock(mutex_);
    return count_open();
}

int HttpServer::count_open() const {
    return static_cast<int>(std::count_if(open_.begin(), open_.end(), is_open_at_client));
}

int HttpServer::most_open_connections() const {
    const std::lock_guard lock(mutex_);
    return most_open_;
}

void HttpServer::accept_all() {
    for (;;) {
        ::pollfd waiting{listening_, POLLIN, 0};
        const int ready = ::poll(&waiting, 1, 20);
        const std::lock_guard lock(mutex_);
        if (ending_) return;
        if (ready <= 0) continue;
        const int socket = ::accept4(listening_, nullptr, nullptr, SOCK_CLOEXEC);
        if (socket < 0) continue;
        open_.push_back(socket);
        most_open_ = std::max(most_open_, count_open());
        threads_.emplace_back([this, socket, number = ++accepted_] { serve(socket, number); });
    }
}

void HttpServer::serve(int socket, int number) {
    HttpConnection connection(*this, socket, number);
    bool goes_on = !options_.greet || options_.greet(connection);
    for (HttpReceived request; goes_on && connection.read_request(request); request = {}) {
        {
            const std::lock_guard lock(mutex_);
            requests_.push_back(request);
        }
        goes_on = answer_(request, connection);
    }
    const std::lock_guard lock(mutex_);
    std::erase(open_, socket);
    ::close(socket);
}

int unused_port() {
    const auto [socket, port] = bound_socket();
    ::close(socket);
    return port;
}

}  // namespace attnsmith::cache::testing
