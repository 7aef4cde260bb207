#include "compiler/inside.hpp"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <ctime>

#include "attnsmith/error.hpp"

namespace attnsmith::compiler {
namespace {

constinit std::atomic<int> threads_inside{0};
constinit std::atomic<bool> is_lost{false};    // no thread of this process can use NVRTC
constinit std::atomic<bool> is_ending{false};  // none but the one in exit() may enter it
constinit thread_local int times_inside = 0;
constinit thread_local bool is_in_exit = false;

// A thread that calls fork is not inside.
[[maybe_unused]] const int fork_handler = ::pthread_atfork(nullptr, nullptr, [] {
    if (threads_inside.exchange(0) > 0) is_lost = true;
});

// In exit(). Whoever enters counts itself first and looks at is_ending then, so that one of the two sees the
// other. A thread whose signal handler calls exit() may be inside itself. Looks again and again: what a
// thread is woken by may be gone in a process that is ending.
void shut_and_wait() noexcept {
    is_in_exit = true;
    is_ending = true;
    const ::timespec pause{.tv_sec = 0, .tv_nsec = 1'000'000};
    while (threads_inside > times_inside) ::nanosleep(&pause, nullptr);
}

// exit() begins with the thread-local objects of its thread, and goes on with the handlers, last registered
// first. Those of a library that is just being opened are the last, whenever others were registered; so the
// wait must be the business of a thread-local object. Of the first thread: when that one alone ends, by
// pthread_exit(), glibc leaves its objects as they are, so they go in exit() and nowhere else.
struct WaitsInExit {
    ~WaitsInExit() {
        if (::gettid() == ::getpid()) shut_and_wait();
    }
    void make() noexcept {}  // by its first use
};
thread_local WaitsInExit waits_in_exit;

[[maybe_unused]] const int exit_handler = [] {
    wait_at_exit();
    return std::atexit(shut_and_wait);
}();

}  // namespace

void wait_at_exit() noexcept { waits_in_exit.make(); }

void wait_before_objects_of(const void* library) noexcept {
    // Opened again, it has its objects still, and they their handlers.
    static constinit std::atomic<const void*> last{nullptr};
    if (last.exchange(library) != library) (void)std::atexit(shut_and_wait);
}

InsideNvrtc::InsideNvrtc() {
    if (is_lost) {
        throw Error(
            "this process was forked while another thread of its parent was compiling (or opening NVRTC), so "
            "NVRTC cannot be used in it; prewarm the cache before forking, or start the process anew (spawn "
            "or exec in place of fork)");
    }
    ++times_inside;
    ++threads_inside;
    if (is_ending && !is_in_exit) {
        --threads_inside;
        --times_inside;
        throw Error(
            "this process is ending, so NVRTC is not used any more; wait for what was begun in the "
            "background before exit");
    }
}

InsideNvrtc::~InsideNvrtc() {
    --threads_inside;
    --times_inside;
}

}  // namespace attnsmith::compiler
