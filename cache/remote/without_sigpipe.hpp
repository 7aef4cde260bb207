#pragma once

#include <pthread.h>
#include <signal.h>

#include <ctime>

namespace attnsmith::cache {

// While it lives, writing to a connection that the server has closed sends this thread no SIGPIPE, which
// ends a program that does not expect it: libcurl before 7.88 lets OpenSSL use write(2).
class WithoutSigpipe {
  public:
    WithoutSigpipe() {
        ::sigemptyset(&sigpipe_);
        ::sigaddset(&sigpipe_, SIGPIPE);
        was_pending_ = is_pending();
        ::pthread_sigmask(SIG_BLOCK, &sigpipe_, &before_);
    }
    WithoutSigpipe(const WithoutSigpipe&) = delete;
    WithoutSigpipe& operator=(const WithoutSigpipe&) = delete;
    ~WithoutSigpipe() {
        // One that came before is the host program's.
        const ::timespec at_once{};
        if (!was_pending_ && is_pending()) ::sigtimedwait(&sigpipe_, nullptr, &at_once);
        ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    }

  private:
    static bool is_pending() {
        sigset_t pending;
        ::sigemptyset(&pending);
        ::sigpending(&pending);
        return ::sigismember(&pending, SIGPIPE) == 1;
    }

    sigset_t sigpipe_, before_;
    bool was_pending_;
};

}  // namespace attnsmith::cache
