/* The C ABI without a GPU: what a build host, a planner or a binding's own tests use. One argument: the
 * folder of model configs. */
#define _POSIX_C_SOURCE 200809L

#include <attnsmith/attnsmith.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "check.h"

static attnsmith_error* error;
static const char* models;
static char folder[] = "/tmp/attnsmith-c-XXXXXX";

static int contains(const char* text, const char* part) { return strstr(text, part) != NULL; }

static void succeeds(attnsmith_code code) {
    if (code != ATTNSMITH_OK) fprintf(stderr, "%s\n", attnsmith_error_message(error));
    CHECK(code == ATTNSMITH_OK && error == NULL);
}

/* The call failed with this code, and its details say this. */
static void fails(attnsmith_code code, attnsmith_code expected, const char* detail) {
    CHECK(code == expected && error != NULL);
    CHECK(attnsmith_error_code(error) == expected);
    const char* const details = attnsmith_error_details(error);
    if (!contains(details, detail)) fprintf(stderr, "no %s in %s\n", detail, details);
    CHECK(contains(details, detail));
    CHECK(strlen(attnsmith_error_message(error)) > 0 && !contains(attnsmith_error_message(error), "\n"));
    attnsmith_error_free(error);
    error = NULL;
}

static void refused(attnsmith_code code, const char* field) {
    char detail[200];
    snprintf(detail, sizeof detail, "\"field\":\"%s\"", field);
    fails(code, ATTNSMITH_CODE_INVALID_REQUEST, detail);
}

static attnsmith_spec small_spec(void) {
    const attnsmith_spec spec = {.size = sizeof spec, .head_dim_qk = 64, .q_heads = 8, .kv_heads = 2};
    return spec;
}

static attnsmith_spec merge_spec(void) {
    const attnsmith_spec spec = {
        .size = sizeof spec, .op = ATTNSMITH_OP_MERGE, .head_dim_vo = 64, .q_heads = 8, .lse = 1};
    return spec;
}

static attnsmith_spec mla_spec(void) {
    const attnsmith_spec spec = {.size = sizeof spec,
                                 .op = ATTNSMITH_OP_MLA,
                                 .head_dim_ckv = 512,
                                 .head_dim_kpe = 64,
                                 .q_heads = 8,
                                 .scale = 0.125};
    return spec;
}

static void test_version(void) {
    CHECK(attnsmith_abi_version() == ATTNSMITH_ABI_VERSION);
    CHECK(strcmp(attnsmith_version(), ATTNSMITH_VERSION) == 0);
    CHECK(attnsmith_has_feature("op") == 0);
    CHECK(attnsmith_has_feature("") == 0);
    CHECK(attnsmith_has_feature("op:attention\",\"op:merge") == 0);
    CHECK(attnsmith_has_feature(NULL) == 0);
    const size_t bytes = strlen(attnsmith_features());
    CHECK(attnsmith_features()[0] == '[' && attnsmith_features()[bytes - 1] == ']');
}

/* An op is a feature exactly where a request of it is no unsupported one. */
static void check_ops(void) {
    const char* const names[] = {"op:attention", "op:mla", "op:merge", "op:append"};
    const attnsmith_spec specs[] = {small_spec(), mla_spec(), merge_spec(), small_spec()};
    for (int op = ATTNSMITH_OP_ATTENTION; op <= ATTNSMITH_OP_APPEND; ++op) {
        attnsmith_spec spec = specs[op];
        spec.op = op;
        char* json = NULL;
        const attnsmith_code code = attnsmith_request_json(&spec, NULL, &json, NULL);
        CHECK(code == ATTNSMITH_OK || code == ATTNSMITH_CODE_UNSUPPORTED);
        CHECK(attnsmith_has_feature(names[op]) == (code == ATTNSMITH_OK));
        attnsmith_string_free(json);
    }
}

/* The backends of all plans, over the SMs, are features. Gives how many different ones there are. */
static int count_backends(attnsmith_runtime* runtime) {
    static const char mark[] = "\"backend\": \"";
    const int sms[] = {80, 89, 90, 120};
    char seen[8][40] = {""};
    int count = 0;
    for (size_t i = 0; i < 2 * sizeof sms / sizeof *sms; ++i) {
        const attnsmith_spec spec = i % 2 == 0 ? small_spec() : merge_spec();
        const attnsmith_sizes sizes = {
            .size = sizeof sizes, .batch = 1, .q_len = 4096, .kv_len = i % 2 ? 1 : 4096};
        char* json = NULL;
        succeeds(attnsmith_plan_json(runtime, &spec, &sizes, sms[i / 2], &json, &error));
        for (const char* at = strstr(json, mark); at != NULL; at = strstr(at + 1, mark)) {
            char feature[40];
            snprintf(feature, sizeof feature, "backend:%.*s", (int)strcspn(at + sizeof mark - 1, "\""),
                     at + sizeof mark - 1);
            CHECK(attnsmith_has_feature(feature) == 1);
            int known = 0;
            while (known < count && strcmp(seen[known], feature) != 0) ++known;
            if (known == count) strcpy(seen[count++], feature);
        }
        attnsmith_string_free(json);
    }
    return count;
}

static int count_of(const char* text, const char* part) {
    int count = 0;
    for (const char* at = strstr(text, part); at != NULL; at = strstr(at + 1, part)) ++count;
    return count;
}

/* Features are what the library does: each is of a known kind, and each kind's are those that work. */
static void test_features(void) {
    const attnsmith_runtime_options options = {
        .size = sizeof options, .no_cache = 1, .log_level = ATTNSMITH_LOG_OFF};
    attnsmith_runtime* runtime = NULL;
    succeeds(attnsmith_runtime_create(&options, &runtime, &error));
    check_ops();
    CHECK(attnsmith_has_feature("backend:wgmma") == 1);
    CHECK(count_backends(runtime) == count_of(attnsmith_features(), "\"backend:"));
    attnsmith_runtime_free(runtime);

    /* What the cache says that it can do. */
    char cache[80];
    snprintf(cache, sizeof cache, "%s/features", folder);
    const char* const directories[] = {cache};
    const attnsmith_runtime_options cached = {.size = sizeof cached,
                                              .cache_dirs = directories,
                                              .cache_dir_count = 1,
                                              .log_level = ATTNSMITH_LOG_OFF};
    succeeds(attnsmith_runtime_create(&cached, &runtime, &error));
    char* json = NULL;
    CHECK(attnsmith_cache(runtime, "nothing", NULL, &json, &error) == ATTNSMITH_CODE_INVALID_REQUEST);
    int operations = 0;
    char accepted[400];
    const char* const details = strstr(attnsmith_error_details(error), "\"accepted\":\"");
    snprintf(accepted, sizeof accepted, "%s", details + sizeof "\"accepted\":\"" - 1);
    *strchr(accepted, '"') = '\0';
    for (char* word = strtok(accepted, ", "); word != NULL; word = strtok(NULL, ", ")) {
        char feature[60];
        if (strcmp(word, "or") == 0) continue;
        snprintf(feature, sizeof feature, "cache:%s", word);
        CHECK(attnsmith_has_feature(feature) == 1);
        ++operations;
    }
    attnsmith_error_free(error);
    error = NULL;
    CHECK(operations > 4 && operations == count_of(attnsmith_features(), "\"cache:"));
    attnsmith_runtime_free(runtime);
}

