// Kernels that are prepared in the background, on threads that belong to the Runtime and not to the futures
// that wait for them. In a child made by fork, which does not have the threads, a future holds an Error from
// the start where its kernel was not there yet; whoever drops it, or the Runtime, waits for nobody.
#pragma once

#include <functional>
#include <future>
#include <list>
#include <memory>
#include <mutex>
#include <thread>

#include "attnsmith/runtime.hpp"

namespace attnsmith::engine {

// Thread-safe. Of one process: for cache::PerProcess.
class Background {
  public:
    Background() = default;
    Background(const Background&) = delete;
    Background& operator=(const Background&) = delete;
    // Waits for all that was started.
    ~Background();

    // What `prepare` gives or throws. It runs on a thread of its own; on this one, before start() returns,
    // where none is to be had.
    std::shared_future<Kernel> start(std::function<Kernel()> prepare);

    class Unfinished;

  private:
    struct Worker {
        std::thread thread;
        bool is_done = false;
    };

    struct Pending;

    static void run(Pending& pending) noexcept;
    // Whether there is a thread to be had.
    bool start_thread(const std::shared_ptr<Pending>& pending);
    void join_done();

    std::mutex mutex_;  // of all below
    std::list<Worker> workers_;
};

}  // namespace attnsmith::engine
