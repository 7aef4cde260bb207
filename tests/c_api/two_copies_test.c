/* Two copies of the library in one process: the functions of the second call its own, though those of the
 * first have the same names and were loaded before.
 *
 *   attnsmith-c-two_copies LIBRARY COPY
 *
 * COPY is another file with the same content. */
#define _GNU_SOURCE /* dladdr */
#include <attnsmith/attnsmith.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <string.h>

#include "check.h"

enum { MOST_FRAMES = 100 };

struct frames {
    const char *first, *second;     /* files of the two copies */
    int lines, of_first, of_second; /* of the log; and frames within the copies while a line is logged */
};

static void* open_library(const char* file, int flags) {
    void* const library = dlopen(file, RTLD_NOW | flags);
    if (library == NULL) fprintf(stderr, "%s\n", dlerror());
    CHECK(library != NULL);
    return library;
}

/* A function of a library, as the object that ISO C has no way to make of it but by its bytes. */
static void find(void* library, const char* name, void* function) {
    void* const address = dlsym(library, name);
    CHECK(address != NULL);
    memcpy(function, &address, sizeof address);
}

static void count_frames(void* user, int32_t level, const char* line) {
    struct frames* const frames = user;
    void* addresses[MOST_FRAMES];
    const int count = backtrace(addresses, MOST_FRAMES);
    (void)level, (void)line;
    ++frames->lines;
    for (int i = 0; i < count; ++i) {
        Dl_info info;
        if (dladdr(addresses[i], &info) == 0 || info.dli_fname == NULL) continue;
        frames->of_first += strcmp(info.dli_fname, frames->first) == 0;
        frames->of_second += strcmp(info.dli_fname, frames->second) == 0;
    }
}

int main(int count, char** arguments) {
    CHECK(count == 3);
    struct frames frames = {.first = arguments[1], .second = arguments[2]};
    void* const first = open_library(frames.first, RTLD_GLOBAL);
    void* const second = open_library(frames.second, RTLD_LOCAL);
    CHECK(first != second);

    attnsmith_code (*create)(const attnsmith_runtime_options*, attnsmith_runtime**, attnsmith_error**);
    attnsmith_code (*devices)(attnsmith_runtime*, char**, attnsmith_error**);
    void (*release)(attnsmith_runtime*);
    void (*free_text)(char*);
    find(second, "attnsmith_runtime_create", &create);
    find(second, "attnsmith_devices_json", &devices);
    find(second, "attnsmith_runtime_free", &release);
    find(second, "attnsmith_string_free", &free_text);
    const attnsmith_runtime_options options = {.size = sizeof options,
                                               .no_cache = 1,
                                               .driver_path = "/nowhere/libcuda.so",
                                               .log_level = ATTNSMITH_LOG_DEBUG,
                                               .log_line = count_frames,
                                               .log_user = &frames};
    attnsmith_runtime* runtime = NULL;
    char* json = NULL;
    CHECK(create(&options, &runtime, NULL) == ATTNSMITH_OK);
    (void)devices(runtime, &json, NULL); /* says why there are none */
    free_text(json);
    release(runtime);
    CHECK(frames.lines > 0);
    CHECK(frames.of_second > 0);
    CHECK(frames.of_first == 0);
    return 0;
}
