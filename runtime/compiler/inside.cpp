#include "compiler/inside.hpp"

#include <pthread.h>

#include <atomic>

#include "attnsmith/error.hpp"

namespace attnsmith::compiler {
namespace {

constinit std::atomic<int> threads_inside{0};
constinit std::atomic<bool> is_lost{false};  // no thread of this process can use NVRTC

// A thread that calls fork is not inside.
[[maybe_unused]] const int fork_handler = ::pthread_atfork(nullptr, nullptr, [] {
    if (threads_inside.exchange(0) > 0) is_lost = true;
});

}  // namespace

InsideNvrtc::InsideNvrtc() {
    if (is_lost) {
        throw Error(
            "this process was forked while another thread of its parent was compiling (or opening NVRTC), so "
            "NVRTC cannot be used in it; prewarm the cache before forking, or start the process anew (spawn "
            "or exec in place of fork)");
    }
    ++threads_inside;
}

InsideNvrtc::~InsideNvrtc() { --threads_inside; }

}  // namespace attnsmith::compiler