static void test_frees_take_null(void) {
    attnsmith_error_free(NULL);
    attnsmith_string_free(NULL);
    attnsmith_runtime_free(NULL);
    attnsmith_kernel_free(NULL);
    attnsmith_pending_free(NULL);
    attnsmith_call_free(NULL);
    attnsmith_buffer_free(NULL);
    CHECK(attnsmith_error_code(NULL) == ATTNSMITH_OK);
    CHECK(strcmp(attnsmith_error_message(NULL), "") == 0);
    CHECK(strcmp(attnsmith_error_details(NULL), "{}") == 0);
    CHECK(attnsmith_kernel_device(NULL) == -1);
    CHECK(attnsmith_pending_ready(NULL) == 1);
    CHECK(attnsmith_buffer_data(NULL) == NULL);
    CHECK(attnsmith_buffer_bytes(NULL) == 0);
}

static void test_parse_request(void) {
    const char* const request =
        "{\"op\": \"attention\", \"dtype\": \"fp16\", \"head_dim_qk\": 192, \"head_dim_vo\": 128, "
        "\"q_heads\": 16,"
        " \"kv_heads\": 4, \"mask\": \"causal\", \"window_left\": 127, \"scale\": 0.25, \"softcap\": 30,"
        " \"kv\": \"paged\", \"page_size\": 16, \"page_order\": \"HND\", \"index_dtype\": \"int64\","
        " \"alignment\": 8, \"o_dtype\": \"fp32\", \"sink\": true, \"lse\": true, \"batch\": 4, \"q_len\": "
        "7, \"kv_len\": 99}";
    attnsmith_spec spec = {.size = sizeof spec}, again = {.size = sizeof again};
    attnsmith_sizes sizes = {.size = sizeof sizes}, sizes_again = {.size = sizeof sizes_again};
    succeeds(attnsmith_parse_request(request, &spec, &sizes, &error));
    CHECK(spec.size == sizeof spec && spec.op == ATTNSMITH_OP_ATTENTION &&
          spec.dtype == ATTNSMITH_DTYPE_FP16);
    CHECK(spec.head_dim_qk == 192 && spec.head_dim_vo == 128 && spec.q_heads == 16 && spec.kv_heads == 4);
    CHECK(spec.mask == ATTNSMITH_MASK_CAUSAL && spec.has_window_left == 1 && spec.window_left == 127);
    CHECK(spec.has_window_right == 0 && spec.window_right == 0 && spec.scale == 0.25 && spec.softcap == 30);
    CHECK(spec.kv == ATTNSMITH_KV_PAGED && spec.page_size == 16 &&
          spec.page_order == ATTNSMITH_PAGE_ORDER_HND);
    CHECK(spec.index_dtype == ATTNSMITH_DTYPE_INT64 && spec.alignment == 8 &&
          spec.o_dtype == ATTNSMITH_DTYPE_FP32);
    CHECK(spec.alibi == 0 && spec.sink == 1 && spec.lse == 1);
    CHECK(spec.precision == ATTNSMITH_PRECISION_STANDARD &&
          spec.consistency == ATTNSMITH_CONSISTENCY_STANDARD);
    CHECK(sizes.size == sizeof sizes && sizes.batch == 4 && sizes.q_len == 7 && sizes.kv_len == 99);

    char* json = NULL;
    succeeds(attnsmith_request_json(&spec, &sizes, &json, &error));
    CHECK(contains(json, "\"kv_heads\":4"));
    succeeds(attnsmith_parse_request(json, &again, &sizes_again, &error));
    CHECK(memcmp(&spec, &again, sizeof spec) == 0 && memcmp(&sizes, &sizes_again, sizeof sizes) == 0);
    attnsmith_string_free(json);
}

static void test_keys_of_8_bits(void) {
    const int32_t dtypes[] = {ATTNSMITH_DTYPE_E4M3, ATTNSMITH_DTYPE_E5M2};
    const int32_t scales[] = {ATTNSMITH_KV_SCALE_NONE, ATTNSMITH_KV_SCALE_TENSOR, ATTNSMITH_KV_SCALE_HEAD,
                              ATTNSMITH_KV_SCALE_TOKEN_HEAD, ATTNSMITH_KV_SCALE_BLOCK128};
    for (size_t d = 0; d < 2; ++d) {
        for (size_t s = 0; s < sizeof scales / sizeof scales[0]; ++s) {
            attnsmith_spec spec = small_spec(), again = {.size = sizeof again};
            attnsmith_sizes sizes = {.size = sizeof sizes};
            spec.kv_dtype = dtypes[d], spec.kv_scale = scales[s];
            char* json = NULL;
            succeeds(attnsmith_request_json(&spec, NULL, &json, &error));
            succeeds(attnsmith_parse_request(json, &again, &sizes, &error));
            CHECK(again.kv_dtype == dtypes[d] && again.kv_scale == scales[s]);
            attnsmith_string_free(json);
        }
    }
    /* A struct of a header that had neither: what lies behind it is neither read nor lost in silence. */
    attnsmith_spec older = small_spec();
    attnsmith_sizes sizes = {.size = sizeof sizes};
    older.size = offsetof(attnsmith_spec, kv_dtype);
    older.kv_dtype = older.kv_scale = 77;
    char* json = NULL;
    succeeds(attnsmith_request_json(&older, NULL, &json, &error));
    CHECK(contains(json, "\"kv_dtype\":\"bf16\""));
    succeeds(attnsmith_parse_request(json, &older, &sizes, &error));
    CHECK(older.kv_dtype == 77 && older.kv_scale == 77);
    attnsmith_string_free(json);
    refused(attnsmith_parse_request("{\"head_dim\": 64, \"q_heads\": 8, \"kv_dtype\": \"e4m3\"}", &older,
                                    &sizes, &error),
            "spec.size");
}

/* As request_json writes it, read again, it is the same. */
static void round_trip(const attnsmith_spec* spec, const attnsmith_sizes* sizes) {
    attnsmith_spec again = {.size = sizeof again};
    attnsmith_sizes sizes_again = {.size = sizeof sizes_again};
    char* json = NULL;
    succeeds(attnsmith_request_json(spec, sizes, &json, &error));
    succeeds(attnsmith_parse_request(json, &again, &sizes_again, &error));
    CHECK(memcmp(spec, &again, sizeof again) == 0 && memcmp(sizes, &sizes_again, sizeof sizes_again) == 0);
    attnsmith_string_free(json);
}

