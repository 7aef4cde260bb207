/* Decodes one token for each of four sequences over a paged KV cache, through the C ABI:
 * ../cpp/paged_decode.cpp in C. */
#include <attnsmith/attnsmith.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    BATCH = 4,
    Q_HEADS = 32,
    KV_HEADS = 8,
    HEAD_DIM = 128,
    PAGE_SIZE = 16,
    PAGES_EACH = 64,
    PAGES = BATCH * PAGES_EACH
};
enum { Q_BYTES = BATCH * Q_HEADS * HEAD_DIM * 2, CACHE_BYTES = PAGES * PAGE_SIZE * KV_HEADS * HEAD_DIM * 2 };
static const uint16_t one = 0x3f80; /* 1.0 in bf16 */

static void check(attnsmith_code code, attnsmith_error* const* error) {
    if (code == ATTNSMITH_OK) return;
    fprintf(stderr, "%s\n", attnsmith_error_message(*error)); /* attnsmith_error_details() is for programs */
    exit(1);
}

static attnsmith_buffer* upload(attnsmith_runtime* runtime, const void* values, size_t bytes) {
    attnsmith_error* error = NULL;
    attnsmith_buffer* buffer = NULL;
    check(attnsmith_allocate(runtime, ATTNSMITH_CURRENT_DEVICE, bytes, &buffer, &error), &error);
    check(attnsmith_upload(buffer, values, bytes, 0, &error), &error);
    return buffer;
}

/* A compact tensor over a buffer, as DLPack has it; `shape` must outlive it. */
static attnsmith_dl_tensor tensor(attnsmith_buffer* buffer, int32_t rank, int64_t* shape, uint8_t code,
                                  uint8_t bits) {
    attnsmith_dl_tensor made = {
        attnsmith_buffer_data(buffer), {ATTNSMITH_DL_CUDA, 0}, rank, {code, bits, 1}, shape, NULL, 0};
    return made;
}

int main(void) {
    attnsmith_error* error = NULL;
    attnsmith_runtime* runtime = NULL;
    attnsmith_kernel* kernel = NULL;
    attnsmith_call* call = NULL;
    attnsmith_spec spec = {.size = sizeof spec,
                           .head_dim_qk = HEAD_DIM,
                           .q_heads = Q_HEADS,
                           .kv_heads = KV_HEADS,
                           .kv = ATTNSMITH_KV_PAGED,
                           .page_size = PAGE_SIZE};
    attnsmith_sizes sizes = {
        .size = sizeof sizes, .batch = BATCH, .q_len = 1, .kv_len = PAGES_EACH * PAGE_SIZE};
    check(attnsmith_runtime_create(NULL, &runtime, &error), &error);
    check(attnsmith_prepare(runtime, &spec, &sizes, ATTNSMITH_CURRENT_DEVICE, &kernel, &error), &error);

    /* An engine has these already. Here all queries, keys and values are 1, so that the result is 1 as well.
     */
    uint16_t* ones = malloc(CACHE_BYTES);
    if (ones == NULL) return 1;
    for (size_t i = 0; i < CACHE_BYTES / 2; ++i) ones[i] = one;
    int32_t pages[PAGES], lengths[BATCH] = {1000, 17, 1, 512};
    for (int32_t i = 0; i < PAGES; ++i) pages[i] = i; /* sequence b has the pages b * PAGES_EACH and on */
    attnsmith_buffer *queries = upload(runtime, ones, Q_BYTES), *results = upload(runtime, ones, Q_BYTES);
    attnsmith_buffer *keys = upload(runtime, ones, CACHE_BYTES), *values = upload(runtime, ones, CACHE_BYTES);
    attnsmith_buffer *table = upload(runtime, pages, sizeof pages),
                     *lens = upload(runtime, lengths, sizeof lengths);

    int64_t q_shape[] = {BATCH, 1, Q_HEADS, HEAD_DIM}, cache_shape[] = {PAGES, PAGE_SIZE, KV_HEADS, HEAD_DIM};
    int64_t lens_shape[] = {BATCH}, table_shape[] = {BATCH, PAGES_EACH};
    const attnsmith_dl_tensor q = tensor(queries, 4, q_shape, ATTNSMITH_DL_BFLOAT, 16);
    const attnsmith_dl_tensor k = tensor(keys, 4, cache_shape, ATTNSMITH_DL_BFLOAT, 16);
    const attnsmith_dl_tensor v = tensor(values, 4, cache_shape, ATTNSMITH_DL_BFLOAT, 16);
    const attnsmith_dl_tensor o = tensor(results, 4, q_shape, ATTNSMITH_DL_BFLOAT, 16);
    const attnsmith_dl_tensor kv_lens = tensor(lens, 1, lens_shape, ATTNSMITH_DL_INT, 32);
    const attnsmith_dl_tensor page_table = tensor(table, 2, table_shape, ATTNSMITH_DL_INT, 32);
    const attnsmith_tensors tensors = {.size = sizeof tensors, .q = &q, .k = &k, .v = &v, .o = &o};
    const attnsmith_batch batch = {.size = sizeof batch, .kv_lens = &kv_lens, .page_table = &page_table};
    check(attnsmith_bind(kernel, &tensors, &batch, NULL, &call, &error), &error);
    check(attnsmith_launch(call, NULL, &error), &error);
    check(attnsmith_synchronize(runtime, NULL, &error), &error);

    check(attnsmith_download(results, ones, Q_BYTES, 0, &error), &error);
    int wrong = 0;
    for (size_t i = 0; i < Q_BYTES / 2; ++i) wrong += ones[i] != one;
    printf("launched; %d results are wrong\n", wrong);

    attnsmith_call_free(call);
    attnsmith_buffer* buffers[] = {queries, results, keys, values, table, lens};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; ++i) attnsmith_buffer_free(buffers[i]);
    attnsmith_kernel_free(kernel);
    attnsmith_runtime_free(runtime);
    free(ones);
    return 0;
}
