// A loop over all cores, for the reference.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace attnsmith::check {

inline int thread_count(int requested) {
    return requested > 0 ? requested : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

// Calls body(index) for each index in [0, count), in no order, from at most `threads` threads (0: all cores).
// The first exception is thrown again here.
template <typename Body>
void parallel_for(std::int64_t count, int threads, const Body& body) {
    std::atomic<std::int64_t> next{0};
    std::exception_ptr failure;
    std::mutex failure_mutex;
    const auto work = [&] {
        try {
            for (std::int64_t i = next++; i < count; i = next++) body(i);
        } catch (...) {
            const std::scoped_lock lock(failure_mutex);
            if (!failure) failure = std::current_exception();
            next = count;
        }
    };
    const auto helpers = std::min<std::int64_t>(thread_count(threads), count) - 1;
    std::vector<std::jthread> pool;
    try {
        for (std::int64_t i = 0; i < helpers; ++i) pool.emplace_back(work);
    } catch (const std::system_error&) {
        // No more threads to be had: those that there are do it.
    }
    work();
    pool.clear();
    if (failure) std::rethrow_exception(failure);
}

}  // namespace attnsmith::check