static void test_merge_requests(void) {
    attnsmith_spec spec = {.size = sizeof spec, .head_dim_qk = 77, .kv_heads = 77};
    attnsmith_sizes sizes = {.size = sizeof sizes};
    succeeds(attnsmith_parse_request(
        "{\"op\": \"merge\", \"head_dim\": 128, \"q_heads\": 6, \"dtype\": \"fp16\", \"q_len\": 33}", &spec,
        &sizes, &error));
    CHECK(spec.op == ATTNSMITH_OP_MERGE && spec.dtype == ATTNSMITH_DTYPE_FP16 && spec.lse == 0);
    CHECK(spec.head_dim_vo == 128 && spec.head_dim_qk == 0 && spec.q_heads == 6 && spec.kv_heads == 0);
    CHECK(spec.alignment == 16 && spec.scale == 0 && spec.softcap == 0 && sizes.q_len == 33);
    round_trip(&spec, &sizes);
    succeeds(attnsmith_parse_request(
        "{\"op\": \"merge\", \"head_dim_vo\": 64, \"q_heads\": 8, \"lse\": true, \"alignment\": 4}", &spec,
        &sizes, &error));
    CHECK(spec.head_dim_vo == 64 && spec.lse == 1 && spec.alignment == 4);
    round_trip(&spec, &sizes);

    char* json = NULL;
    spec = merge_spec();
    succeeds(attnsmith_request_json(&spec, NULL, &json, &error));
    CHECK(contains(json, "\"op\":\"merge\"") && contains(json, "\"head_dim_vo\":64"));
    CHECK(contains(json, "\"dtype\":\"bf16\"") && contains(json, "\"lse\":true"));
    CHECK(!contains(json, "head_dim_qk") && !contains(json, "kv_heads") && !contains(json, "mask"));
    attnsmith_string_free(json);

    const struct {
        const char* fields;
        const char* field;
    } cases[] = {
        {"\"head_dim\": 64", "q_heads"},
        {"\"q_heads\": 8", "head_dim"},
        {"\"head_dim\": 0, \"q_heads\": 8", "head_dim"},
        {"\"head_dim\": 64, \"q_heads\": 8, \"kv_heads\": 8", "kv_heads"},
        {"\"head_dim\": 64, \"q_heads\": 8, \"mask\": \"causal\"", "mask"},
        {"\"head_dim\": 64, \"q_heads\": 8, \"head_dim_qk\": 64", "head_dim_qk"},
        {"\"head_dim\": 64, \"q_heads\": 8, \"scale\": 1", "scale"},
        {"\"head_dim\": 64, \"q_heads\": 8, \"states\": 2", "states"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        char request[200];
        snprintf(request, sizeof request, "{\"op\": \"merge\", %s}", cases[i].fields);
        spec.q_heads = 77;
        refused(attnsmith_parse_request(request, &spec, &sizes, &error), cases[i].field);
        CHECK(spec.q_heads == 77);
    }
}

static void test_defaults_of_a_zeroed_spec(void) {
    const attnsmith_spec spec = small_spec();
    const attnsmith_sizes zeroed = {.size = sizeof zeroed};
    char *with_null = NULL, *with_zeroed = NULL;
    succeeds(attnsmith_request_json(&spec, NULL, &with_null, &error));
    succeeds(attnsmith_request_json(&spec, &zeroed, &with_zeroed, &error));
    CHECK(strcmp(with_null, with_zeroed) == 0);
    const char* const defaults[] = {
        "\"dtype\":\"bf16\"",    "\"mask\":\"full\"",    "\"window_left\":null",       "\"scale\":0.125",
        "\"softcap\":null",      "\"kv\":\"dense\"",     "\"index_dtype\":\"int32\"",  "\"alignment\":16",
        "\"head_dim_vo\":64",    "\"batch\":1",          "\"precision\":\"standard\"", "\"o_dtype\":\"bf16\"",
        "\"kv_dtype\":\"bf16\"", "\"kv_scale\":\"none\""};
    for (size_t i = 0; i < sizeof defaults / sizeof *defaults; ++i) CHECK(contains(with_null, defaults[i]));
    attnsmith_string_free(with_null);
    attnsmith_string_free(with_zeroed);
}

/* A caller whose header ends before attention_chunk: whatever lies behind its struct is not read. */
static void test_older_spec(void) {
    attnsmith_spec spec = {.size = 136, .head_dim_qk = 64, .q_heads = 8, .attention_chunk = -7};
    char* json = NULL;
    CHECK(attnsmith_request_json(&spec, NULL, &json, &error) == ATTNSMITH_OK);
    CHECK(contains(json, "\"attention_chunk\":null"));
    attnsmith_string_free(json);
    spec.size = sizeof spec;
    spec.attention_chunk = 8192;
    CHECK(attnsmith_request_json(&spec, NULL, &json, &error) == ATTNSMITH_OK);
    CHECK(contains(json, "\"attention_chunk\":8192"));
    attnsmith_string_free(json);
}

static void test_bad_requests(void) {
    const struct {
        const char* json;
        const char* field;
    } cases[] = {
        {"", "request"},
        {"[", "request"},
        {"[]", "request"},
        {"{\"head_dim\": 64}", "q_heads"},
        {"{\"q_heads\": 8}", "head_dim"},
        {"{\"head_dim\": 0, \"q_heads\": 8}", "head_dim"},
        {"{\"head_dim\": 64, \"q_heads\": 8, \"kv_heads\": 3}", "kv_heads"},
        {"{\"head_dim\": 64, \"q_heads\": 8, \"masc\": \"full\"}", "masc"},
        {"{\"head_dim\": 64, \"q_heads\": 8, \"mask\": \"casual\"}", "mask"},
        {"{\"head_dim\": 64, \"q_heads\": \"8\"}", "q_heads"},
        {"{\"head_dim\": 64, \"q_heads\": 8, \"sm\": 70}", "sm"},
        {"{\"head_dim\": 64, \"head_dim\": 64, \"q_heads\": 8}", "head_dim"},
        {"{\"op\": \"\xff\xfe\"}", "request"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        attnsmith_spec spec = {.size = sizeof spec, .q_heads = 77};
        attnsmith_sizes sizes = {.size = sizeof sizes, .batch = 77};
        refused(attnsmith_parse_request(cases[i].json, &spec, &sizes, &error), cases[i].field);
        CHECK(spec.q_heads == 77 && sizes.batch == 77);
    }
    attnsmith_spec spec = {.size = sizeof spec};
    attnsmith_sizes sizes = {.size = sizeof sizes};
    fails(attnsmith_parse_request("{\"dtype\": \"fp32\", \"head_dim\": 64, \"q_heads\": 4}", &spec, &sizes,
                                  &error),
          ATTNSMITH_CODE_UNSUPPORTED, "dtype fp32 is not supported");
    refused(attnsmith_parse_request(NULL, &spec, &sizes, &error), "json");
    refused(attnsmith_parse_request("{}", NULL, &sizes, &error), "spec");
    refused(attnsmith_parse_request("{}", &spec, NULL, &error), "sizes");
    spec.size = 0;
    refused(attnsmith_parse_request("{}", &spec, &sizes, &error), "spec.size");
    CHECK(attnsmith_parse_request("{}", &spec, &sizes, NULL) == ATTNSMITH_CODE_INVALID_REQUEST);
}

static void spec_refused(attnsmith_spec spec, const char* field, const char* accepted) {
    char* json = NULL;
    const attnsmith_code code = attnsmith_request_json(&spec, NULL, &json, &error);
    CHECK(json == NULL && contains(attnsmith_error_details(error), accepted));
    refused(code, field);
}

#define REFUSED_OF(spec, member, value, field, accepted) \
    do {                                                 \
        attnsmith_spec changed = spec;                   \
        changed.member = (value);                        \
        spec_refused(changed, field, accepted);          \
    } while (0)
#define SPEC_REFUSED(member, value, field, accepted) REFUSED_OF(small_spec(), member, value, field, accepted)
#define MERGE_REFUSED(member, value, field, accepted) REFUSED_OF(merge_spec(), member, value, field, accepted)

static void test_bad_specs(void) {
    SPEC_REFUSED(size, 0, "spec.size", "from 136 to 4096");
    SPEC_REFUSED(size, 135, "spec.size", "from 136 to 4096");
    SPEC_REFUSED(size, 140, "spec.size", "a multiple of 8");
    SPEC_REFUSED(size, sizeof(attnsmith_spec) + 1, "spec.size", "a multiple of 8");
    SPEC_REFUSED(size, SIZE_MAX - 7, "spec.size", "from 136 to 4096");
    SPEC_REFUSED(op, 5, "spec.op", "0 (attention), 1 (mla), 2 (merge), 3 (append) or 4 (top_k)");
    SPEC_REFUSED(dtype, ATTNSMITH_DTYPE_INT32, "spec.dtype", "0 (bf16), 1 (fp16) or 2 (bf16)");
    SPEC_REFUSED(dtype, -1, "spec.dtype", "1 (fp16)");
    SPEC_REFUSED(mask, 2, "spec.mask", "0 (full) or 1 (causal)");
    SPEC_REFUSED(kv, 3, "spec.kv", "0 (dense), 1 (ragged) or 2 (paged)");
    SPEC_REFUSED(page_order, -7, "spec.page_order", "0 (NHD) or 1 (HND)");
    SPEC_REFUSED(index_dtype, ATTNSMITH_DTYPE_FP16, "spec.index_dtype", "0 (int32), 4 (int32) or 5 (int64)");
    SPEC_REFUSED(precision, 2, "spec.precision", "0 (standard) or 1 (high)");
    SPEC_REFUSED(consistency, 2, "spec.consistency", "0 (standard) or 1 (bitwise)");
    SPEC_REFUSED(o_dtype, ATTNSMITH_DTYPE_INT32, "spec.o_dtype",
                 "0 (the default), 1 (fp16), 2 (bf16) or 3 (fp32)");
    SPEC_REFUSED(o_dtype, ATTNSMITH_DTYPE_FP16, "o_dtype", "bf16, as dtype is, or fp32");
    SPEC_REFUSED(kv_dtype, ATTNSMITH_DTYPE_FP32, "spec.kv_dtype",
                 "0 (the default), 1 (fp16), 2 (bf16), 6 (e4m3) or 7 (e5m2)");
    SPEC_REFUSED(kv_dtype, ATTNSMITH_DTYPE_FP16, "kv_dtype", "bf16, as dtype is, e4m3 or e5m2");
    SPEC_REFUSED(kv_scale, 5, "spec.kv_scale",
                 "0 (none), 1 (tensor), 2 (head), 3 (token_head) or 4 (block128)");
    SPEC_REFUSED(kv_scale, ATTNSMITH_KV_SCALE_HEAD, "kv_scale", "scales are of e4m3 and e5m2");
    SPEC_REFUSED(reserved, 1, "spec.reserved", "0");
    SPEC_REFUSED(alibi, 2, "spec.alibi", "0 or 1");
    SPEC_REFUSED(sink, -1, "spec.sink", "0 or 1");
    SPEC_REFUSED(lse, 256, "spec.lse", "0 or 1");
    SPEC_REFUSED(has_window_left, 2, "spec.has_window_left", "0 or 1");
    SPEC_REFUSED(window_left, 5, "spec.window_left", "has_window_left 1");
    SPEC_REFUSED(window_right, 5, "spec.window_right", "has_window_right 1");
    SPEC_REFUSED(alignment, 3, "alignment", "16, 8, 4 or 2");
    SPEC_REFUSED(head_dim_qk, 0, "head_dim_qk", "a multiple of 8");
    SPEC_REFUSED(head_dim_vo, -8, "head_dim_vo", "a multiple of 8");
    SPEC_REFUSED(kv_heads, 3, "kv_heads", "a divisor");
    SPEC_REFUSED(causal_block, 4, "causal_block", "or mask causal");
    SPEC_REFUSED(page_size, 16, "page_size", "nothing or 0");
    SPEC_REFUSED(scale, -1, "scale", "above 0");
    SPEC_REFUSED(scale, NAN, "scale", "above 0");
    SPEC_REFUSED(softcap, INFINITY, "softcap", "above 0");
    SPEC_REFUSED(attention_chunk, -1, "attention_chunk", "a number of tokens from 1");

    attnsmith_spec float32 = small_spec(), odd = small_spec();
    float32.dtype = ATTNSMITH_DTYPE_FP32;
    odd.head_dim_qk = 60;
    char* none = NULL;
    fails(attnsmith_request_json(&float32, NULL, &none, &error), ATTNSMITH_CODE_UNSUPPORTED,
          "dtype fp32 is not supported");
    fails(attnsmith_request_json(&odd, NULL, &none, &error), ATTNSMITH_CODE_UNSUPPORTED,
          "supported are multiples of 8 up to 512; the next is 64");

    attnsmith_spec append = small_spec();
    append.op = ATTNSMITH_OP_APPEND;
    append.check_slots = 1;
    append.slots = ATTNSMITH_SLOTS_TABLE;
    char* json = NULL;
    refused(attnsmith_request_json(&append, NULL, &json, &error), "check_slots");
    const attnsmith_spec spec = small_spec();
    attnsmith_sizes sizes = {.size = sizeof sizes, .batch = -1};
    refused(attnsmith_request_json(&spec, &sizes, &json, &error), "batch");
    sizes.size = 31;
    refused(attnsmith_request_json(&spec, &sizes, &json, &error), "sizes.size");
    refused(attnsmith_request_json(NULL, NULL, &json, &error), "spec");
    refused(attnsmith_request_json(&spec, NULL, NULL, &error), "json");
}

/* A struct of a header that had no o_dtype yet: what lies behind it is neither read nor written. */
static void test_specs_of_older_headers(void) {
    attnsmith_spec older = small_spec();
    older.size = offsetof(attnsmith_spec, o_dtype);
    older.o_dtype = older.reserved = 77;
    char* json = NULL;
    succeeds(attnsmith_request_json(&older, NULL, &json, &error));
    CHECK(contains(json, "\"o_dtype\":\"bf16\""));
    attnsmith_sizes sizes = {.size = sizeof sizes};
    succeeds(attnsmith_parse_request(json, &older, &sizes, &error));
    CHECK(older.head_dim_vo == 64 && older.o_dtype == 77 && older.reserved == 77);
    /* What it has no room for is not lost in silence. */
    older.q_heads = 77;
    refused(attnsmith_parse_request("{\"head_dim\": 64, \"q_heads\": 8, \"o_dtype\": \"fp32\"}", &older,
                                    &sizes, &error),
            "spec.size");
    CHECK(older.q_heads == 77);
    succeeds(attnsmith_parse_request("{\"op\": \"merge\", \"head_dim\": 64, \"q_heads\": 8}", &older, &sizes,
                                     &error));
    attnsmith_string_free(json);
}

/* What counts for attention alone. */
static void test_bad_merge_specs(void) {
    const char* const nothing = "nothing, with op merge: it takes dtype, head_dim or head_dim_vo";
    MERGE_REFUSED(head_dim_qk, 64, "head_dim_qk", nothing);
    MERGE_REFUSED(kv_heads, 8, "kv_heads", nothing);
    MERGE_REFUSED(mask, ATTNSMITH_MASK_CAUSAL, "mask", nothing);
    MERGE_REFUSED(has_window_left, 1, "window_left", nothing);
    MERGE_REFUSED(has_window_right, 1, "window_right", nothing);
    MERGE_REFUSED(scale, 0.125, "scale", nothing);
    MERGE_REFUSED(scale, NAN, "scale", nothing);
    MERGE_REFUSED(softcap, 30, "softcap", nothing);
    MERGE_REFUSED(alibi, 1, "alibi", nothing);
    MERGE_REFUSED(sink, 1, "sink", nothing);
    MERGE_REFUSED(kv, ATTNSMITH_KV_RAGGED, "kv", nothing);
    MERGE_REFUSED(page_order, ATTNSMITH_PAGE_ORDER_HND, "page_order", nothing);
    MERGE_REFUSED(page_size, 16, "page_size", nothing);
    MERGE_REFUSED(index_dtype, ATTNSMITH_DTYPE_INT64, "index_dtype", nothing);
    MERGE_REFUSED(o_dtype, ATTNSMITH_DTYPE_FP32, "o_dtype", nothing);
    MERGE_REFUSED(kv_dtype, ATTNSMITH_DTYPE_E4M3, "kv_dtype", nothing);
    MERGE_REFUSED(kv_scale, ATTNSMITH_KV_SCALE_HEAD, "kv_scale", nothing);
    MERGE_REFUSED(precision, ATTNSMITH_PRECISION_HIGH, "precision", nothing);
    MERGE_REFUSED(consistency, ATTNSMITH_CONSISTENCY_BITWISE, "consistency", nothing);
    MERGE_REFUSED(head_dim_vo, 0, "head_dim_vo", "a multiple of 8");
    MERGE_REFUSED(q_heads, 0, "q_heads", "an integer from 1");
    MERGE_REFUSED(alignment, 3, "alignment", "16, 8, 4 or 2");
    MERGE_REFUSED(lse, 2, "spec.lse", "0 or 1");
    const attnsmith_spec spec = merge_spec();
    const attnsmith_sizes sizes = {.size = sizeof sizes, .batch = 1 << 20, .q_len = INT64_C(1) << 31};
    char* json = NULL;
    CHECK(attnsmith_request_json(&spec, &sizes, &json, &error) == ATTNSMITH_CODE_INVALID_REQUEST &&
          json == NULL);
    attnsmith_error_free(error);
    error = NULL;
}

static char* read_model(const char* name) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s.json", models, name);
    FILE* const file = fopen(path, "rb");
    CHECK(file != NULL);
    char* const text = calloc(1, 1 << 16);
    CHECK(fread(text, 1, (1 << 16) - 1, file) > 0);
    fclose(file);
    return text;
}

static void test_models(void) {
    char* const llama = read_model("llama-3.1-8b");
    char* const deepseek = read_model("deepseek-v3");
    char* json = NULL;
    succeeds(attnsmith_model_json(llama, NULL, &json, &error));
    CHECK(contains(json, "\"model_type\": \"llama\"") && contains(json, "\"phase\": \"prefill\""));
    CHECK(contains(json, "\"phase\": \"decode\"") && contains(json, "\"page_size\": 16"));
    CHECK(contains(json, "\"unsupported\": []") && contains(json, "\"warnings\": []"));
    attnsmith_string_free(json);
    succeeds(attnsmith_model_json(
        llama, "{\"kv\": \"dense\", \"dtype\": \"fp16\", \"tensor_parallel\": 8, \"batch\": 3}", &json,
        &error));
    CHECK(contains(json, "\"kv\": \"dense\"") && contains(json, "\"dtype\": \"fp16\""));
    CHECK(contains(json, "\"q_heads\": 4") && contains(json, "\"kv_heads\": 1") &&
          contains(json, "\"batch\": 3"));
    attnsmith_string_free(json);
    succeeds(attnsmith_model_json(deepseek, "{}", &json, &error));
    CHECK(contains(json, "\"name\": \"full_attention/decode\"") && contains(json, "\"op\": \"mla\"") &&
          contains(json, "\"unsupported\": []"));
    attnsmith_string_free(json);
    static const char* const quasar =
        "{\"model_type\": \"quasar\", \"hidden_size\": 64, \"num_attention_heads\": 1, "
        "\"num_hidden_layers\": 1, "
        "\"kv_bend\": 2}";
    succeeds(attnsmith_model_json(quasar, "{\"strict\": false}", &json, &error));
    CHECK(contains(json, "\"kind\": \"unknown_type\"") && contains(json, "\"field\": \"kv_bend\""));
    attnsmith_string_free(json);
    json = NULL;
    CHECK(attnsmith_model_json(quasar, "{\"strict\": true}", &json, &error) == ATTNSMITH_CODE_UNSUPPORTED);
    CHECK(json == NULL && error != NULL);
    CHECK(contains(attnsmith_error_message(error), "kv_bend"));
    CHECK(contains(attnsmith_error_details(error), "kv_bend"));
    attnsmith_error_free(error);
    error = NULL;
    succeeds(attnsmith_model_json(llama, "{\"strict\": true}", &json, &error));
    attnsmith_string_free(json);
    json = NULL;

    refused(attnsmith_model_json("{}", NULL, &json, &error), "num_attention_heads");
    refused(attnsmith_model_json(llama, "{\"strict\": 1}", &json, &error), "strict");
    refused(attnsmith_model_json("x", NULL, &json, &error), "config.json");
    refused(attnsmith_model_json(llama, "x", &json, &error), "options");
    refused(attnsmith_model_json(llama, "{\"batches\": 1}", &json, &error), "batches");
    refused(attnsmith_model_json(llama, "{\"batch\": \"1\"}", &json, &error), "batch");
    refused(attnsmith_model_json(llama, "{\"batch\": 0}", &json, &error), "batch");
    refused(attnsmith_model_json(llama, "{\"dtype\": \"fp64\"}", &json, &error), "dtype");
    refused(attnsmith_model_json(llama, "{\"tensor_parallel\": 0}", &json, &error), "tensor_parallel");
    refused(attnsmith_model_json(llama, "{\"tensor_parallel\": 1.5}", &json, &error), "tensor_parallel");
    refused(attnsmith_model_json(NULL, NULL, &json, &error), "config_json");
    refused(attnsmith_model_json(llama, NULL, NULL, &error), "json");
    CHECK(json == NULL);
    free(llama);
    free(deepseek);
}

struct lines {
    int count;
    int nvrtc;
};

static void count_line(void* user, int32_t level, const char* line) {
    struct lines* const lines = user;
    CHECK(level >= ATTNSMITH_LOG_ERROR && level <= ATTNSMITH_LOG_DEBUG && !contains(line, "\n"));
    ++lines->count;
    if (contains(line, "NVRTC")) ++lines->nvrtc;
}

static attnsmith_runtime* open_runtime(const char* name, struct lines* lines) {
    char directory[200];
    snprintf(directory, sizeof directory, "%s/%s", folder, name);
    const char* const directories[] = {directory};
    const attnsmith_runtime_options options = {.size = sizeof options,
                                               .cache_dirs = directories,
                                               .cache_dir_count = 1,
                                               .log_line = lines == NULL ? NULL : count_line,
                                               .log_user = lines,
                                               .log_level = lines == NULL ? 0 : ATTNSMITH_LOG_INFO};
    attnsmith_runtime* runtime = NULL;
    succeeds(attnsmith_runtime_create(&options, &runtime, &error));
    return runtime;
}

static void options_refused(attnsmith_runtime_options options, const char* field) {
    attnsmith_runtime* runtime = NULL;
    refused(attnsmith_runtime_create(&options, &runtime, &error), field);
    CHECK(runtime == NULL);
}

static void test_coverage(void) {
    char* const llama = read_model("llama-3.1-8b");
    char* json = NULL;
    succeeds(attnsmith_model_coverage_json(
        llama, "{\"kv\": [\"paged\", \"dense\"], \"index_dtype\": [\"int32\", \"int64\"], \"page_size\": 64}",
        &json, &error));
    CHECK(contains(json, "full_attention/decode (kv paged, index_dtype int64)"));
    CHECK(contains(json, "full_attention/prefill (kv dense, index_dtype int32)"));
    CHECK(contains(json, "page_size with kv dense") && !contains(json, "model_type"));
    attnsmith_string_free(json);
    succeeds(attnsmith_request_coverage_json("{\"head_dim\": 64, \"q_heads\": 8, \"alignment\": [16, 2]}",
                                             &json, &error));
    CHECK(contains(json, "attention (alignment 16)") && contains(json, "attention (alignment 2)"));
    attnsmith_string_free(json);
    json = NULL;
    refused(attnsmith_request_coverage_json("{}", &json, &error), "head_dim");
    refused(attnsmith_request_coverage_json(NULL, &json, &error), "request");
    refused(attnsmith_request_coverage_json("{}", NULL, &error), "json");
    refused(attnsmith_model_coverage_json(NULL, "{}", &json, &error), "config_json");
    refused(attnsmith_model_coverage_json(llama, "{\"kv\": []}", &json, &error), "kv");
    refused(attnsmith_model_coverage_json(llama, NULL, NULL, &error), "json");

    const char* const recorded =
        "{\"schema\": \"attnsmith.recorded/1\", \"request\": {\"head_dim\": 64, \"q_heads\": 8}}\n"
        "{\"schema\": \"attnsm";
    succeeds(attnsmith_recorded_coverage_json(recorded, "r.jsonl", &json, &error));
    CHECK(contains(json, "\"name\": \"r.jsonl:1\"") && contains(json, "\"name\": \"r.jsonl:2\""));
    CHECK(contains(json, "torn"));
    attnsmith_string_free(json);
    json = NULL;
    refused(attnsmith_recorded_coverage_json("{}", "r.jsonl", &json, &error), "r.jsonl:1: schema");
    refused(attnsmith_recorded_coverage_json(NULL, "r.jsonl", &json, &error), "text");
    refused(attnsmith_recorded_coverage_json(recorded, NULL, &json, &error), "name");
    refused(attnsmith_recorded_coverage_json(recorded, "r.jsonl", NULL, &error), "json");
    CHECK(json == NULL);
    free(llama);
}

static void test_runtime_options(void) {
    const attnsmith_runtime_options good = {.size = sizeof good};
    const char* const directories[] = {"a", "", NULL};
    attnsmith_runtime_options options = good;
    options.size = 8;
    options_refused(options, "options.size");
    options.size = sizeof options + 4;
    options_refused(options, "options.size");
    options.size = 4096 + 8;
    options_refused(options, "options.size");
    options = good, options.cache_dir_count = 1;
    options_refused(options, "options.cache_dirs");
    options.cache_dirs = directories, options.cache_dir_count = 2;
    options_refused(options, "options.cache_dirs[1]");
    options.cache_dirs = directories + 2, options.cache_dir_count = 1;
    options_refused(options, "options.cache_dirs[0]");
    options.cache_dir_count = SIZE_MAX;
    options_refused(options, "options.cache_dirs");
    options = good, options.log_level = 6;
    options_refused(options, "options.log_level");
    options = good, options.no_cache = 2;
    options_refused(options, "options.no_cache");
    options = good, options.compile_threads = -1;
    options_refused(options, "options.compile_threads");
    options = good, options.cache_trust = 3;
    options_refused(options, "options.cache_trust");
    options = good, options.cache_max_bytes = -2;
    options_refused(options, "options.cache_max_bytes");
    options = good, options.no_cache_source = 2;
    options_refused(options, "options.no_cache_source");
    /* The struct of the first header, which ended before the limit. */
    options = good, options.size = offsetof(attnsmith_runtime_options, cache_max_bytes);
    options.cache_max_bytes = -2;
    attnsmith_runtime* of_old_caller = NULL;
    succeeds(attnsmith_runtime_create(&options, &of_old_caller, &error));
    attnsmith_runtime_free(of_old_caller);
    options = good, options.toolchain = 2;
    options_refused(options, "options.toolchain");
    options = good, options.on_miss = 3;
    options_refused(options, "options.on_miss");
    options = good, options.reserved = 1;
    options_refused(options, "options.reserved");
    options = good, options.on_miss = ATTNSMITH_ON_MISS_ERROR, options.toolchain = ATTNSMITH_TOOLCHAIN_EXACT;
    options_refused(options, "toolchain");
    refused(attnsmith_runtime_create(&good, NULL, &error), "runtime");

    options = good, options.no_cache = 1, options.driver_path = "/nowhere/libcuda.so";
    attnsmith_runtime* runtime = NULL;
    succeeds(attnsmith_runtime_create(&options, &runtime, &error));
    char* json = NULL;
    succeeds(attnsmith_devices_json(runtime, &json, &error));
    CHECK(strcmp(json, "[]") == 0);
    attnsmith_string_free(json);
    json = NULL;
    const attnsmith_spec spec = small_spec();
    attnsmith_kernel* kernel = NULL;
    attnsmith_pending* pending = NULL;
    attnsmith_buffer* buffer = NULL;
    fails(attnsmith_prepare(runtime, &spec, NULL, 0, &kernel, &error), ATTNSMITH_CODE_LIBRARY_MISSING,
          "\"tried\":[\"/nowhere/libcuda.so");
    fails(attnsmith_prepare_async(runtime, &spec, NULL, 0, &pending, &error), ATTNSMITH_CODE_LIBRARY_MISSING,
          "library");
    fails(attnsmith_buffer_allocate(runtime, 0, 16, &buffer, &error), ATTNSMITH_CODE_LIBRARY_MISSING,
          "library");
    fails(attnsmith_synchronize(runtime, NULL, &error), ATTNSMITH_CODE_LIBRARY_MISSING, "library");
    fails(attnsmith_cache(runtime, "ls", NULL, &json, &error), ATTNSMITH_CODE_CACHE_ERROR, "switched off");
    const int32_t sm = 90;
    const attnsmith_spec* const specs[] = {&spec};
    fails(attnsmith_prewarm(runtime, specs, 1, &sm, 1, NULL, &json, &error), ATTNSMITH_CODE_CACHE_ERROR,
          "switched off");
    CHECK(kernel == NULL && pending == NULL && buffer == NULL && json == NULL);
    attnsmith_runtime_free(runtime);
}

static void test_plans(void) {
    attnsmith_runtime* const runtime = open_runtime("plans", NULL);
    const attnsmith_spec spec = small_spec();
    const attnsmith_sizes sizes = {.size = sizeof sizes, .batch = 4, .q_len = 256, .kv_len = 4096};
    char* json = NULL;
    const int32_t sms[] = {90, 80};
    for (int i = 0; i < 2; ++i) {
        succeeds(attnsmith_plan_json(runtime, &spec, &sizes, sms[i], &json, &error));
        char sm[20];
        snprintf(sm, sizeof sm, "\"sm\": \"%d\"", sms[i]);
        CHECK(contains(json, "\"schema\": \"attnsmith.plan/1\"") && contains(json, sm));
        CHECK(contains(json, sms[i] == 90 ? "\"backend\": \"wgmma\"" : "\"backend\": \"mma\""));
        CHECK(contains(json, "\"state\": \"miss\""));
        attnsmith_string_free(json);
    }
    json = NULL;
    refused(attnsmith_plan_json(runtime, &spec, &sizes, 70, &json, &error), "sm");
    refused(attnsmith_plan_json(runtime, &spec, &sizes, -90, &json, &error), "sm");
    refused(attnsmith_plan_json(NULL, &spec, &sizes, 90, &json, &error), "runtime");
    refused(attnsmith_plan_json(runtime, NULL, &sizes, 90, &json, &error), "spec");
    refused(attnsmith_plan_json(runtime, &spec, &sizes, 90, NULL, &error), "json");
    attnsmith_spec unserved = spec;
    unserved.consistency = ATTNSMITH_CONSISTENCY_BITWISE;
    unserved.precision = ATTNSMITH_PRECISION_HIGH;
    fails(attnsmith_plan_json(runtime, &unserved, &sizes, 90, &json, &error), ATTNSMITH_CODE_UNSUPPORTED,
          "\"refusals\":[{\"candidate\":");
    CHECK(json == NULL);

    attnsmith_spec merge = merge_spec();
    const attnsmith_sizes tokens = {.size = sizeof tokens, .q_len = 100};
    for (int i = 0; i < 2; ++i) {
        succeeds(attnsmith_plan_json(runtime, &merge, &tokens, sms[i], &json, &error));
        CHECK(contains(json, "\"schema\": \"attnsmith.plan/1\"") && contains(json, "\"op\": \"merge\""));
        CHECK(contains(json, "merge states bf16 64") && contains(json, "\"backend\": \"cuda_core\""));
        CHECK(!contains(json, "kv_heads") && !contains(json, "\"mask\""));
        attnsmith_string_free(json);
    }
    json = NULL;
    merge.kv_heads = 8;
    refused(attnsmith_plan_json(runtime, &merge, &tokens, 90, &json, &error), "kv_heads");
    CHECK(json == NULL);
    attnsmith_runtime_free(runtime);
}

struct seen {
    int calls;
    int total;
    int cancel_after; /* 0: never */
};

static int32_t on_progress(void* user, const char* kernel, int32_t done, int32_t total) {
    struct seen* const seen = user;
    CHECK(++seen->calls == done && done <= total);
    CHECK(kernel[0] == '{' && contains(kernel, "\"name\":\"") && contains(kernel, "\"state\":\""));
    seen->total = total;
    return seen->cancel_after != 0 && done >= seen->cancel_after;
}

static void test_prewarm_and_cache(void) {
    struct lines lines = {0, 0};
    attnsmith_runtime* const runtime = open_runtime("kernels", &lines);
    attnsmith_spec spec = small_spec(), unserved = small_spec();
    unserved.consistency = ATTNSMITH_CONSISTENCY_BITWISE;
    unserved.precision = ATTNSMITH_PRECISION_HIGH;
    const attnsmith_spec* const specs[] = {&spec, &unserved};
    const int32_t sms[] = {80, 90};
    struct seen seen = {0, 0, 1};
    attnsmith_prewarm_options options = {
        .size = sizeof options, .progress = on_progress, .progress_user = &seen, .jobs = 1};
    char* json = NULL;

    succeeds(attnsmith_prewarm(runtime, specs, 1, sms, 2, &options, &json, &error));
    CHECK(seen.calls == seen.total && seen.total > 1);
    CHECK(contains(json, "\"compiled\": 1,") && contains(json, "\"state\": \"cancelled\""));
    attnsmith_string_free(json);

    seen.calls = seen.cancel_after = 0;
    succeeds(attnsmith_prewarm(runtime, specs, 2, sms, 2, &options, &json, &error));
    CHECK(contains(json, "\"schema\": \"attnsmith.prewarm/1\"") && contains(json, "\"hits\": 1,"));
    CHECK(contains(json, "\"failed\": 0") && contains(json, "\"cancelled\": 0"));
    CHECK(contains(json, "\"unsupported\": 2,") && contains(json, "\"spec\": 1"));
    CHECK(seen.calls == seen.total && lines.nvrtc > 0);
    attnsmith_string_free(json);
    succeeds(attnsmith_prewarm(runtime, NULL, 0, NULL, 0, NULL, &json, &error));
    CHECK(contains(json, "\"total\": 0"));
    attnsmith_string_free(json);
    static const attnsmith_spec* many[5000];
    for (int i = 0; i < 5000; ++i) many[i] = &spec;
    succeeds(attnsmith_prewarm(runtime, many, 5000, sms, 2, NULL, &json, &error));
    CHECK(contains(json, "\"compiled\": 0,") && contains(json, "\"failed\": 0"));
    attnsmith_string_free(json);
    json = NULL;

    const int32_t bad_sm = 75;
    const attnsmith_spec* const null_specs[] = {&spec, NULL};
    refused(attnsmith_prewarm(runtime, specs, 1, &bad_sm, 1, NULL, &json, &error), "sm");
    refused(attnsmith_prewarm(runtime, null_specs, 2, sms, 2, NULL, &json, &error), "specs[1]");
    refused(attnsmith_prewarm(runtime, NULL, 1, sms, 2, NULL, &json, &error), "specs");
    refused(attnsmith_prewarm(runtime, specs, 1, NULL, 1, NULL, &json, &error), "sms");
    refused(attnsmith_prewarm(runtime, specs, SIZE_MAX, sms, 1, NULL, &json, &error), "specs");
    refused(attnsmith_prewarm(NULL, specs, 1, sms, 1, NULL, &json, &error), "runtime");
    refused(attnsmith_prewarm(runtime, specs, 1, sms, 1, NULL, NULL, &error), "report");
    options.jobs = -1;
    refused(attnsmith_prewarm(runtime, specs, 1, sms, 1, &options, &json, &error), "options.jobs");
    options.jobs = 1, options.reserved = 9;
    refused(attnsmith_prewarm(runtime, specs, 1, sms, 1, &options, &json, &error), "options.reserved");
    spec.lse = 5;
    refused(attnsmith_prewarm(runtime, specs, 1, sms, 1, NULL, &json, &error), "specs[0].lse");

    char export[400];
    snprintf(export, sizeof export, "{\"file\": \"%s/kernels.bundle\", \"sm\": [80]}", folder);
    succeeds(attnsmith_cache(runtime, "export", export, &json, &error));
    CHECK(contains(json, "attnsmith.cache-export/1") && contains(json, "\"missing\": 0"));
    attnsmith_string_free(json);
    json = NULL;

    snprintf(export, sizeof export, "{\"oci\": \"%s/image\", \"tag\": \"v1\", \"sm\": [80]}", folder);
    succeeds(attnsmith_cache(runtime, "export", export, &json, &error));
    CHECK(contains(json, "\"tag\": \"v1\"") && contains(json, "\"digest\": \"sha256:"));
    attnsmith_string_free(json);
    json = NULL;
    refused(attnsmith_cache(runtime, "export", NULL, &json, &error), "file");
    refused(attnsmith_cache(runtime, "export", "{\"file\": \"x\", \"oci\": \"y\"}", &json, &error), "file");
    refused(attnsmith_cache(runtime, "export", "{\"file\": \"x\", \"tag\": \"y\"}", &json, &error), "tag");
    refused(attnsmith_cache(runtime, "export", "{\"oci\": \"x\", \"tag\": \"a b\"}", &json, &error), "tag");
    refused(attnsmith_cache(runtime, "export", "{\"oci\": \"x\", \"tag\": 1}", &json, &error), "tag");
    refused(attnsmith_cache(runtime, "export", "{\"oci\": []}", &json, &error), "oci");

    const char* const operations[] = {"ls", "stat", "verify", "gc", "clear"};
    for (int i = 0; i < 5; ++i) {
        succeeds(attnsmith_cache(runtime, operations[i], i % 2 ? "{}" : NULL, &json, &error));
        char schema[60];
        snprintf(schema, sizeof schema, "\"schema\": \"attnsmith.cache-%s/1\"", operations[i]);
        CHECK(contains(json, schema) && contains(json, folder));
        if (i == 0) CHECK(contains(json, "\"sm\": 80") && contains(json, "\"name\": \"attention"));
        if (i == 2) CHECK(contains(json, "\"bad\": []") && !contains(json, "\"checked\": 0"));
        attnsmith_string_free(json);
    }
    succeeds(attnsmith_cache(runtime, "ls", NULL, &json, &error));
    CHECK(contains(json, "\"entries\": []"));
    attnsmith_string_free(json);
    char import[400];
    snprintf(import, sizeof import, "{\"file\": \"%s/kernels.bundle\"}", folder);
    succeeds(attnsmith_cache(runtime, "import", import, &json, &error));
    CHECK(contains(json, "attnsmith.cache-import/1") && !contains(json, "\"imported\": 0"));
    attnsmith_string_free(json);
    json = NULL;
    refused(attnsmith_cache(runtime, "gc everything", NULL, &json, &error), "operation");
    refused(attnsmith_cache(runtime, "gc", "{\"max_bytes\": -1}", &json, &error), "max_bytes");
    CHECK(attnsmith_cache(runtime, "import", "{\"file\": \"/dev/null\"}", &json, &error) ==
          ATTNSMITH_CODE_CACHE_ERROR);
    attnsmith_error_free(error), error = NULL;
    refused(attnsmith_cache(runtime, "import", NULL, &json, &error), "file");
    refused(attnsmith_cache(runtime, "export", "{\"file\": 1}", &json, &error), "file");
    refused(attnsmith_cache(runtime, "export", "{\"file\": \"a\\u0000b\"}", &json, &error), "file");
    refused(attnsmith_cache(runtime, "export", "{\"file\": \"x\", \"sm\": true}", &json, &error), "sm");
    refused(attnsmith_cache(runtime, "export", "{\"file\": \"x\", \"model\": []}", &json, &error), "model");
    refused(attnsmith_cache(runtime, "export", "{\"file\": \"x\", \"model_options\": {}}", &json, &error),
            "model_options");
    refused(attnsmith_cache(runtime, "import", "{\"file\": \"x\", \"sm\": [90]}", &json, &error), "sm");
    refused(attnsmith_cache(runtime, "\xff", NULL, &json, &error), "operation");
    refused(attnsmith_cache(runtime, "ls", "[]", &json, &error), "options");
    refused(attnsmith_cache(runtime, "ls", "{\"all\": true}", &json, &error), "all");
    refused(attnsmith_cache(runtime, NULL, NULL, &json, &error), "operation");
    refused(attnsmith_cache(NULL, "ls", NULL, &json, &error), "runtime");
    refused(attnsmith_cache(runtime, "ls", NULL, NULL, &error), "json");
    CHECK(json == NULL);
    attnsmith_runtime_free(runtime);
}

/* Folders may be named with any bytes; what is handed out is UTF-8. */
static void test_names_that_are_no_text(void) {
    attnsmith_runtime* const runtime = open_runtime("any\xff", NULL);
    char* json = NULL;
    succeeds(attnsmith_cache(runtime, "stat", NULL, &json, &error));
    CHECK(contains(json, "any\xef\xbf\xbd") && !contains(json, "\xff"));
    attnsmith_string_free(json);
    attnsmith_runtime_free(runtime);
    char path[200];
    snprintf(path, sizeof path, "%s/file\xff", folder);
    FILE* const file = fopen(path, "w");
    CHECK(file != NULL);
    fclose(file);
    attnsmith_runtime* const on_a_file = open_runtime("file\xff", NULL);
    CHECK(attnsmith_cache(on_a_file, "ls", NULL, &json, &error) == ATTNSMITH_CODE_INVALID_REQUEST);
    CHECK(contains(attnsmith_error_message(error), "file\\xff"));
    refused(attnsmith_error_code(error), "cache_dirs");
    attnsmith_runtime_free(on_a_file);
}

int main(int count, char** arguments) {
    CHECK(count == 2);
    models = arguments[1];
    CHECK(mkdtemp(folder) != NULL);
    test_version();
    test_features();
    test_frees_take_null();
    test_parse_request();
    test_keys_of_8_bits();
    test_merge_requests();
    test_defaults_of_a_zeroed_spec();
    test_older_spec();
    test_bad_requests();
    test_bad_specs();
    test_specs_of_older_headers();
    test_bad_merge_specs();
    test_models();
    test_coverage();
    test_runtime_options();
    test_plans();
    test_prewarm_and_cache();
    test_names_that_are_no_text();
    char command[100];
    snprintf(command, sizeof command, "rm -r %s", folder);
    CHECK(system(command) == 0);
    puts("passed");
    return 0;
}
