#include "cli/interrupt.hpp"

#include <pthread.h>

#include "cli/output.hpp"

namespace attnsmith::cli {
namespace {

// Wakes the thread in sigwait() when there is nothing more to watch.
constexpr int kWakeUp = SIGUSR1;

bool is_ignored(int signal) {
    struct sigaction action {};
    return ::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

}  // namespace

InterruptWatch::InterruptWatch(std::string message) : message_(std::move(message)) {
    sigemptyset(&signals_);
    for (const int signal : {SIGINT, SIGTERM}) {
        if (!is_ignored(signal)) sigaddset(&signals_, signal);
    }
    sigaddset(&signals_, kWakeUp);
    pthread_sigmask(SIG_BLOCK, &signals_, &previous_mask_);
    thread_ = std::thread([this] { watch(); });
}

InterruptWatch::~InterruptWatch() {
    done_ = true;
    pthread_kill(thread_.native_handle(), kWakeUp);
    thread_.join();
    pthread_sigmask(SIG_SETMASK, &previous_mask_, nullptr);
}

void InterruptWatch::watch() {
    for (;;) {
        int signal = 0;
        if (sigwait(&signals_, &signal) != 0) continue;
        if (done_) return;
        if (signal == kWakeUp) continue;
        if (stop_.request_stop()) {
            print_note(message_);
            continue;
        }
        // Asked twice: end as if nobody had watched.
        ::signal(signal, SIG_DFL);
        sigset_t one;
        sigemptyset(&one);
        sigaddset(&one, signal);
        pthread_sigmask(SIG_UNBLOCK, &one, nullptr);
        raise(signal);
    }
}

}  // namespace attnsmith::cli
