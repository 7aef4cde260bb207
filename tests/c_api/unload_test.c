/* A program that opens the library, leaves work to it and closes it: the work goes on and nothing crashes,
 * nor does a later fork. Arguments: the library, and the stubs of the driver and of NVRTC. */
#define _POSIX_C_SOURCE 200809L

#include <attnsmith/attnsmith.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

static void sleep_ms(long milliseconds) {
    const struct timespec time = {milliseconds / 1000, milliseconds % 1000 * 1000000};
    nanosleep(&time, NULL);
}

/* ISO C has no cast from an object's pointer to a function's. */
#define FIND(function)                                               \
    do {                                                             \
        void* const symbol = dlsym(library, "attnsmith_" #function); \
        CHECK(symbol != NULL && sizeof symbol == sizeof function);   \
        memcpy(&function, &symbol, sizeof symbol);                   \
    } while (0)

int main(int count, char** arguments) {
    CHECK(count == 4);
    setenv("FAKE_NVRTC_MS", "300", 1);
    void* const library = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) fprintf(stderr, "%s\n", dlerror());
    CHECK(library != NULL);
    attnsmith_code (*runtime_create)(const attnsmith_runtime_options*, attnsmith_runtime**,
                                     attnsmith_error**);
    attnsmith_code (*prepare_async)(attnsmith_runtime*, const attnsmith_spec*, const attnsmith_sizes*,
                                    int32_t, attnsmith_pending**, attnsmith_error**);
    FIND(runtime_create);
    FIND(prepare_async);

    const attnsmith_runtime_options options = {.size = sizeof options,
                                               .no_cache = 1,
                                               .driver_path = arguments[2],
                                               .nvrtc_path = arguments[3],
                                               .log_level = ATTNSMITH_LOG_OFF};
    attnsmith_runtime* runtime = NULL;
    CHECK(runtime_create(&options, &runtime, NULL) == ATTNSMITH_OK);
    const attnsmith_spec spec = {
        .size = sizeof spec, .op = ATTNSMITH_OP_MERGE, .head_dim_vo = 64, .q_heads = 8};
    attnsmith_pending* pending = NULL;
    CHECK(prepare_async(runtime, &spec, NULL, 0, &pending, NULL) == ATTNSMITH_OK);
    sleep_ms(50);
    CHECK(dlclose(library) == 0);
    sleep_ms(600); /* the compile ends meanwhile */
    const pid_t child = fork();
    if (child == 0) _exit(0);
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    return 0;
}
