/* Plans a model's attentions, and builds all their kernels into a cache directory:
 * ../cpp/plan_and_prewarm.cpp in C, and more of what the C ABI says as JSON. Needs no GPU.
 *
 *   plan_and_prewarm CONFIG_JSON CACHE_DIRECTORY
 */
#include <string.h>
#include <time.h>

#include "example.h"

static attnsmith_error* error;

/* The text of a file, to be given to free(). Ends the program where it cannot be read. */
static char* read_file(const char* path) {
    FILE* const file = fopen(path, "rb");
    char* text = NULL;
    size_t length = 0, room = 0;
    while (file != NULL) {
        if (length + 1 >= room) text = realloc(text, room = 2 * room + 4096);
        if (text == NULL) abort();
        const size_t read = fread(text + length, 1, room - length - 1, file);
        length += read;
        if (read == 0) break;
    }
    if (file == NULL || ferror(file)) {
        fprintf(stderr, "%s: cannot be read\n", path);
        exit(1);
    }
    fclose(file);
    text[length] = '\0';
    return text;
}

/* Prints a JSON text of the library's, and frees it. */
static void print(const char* what, char* json) {
    printf("%s: %.300s%s\n", what, json, strlen(json) > 300 ? " ..." : "");
    attnsmith_string_free(json);
}

/* One request, from JSON and back, and its plan for an H100. */
static void plan_one(attnsmith_runtime* runtime) {
    attnsmith_spec spec = {.size = sizeof spec};
    attnsmith_sizes sizes = {.size = sizeof sizes};
    const char* const request =
        "{\"head_dim\": 128, \"q_heads\": 32, \"kv_heads\": 8, \"mask\": \"causal\", \"q_len\": 4096, "
        "\"kv_len\": 4096}";
    char* json = NULL;
    check(attnsmith_parse_request(request, &spec, &sizes, &error), &error);
    spec.lse = 1; /* a spec is a plain struct */
    check(attnsmith_request_json(&spec, &sizes, &json, &error), &error);
    print("with all defaults", json);
    check(attnsmith_plan_json(runtime, &spec, &sizes, 90, &json, &error), &error);
    print("plan", json);
}

/* What a model, a request with several words and a recorded file need. A program with a JSON parser takes the
 * specs out of these: each "request" of "attentions" is one. */
static void cover(const char* config) {
    char* json = NULL;
    check(attnsmith_model_json(config, "{\"kv\": \"paged\", \"page_size\": 16}", &json, &error), &error);
    print("model", json);
    check(attnsmith_model_coverage_json(config, "{\"kv\": [\"paged\", \"dense\"]}", &json, &error), &error);
    print("model, paged or dense", json);
    check(attnsmith_request_coverage_json(
              "{\"head_dim\": 64, \"q_heads\": 8, \"dtype\": [\"bf16\", \"fp16\"]}", &json, &error),
          &error);
    print("both dtypes", json);
    const char* const recorded =
        "{\"schema\": \"attnsmith.recorded/1\", \"request\": {\"head_dim\": 64, \"q_heads\": 8}}\n";
    check(attnsmith_recorded_coverage_json(recorded, "staging.jsonl", &json, &error), &error);
    print("recorded", json);
}

static int32_t on_progress(void* user, const char* kernel, int32_t done, int32_t total) {
    (void)user;
    printf("%d of %d: %s\n", done, total, kernel);
    return 0; /* go on */
}

static int32_t on_waiting(void* user, const char* kernel) {
    (void)user;
    printf("another process compiles %s\n", kernel);
    return 0; /* go on */
}

/* Stops what takes longer than the time that is left. */
static int32_t is_late(void* deadline) { return time(NULL) > *(time_t*)deadline; }

static void prewarm(attnsmith_runtime* runtime) {
    attnsmith_spec decode = {.size = sizeof decode, .head_dim_qk = 128, .q_heads = 32, .kv_heads = 8};
    decode.kv = ATTNSMITH_KV_PAGED, decode.page_size = 16;
    const attnsmith_spec merge = {
        .size = sizeof merge, .op = ATTNSMITH_OP_MERGE, .head_dim_vo = 128, .q_heads = 32};
    const attnsmith_spec* const specs[] = {&decode, &merge};
    const int32_t sms[] = {90};
    time_t deadline = time(NULL) + 600;
    const attnsmith_prewarm_options options = {.size = sizeof options,
                                               .progress = on_progress,
                                               .waiting = on_waiting,
                                               .should_stop = is_late,
                                               .stop_user = &deadline};
    char* report = NULL;
    check(attnsmith_prewarm(runtime, specs, 2, sms, 1, &options, &report, &error), &error);
    print("prewarmed", report);
}

/* What is in the directory, and whether it is sound; then no more than 100 MB of it are kept. */
static void tend(attnsmith_runtime* runtime) {
    const char* const operations[][2] = {
        {"stat", NULL}, {"verify", NULL}, {"gc", "{\"max_bytes\": 100000000}"}};
    for (size_t i = 0; i < sizeof operations / sizeof *operations; ++i) {
        char* json = NULL;
        check(attnsmith_cache(runtime, operations[i][0], operations[i][1], &json, &error), &error);
        print(operations[i][0], json);
    }
}

int main(int count, char** arguments) {
    if (count != 3) return fprintf(stderr, "usage: %s CONFIG_JSON CACHE_DIRECTORY\n", arguments[0]), 2;
    char* const config = read_file(arguments[1]);
    const char* const directories[] = {arguments[2]};
    const attnsmith_runtime_options options = {
        .size = sizeof options, .cache_dirs = directories, .cache_dir_count = 1};
    attnsmith_runtime* runtime = NULL;
    check(attnsmith_runtime_create(&options, &runtime, &error), &error);
    plan_one(runtime);
    cover(config);
    prewarm(runtime);
    tend(runtime);
    attnsmith_runtime_free(runtime);
    free(config);
    return 0;
}
