/* A library that takes signals as NVRTC's front end does, and gives them back. */
#include <signal.h>
#include <unistd.h>

typedef void (*handler)(int);

static handler was_interrupt, was_terminate, was_too_large;

static void end(int signal) {
    (void)signal;
    _exit(4);
}

void take_signals(void) {
    was_interrupt = signal(SIGINT, SIG_IGN);
    if (was_interrupt != SIG_IGN) signal(SIGINT, end);
    was_terminate = signal(SIGTERM, end);
    was_too_large = signal(SIGXFSZ, SIG_IGN);
}

void give_signals_back(void) {
    signal(SIGINT, was_interrupt);
    signal(SIGTERM, was_terminate);
    signal(SIGXFSZ, was_too_large);
}

void take_another(void) { signal(SIGUSR1, end); }
