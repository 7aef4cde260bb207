#include "cache/remote/connections.hpp"

#include <algorithm>
#include <new>
#include <tuple>

#include "cache/files/process_wide.hpp"
#include "cache/remote/without_sigpipe.hpp"

namespace attnsmith::cache {
namespace {

constinit ProcessWide<Connections> connections_of_process;

void close_connection(Connection& connection) {
    if (connection.curl == nullptr) return;
    const WithoutSigpipe guard;
    if (connection.easy != nullptr) connection.curl->easy_cleanup(connection.easy);
    if (connection.multi != nullptr) connection.curl->multi_cleanup(connection.multi);
    connection.curl = nullptr;
    connection.easy = nullptr;
    connection.multi = nullptr;
    connection.origin.clear();
}

void make_handles(Connection& connection, const CurlLibrary& curl) {
    connection.curl = &curl;
    if (connection.easy == nullptr) connection.easy = curl.easy_init();
    if (connection.multi == nullptr && (connection.multi = curl.multi_init()) != nullptr) {
        // The total too: without it the kept connection is closed only after a new one to elsewhere is made.
        for (const CurlMultiLong limit : {CurlMultiLong::max_connects, CurlMultiLong::max_total_connections})
            curl.multi_setopt(connection.multi, static_cast<int>(limit), 1L);
    }
    if (connection.easy == nullptr || connection.multi == nullptr) throw std::bad_alloc();
}

}  // namespace

Connections& Connections::of_this_process() { return connections_of_process.get(); }

bool Connections::any_free() const {
    return std::any_of(all_.begin(), all_.end(), [](const Connection& one) { return !one.taken; });
}

Connection* Connections::best_free(std::uint64_t client, std::string_view origin) {
    // Best what leads there already, then what nobody has used, then what was not used for longest.
    const auto rank = [&](const Connection& one) {
        const bool leads_there = one.curl != nullptr && one.client == client && one.origin == origin;
        return std::tuple(!leads_there, one.curl != nullptr, one.last_use);
    };
    Connection* best = nullptr;
    for (Connection& one : all_)
        if (!one.taken && (best == nullptr || rank(one) < rank(*best))) best = &one;
    return best;
}

Connections::Lease Connections::take(const CurlLibrary& curl, std::uint64_t client, std::string_view origin,
                                     Clock::time_point deadline, const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    if (!given_back_.wait_until(lock, stop, deadline, [this] { return any_free(); })) return {};
    Connection& connection = *best_free(client, origin);
    connection.taken = true;
    connection.last_use = ++uses_;
    lock.unlock();
    Lease lease(*this, connection);
    // No client ever runs on a connection that another one's certificate or user has opened.
    if (connection.client != client || connection.curl != &curl) close_connection(connection);
    connection.client = client;
    connection.origin = origin;
    make_handles(connection, curl);
    return lease;
}

void Connections::give_back(Connection& connection) {
    {
        const std::lock_guard lock(mutex_);
        connection.taken = false;
    }
    given_back_.notify_one();
}

void Connections::close_all_of(std::uint64_t client) {
    const std::lock_guard lock(mutex_);
    for (Connection& one : all_)
        if (!one.taken && one.client == client) close_connection(one);
}

}  // namespace attnsmith::cache
