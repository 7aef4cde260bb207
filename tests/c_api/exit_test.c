/* Programs that end while kernels are prepared in the background: each is a child that loads nothing before.
 * Arguments: the stubs of the driver and of NVRTC, and how many children open the true NVRTC, where there is
 * one. */
#define _GNU_SOURCE

#include <attnsmith/attnsmith.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

enum { PENDING = 5, MOST_DELAY_MS = 20 };

static char gate[] =
    "/tmp/attnsmith-exit-XXXXXX";   /* while it is there, opening the stub of NVRTC does not end */
static const char* is_open_in_exit; /* who found, in the end of a process, that it is gone */
static attnsmith_runtime* runtime;
static attnsmith_pending* pending[PENDING];

static void sleep_ms(long milliseconds) {
    const struct timespec time = {milliseconds / 1000, milliseconds % 1000 * 1000000};
    nanosleep(&time, NULL);
}

static void prepare_all(const char* driver, const char* nvrtc) {
    const attnsmith_runtime_options options = {.size = sizeof options,
                                               .no_cache = 1,
                                               .driver_path = driver,
                                               .nvrtc_path = nvrtc,
                                               .log_level = ATTNSMITH_LOG_OFF,
                                               .compile_threads = 2};
    CHECK(attnsmith_runtime_create(&options, &runtime, NULL) == ATTNSMITH_OK);
    for (int i = 0; i < PENDING; ++i) {
        const attnsmith_spec spec = {
            .size = sizeof spec, .op = ATTNSMITH_OP_MERGE, .head_dim_vo = 8 * (i + 1), .q_heads = 1};
        CHECK(attnsmith_prepare_async(runtime, &spec, NULL, 0, &pending[i], NULL) == ATTNSMITH_OK);
    }
}

/* Whether it fails with a message that has these words. */
static int fails_with(const attnsmith_pending* one, const char* words) {
    attnsmith_kernel* kernel = NULL;
    attnsmith_error* error = NULL;
    const int fails = attnsmith_pending_kernel(one, &kernel, &error) == ATTNSMITH_CODE_FAILED &&
                      strstr(attnsmith_error_message(error), words) != NULL;
    attnsmith_error_free(error);
    return fails;
}

static void check_that_it_is_open(void) {
    if (access(gate, F_OK) == 0) _exit(2);
    for (int i = 0; i < PENDING; ++i) {
        if (!fails_with(pending[i], "process is ending")) _exit(3);
    }
}

__attribute__((destructor)) static void end(void) {
    if (is_open_in_exit != NULL && access(gate, F_OK) == 0) _exit(4);
}

static void* open_gate(void* unused) {
    sleep_ms(100);
    unlink(gate);
    return unused;
}

static void* call_exit(void* unused) {
    exit(0);
    return unused;
}

/* Opens the stub of NVRTC for a while, and goes on meanwhile. */
static void start_opening(char** arguments) {
    char reached[sizeof gate + 16];
    snprintf(reached, sizeof reached, "%s.reached", gate);
    close(open(gate, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    setenv("FAKE_NVRTC_BLOCK_OPEN", gate, 1);
    prepare_all(arguments[1], arguments[2]);
    while (access(reached, F_OK) != 0) sleep_ms(1);
    unlink(reached);
    pthread_t opener;
    CHECK(pthread_create(&opener, NULL, open_gate, NULL) == 0);
}

static void end_while_opening(char** arguments, int delay_ms) {
    (void)delay_ms;
    CHECK(atexit(check_that_it_is_open) == 0);
    start_opening(arguments);
    exit(0);
}

static void end_by_another_thread(char** arguments, int delay_ms) {
    (void)delay_ms;
    is_open_in_exit = "another thread";
    start_opening(arguments);
    pthread_t other;
    CHECK(pthread_create(&other, NULL, call_exit, NULL) == 0);
    for (;;) sleep_ms(1000);
}

static void end_with_true_nvrtc(char** arguments, int delay_ms) {
    prepare_all(arguments[1], NULL);
    sleep_ms(delay_ms);
    exit(0);
}

/* A child of that process frees what its parent is preparing, and ends as any program does. */
static void fork_while_opening(char** arguments, int frees) {
    start_opening(arguments);
    /* A thread that is starting may hold a lock of AddressSanitizer's allocator, which a child never gets. */
    sleep_ms(30);
    const pid_t child = fork();
    if (child == 0) {
        alarm(60);
        for (int i = 0; i < PENDING; ++i)
            CHECK(attnsmith_pending_ready(pending[i]) == 1 &&
                  fails_with(pending[i], "process was forked while"));
        for (int i = 0; frees && i < PENDING; ++i) attnsmith_pending_free(pending[i]);
        if (frees) attnsmith_runtime_free(runtime);
        exit(0);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    for (int i = 0; i < PENDING; ++i) {
        attnsmith_kernel* kernel = NULL;
        CHECK(attnsmith_pending_kernel(pending[i], &kernel, NULL) == ATTNSMITH_OK);
        attnsmith_kernel_free(kernel);
        attnsmith_pending_free(pending[i]);
    }
    attnsmith_runtime_free(runtime);
    exit(0);
}

static void run(const char* name, void (*work)(char**, int), char** arguments, int number) {
    const pid_t child = fork();
    if (child == 0) {
        alarm(120);
        work(arguments, number);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child);
    if (status != 0)
        fprintf(stderr, "%s (%d): %s %d\n", name, number, WIFEXITED(status) ? "exit" : "signal",
                WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
    CHECK(status == 0);
}

int main(int count, char** arguments) {
    CHECK(count == 4);
    const int file = mkstemp(gate);
    CHECK(file >= 0 && close(file) == 0);
    run("the end while NVRTC is opened", end_while_opening, arguments, 0);
    run("another thread ends it while NVRTC is opened", end_by_another_thread, arguments, 0);
    for (int frees = 0; frees <= 1; ++frees)
        run("a child of the process", fork_while_opening, arguments, frees);
    for (int i = 0; i < atoi(arguments[3]); ++i)
        run("the end with NVRTC", end_with_true_nvrtc, arguments, i % (MOST_DELAY_MS + 1));
    return 0;
}
