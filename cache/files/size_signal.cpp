#include "cache/files/size_signal.hpp"

#include <cerrno>
#include <ctime>

namespace attnsmith::cache {
namespace {

::sigset_t size_signal() noexcept {
    ::sigset_t set;
    ::sigemptyset(&set);
    ::sigaddset(&set, SIGXFSZ);
    return set;
}

}  // namespace

SizeSignalHeld::SizeSignalHeld() noexcept {
    const int kept = errno;
    ::sigset_t waiting;
    // Where one waits the host has it blocked, and a second one would be lost in the first.
    if (::sigpending(&waiting) == 0 && ::sigismember(&waiting, SIGXFSZ) == 0) {
        const ::sigset_t held = size_signal();
        is_held_ = ::pthread_sigmask(SIG_BLOCK, &held, &before_) == 0;
    }
    errno = kept;
}

SizeSignalHeld::~SizeSignalHeld() {
    if (!is_held_) return;
    const int kept = errno;
    const ::sigset_t held = size_signal();
    const ::timespec at_once{};
    while (::sigtimedwait(&held, nullptr, &at_once) < 0 && errno == EINTR) {
    }
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    errno = kept;
}

}  // namespace attnsmith::cache
