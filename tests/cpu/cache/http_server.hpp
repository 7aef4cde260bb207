// A small HTTP/1.1 server on 127.0.0.1, for tests of clients: it answers as it is told to, well or badly.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <list>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace attnsmith::cache::testing {

// A request as the server got it.
struct HttpReceived {
    std::string method;
    std::string target;  // "/path?query"
    std::vector<std::pair<std::string, std::string>> headers;
    std::string body;
    int connection = 0;  // counted from 1

    // The value of a header of that name, in any case; empty if there is none.
    std::string header(std::string_view name) const;
};

// A server's end of one connection. Used by one thread.
class HttpConnection {
  public:
    // False when the client has gone.
    bool send(std::string_view bytes);
    // A whole response with a Content-Length; `headers` are lines that end in \r\n.
    bool reply(int status, std::string_view body, std::string_view headers = {});
    // False, before the time is over, when the server ends.
    bool sleep_for(std::chrono::milliseconds time);
    // Sends the same again until the client goes or the server ends, with a pause after each.
    void send_for_ever(std::string_view bytes, std::chrono::milliseconds pause = {});
    // Until the server ends.
    void hang();

  private:
    friend class HttpServer;
    HttpConnection(class HttpServer& server, int socket, int number)
        : server_(server), socket_(socket), number_(number) {}

    // False when there is no whole request any more.
    bool read_request(HttpReceived& request);
    bool read_more();
    bool read_line(std::string& line);

    class HttpServer& server_;
    int socket_;
    int number_;
    std::string unread_;
};

// Thread-safe. A thread for each connection, all ended by the destructor.
class HttpServer {
  public:
    // Answers one request, on the thread of its connection. False: the connection is closed.
    using Answer = std::function<bool(const HttpReceived& request, HttpConnection& connection)>;
    // Before any request is read; false: the connection is closed.
    using Greet = std::function<bool(HttpConnection& connection)>;

    struct Options {
        Greet greet;
        bool accepts = true;  // false: connections stay in the system's queue, which is short
    };

    explicit HttpServer(Answer answer) : HttpServer(std::move(answer), Options()) {}
    HttpServer(Answer answer, Options options);
    HttpServer(const HttpServer&) = delete;
    HttpServer& operator=(const HttpServer&) = delete;
    ~HttpServer();

    int port() const { return port_; }
    // "http://127.0.0.1:port" and the path.
    std::string url(std::string_view path) const;

    std::vector<HttpReceived> requests() const;
    int connections() const;            // that were ever accepted
    int open_connections() const;       // that no end has closed
    int most_open_connections() const;  // at a time

  private:
    friend class HttpConnection;

    void accept_all();
    int count_open() const;  // REQUIRES: mutex_ is held
    void serve(int socket, int number);

    const Answer answer_;
    const Options options_;
    int listening_ = -1;
    int port_ = 0;

    mutable std::mutex mutex_;
    std::condition_variable ending_changed_;
    bool ending_ = false;
    std::vector<HttpReceived> requests_;
    std::vector<int> open_;  // sockets
    int accepted_ = 0;
    int most_open_ = 0;
    std::list<std::thread> threads_;  // of connections
    std::thread acceptor_;
};

// A port of 127.0.0.1 where nobody listens, most likely.
int unused_port();

}  // namespace attnsmith::cache::testing
