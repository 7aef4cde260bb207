#include "cli/program/interrupt.hpp"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <system_error>

#include "cli/program/output.hpp"

namespace attnsmith::cli {
namespace {

// Wakes the thread that waits for signals when there is nothing more to watch.
constexpr int kWakeUp = SIGUSR1;
constexpr int kTimeIsUp = 0;

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
    try {
        thread_ = std::thread([this] {
            started_.count_down();
            watch();
        });
        started_.wait();
    } catch (const std::system_error&) {
        pthread_sigmask(SIG_SETMASK, &previous_mask_, nullptr);
    }
}

InterruptWatch::~InterruptWatch() {
    if (!thread_.joinable()) return;
    done_ = true;
    pthread_kill(thread_.native_handle(), kWakeUp);
    thread_.join();
    pthread_sigmask(SIG_SETMASK, &previous_mask_, nullptr);
}

void InterruptWatch::watch() {
    Clock::time_point deadline = Clock::time_point::max();
    for (;;) {
        const int signal = wait_for_signal(deadline);
        if (done_) return;
        if (signal == kWakeUp) continue;
        if (signal == kTimeIsUp) end_by(SIGTERM);
        if (interrupted()) end_by(signal);
        signal_ = signal;
        stop_.request_stop();
        if (signal == SIGTERM) deadline = Clock::now() + kTerminationGrace;
        print_note(message_);
    }
}

int InterruptWatch::wait_for_signal(Clock::time_point deadline) const {
    for (;;) {
        int signal = 0;
        if (deadline == Clock::time_point::max()) {
            if (sigwait(&signals_, &signal) == 0) return signal;
            continue;
        }
        const auto left = std::max(deadline - Clock::now(), Clock::duration::zero());
        const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(left);
        const timespec time{.tv_sec = seconds.count(), .tv_nsec = (left - seconds).count()};
        signal = sigtimedwait(&signals_, nullptr, &time);
        if (signal > 0) return signal;
        if (Clock::now() >= deadline) return kTimeIsUp;
    }
}

// As if nobody had watched.
void InterruptWatch::end_by(int signal) const {
    ::signal(signal, SIG_DFL);
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, signal);
    pthread_sigmask(SIG_UNBLOCK, &one, nullptr);
    raise(signal);
    ::_exit(128 + signal);  // the first process of a container is not ended by its own signals
}

}  // namespace attnsmith::cli
