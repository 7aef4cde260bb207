// The connections of this process, at most HttpClient::kMaxConnections for all clients together. Internal to
// cache/.
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>

#include "cache/remote/curl_library.hpp"
#include "cache/remote/http.hpp"

namespace attnsmith::cache {

// What one transfer at a time runs on: libcurl keeps its last connection in `multi`, and at most one. A
// multi handle each, since waiting in one of all threads' would need a thread of our own to drive it.
struct Connection {
    const CurlLibrary* curl = nullptr;  // null as long as nothing has run on it
    CurlEasy* easy = nullptr;
    CurlMulti* multi = nullptr;
    std::uint64_t client = 0;  // whose it was last, who alone uses it again as it is
    std::string origin;        // where it led to last
    std::uint64_t last_use = 0;
    bool taken = false;
};

// Thread-safe. A child made by fork has one of its own, and never touches its parent's, not even to close it:
// a TLS connection's end, said by the child, would end the parent's.
class Connections {
  public:
    using Clock = std::chrono::steady_clock;

    static Connections& of_this_process();

    Connections() = default;
    Connections(const Connections&) = delete;
    Connections& operator=(const Connections&) = delete;

    // Gives its connection back at the end.
    class [[nodiscard]] Lease {
      public:
        Lease() = default;
        Lease(Connections& connections, Connection& connection)
            : connections_(&connections), connection_(&connection) {}
        Lease(Lease&& other) noexcept
            : connections_(other.connections_), connection_(std::exchange(other.connection_, nullptr)) {}
        Lease& operator=(Lease&&) = delete;
        ~Lease() {
            if (connection_ != nullptr) connections_->give_back(*connection_);
        }

        bool held() const { return connection_ != nullptr; }
        Connection& operator*() const { return *connection_; }

      private:
        Connections* connections_ = nullptr;
        Connection* connection_ = nullptr;
    };

    // One that leads to `origin` already if there is any, for this client. Not held if none was free until
    // the deadline or the stop.
    Lease take(const CurlLibrary& curl, std::uint64_t client, std::string_view origin,
               Clock::time_point deadline, const std::stop_token& stop);

    // Closes what a client that goes has left open. None of it may be taken.
    void close_all_of(std::uint64_t client);

  private:
    // REQUIRES, of these two: mutex_ is held.
    Connection* best_free(std::uint64_t client, std::string_view origin);
    bool any_free() const;
    void give_back(Connection& connection);

    std::mutex mutex_;
    std::condition_variable_any given_back_;
    std::array<Connection, HttpClient::kMaxConnections> all_;
    std::uint64_t uses_ = 0;
};

}  // namespace attnsmith::cache
