/* The library that is loaded, a runtime with options, and errors as a program reads them. Needs no GPU: it
 * says what it finds.
 *
 *   errors_and_options CACHE_DIRECTORY
 */
#include "example.h"

/* Takes a line of the log. A service would hand it to its own log. */
static void log_line(void* user, int32_t level, const char* line) {
    fprintf(user, "%s %s\n", level <= ATTNSMITH_LOG_WARN ? "!" : "-", line);
}

/* What a program does with an error: a code for the kind, and for some kinds what is wrong. The details have
 * all that is known, as JSON. */
static void report(attnsmith_error* error) {
    switch (attnsmith_error_code(error)) {
        case ATTNSMITH_CODE_INVALID_REQUEST:
            printf("the field %s is wrong\n", attnsmith_error_field(error));
            break;
        case ATTNSMITH_CODE_DRIVER_ERROR:
            printf("the driver gave %d\n", attnsmith_error_driver_code(error));
            break;
        default:
            printf("an error of code %d\n", attnsmith_error_code(error));
            break;
    }
    printf("%s\n%s\n", attnsmith_error_message(error), attnsmith_error_details(error));
    attnsmith_error_free(error);
}

int main(int count, char** arguments) {
    if (count != 2) return fprintf(stderr, "usage: %s CACHE_DIRECTORY\n", arguments[0]), 2;
    /* A program that opens the library by dlopen() has to ask this; one that is linked may. */
    if (attnsmith_abi_version() != ATTNSMITH_ABI_VERSION) return fprintf(stderr, "another ABI\n"), 1;
    printf("attnsmith %s, headers of %s\n", attnsmith_version(), ATTNSMITH_VERSION);
    if (attnsmith_has_feature("op:top_k") == 1) printf("it has top_k, of %s\n", attnsmith_features());

    attnsmith_error* error = NULL;
    attnsmith_runtime* runtime = NULL;
    const char* const directories[] = {arguments[1]};
    attnsmith_runtime_options options = {.size = sizeof options,
                                         .cache_dirs = directories,
                                         .cache_dir_count = 1,
                                         .cache_max_bytes = (int64_t)256 << 20,
                                         .compile_threads = -1, /* a mistake */
                                         .log_level = ATTNSMITH_LOG_INFO,
                                         .log_line = log_line,
                                         .log_user = stdout};
    if (attnsmith_runtime_create(&options, &runtime, &error) != ATTNSMITH_OK) report(error);
    options.compile_threads = 2;
    check(attnsmith_runtime_create(&options, &runtime, &error), &error);

    char* devices = NULL;
    check(attnsmith_devices_json(runtime, &devices, &error), &error);
    printf("GPUs: %s\n", devices);
    attnsmith_string_free(devices);

    const attnsmith_spec spec = {.size = sizeof spec, .head_dim_qk = 64, .q_heads = 8};
    const int32_t device = 1000; /* there is no such GPU, or no GPU at all */
    attnsmith_kernel* kernel = NULL;
    if (attnsmith_prepare(runtime, &spec, NULL, device, &kernel, &error) != ATTNSMITH_OK) report(error);
    attnsmith_kernel_free(kernel); /* takes NULL */
    attnsmith_runtime_free(runtime);
    return 0;
}
