/* Decodes one token for each of four sequences over a paged KV cache, through the C ABI:
 * ../cpp/paged_decode.cpp in C. */
#include "example.h"

enum {
    BATCH = 4,
    Q_HEADS = 32,
    KV_HEADS = 8,
    HEAD_DIM = 128,
    PAGE_SIZE = 16,
    PAGES_EACH = 64,
    PAGES = BATCH * PAGES_EACH
};
enum { Q_VALUES = BATCH * Q_HEADS * HEAD_DIM, CACHE_VALUES = PAGES * PAGE_SIZE * KV_HEADS * HEAD_DIM };

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
    int32_t pages[PAGES], lengths[BATCH] = {1000, 17, 1, 512};
    for (int32_t i = 0; i < PAGES; ++i) pages[i] = i; /* sequence b has the pages b * PAGES_EACH and on */
    attnsmith_buffer* queries = upload_filled(runtime, one_in_bf16, Q_VALUES);
    attnsmith_buffer* keys = upload_filled(runtime, one_in_bf16, CACHE_VALUES);
    attnsmith_buffer* values = upload_filled(runtime, one_in_bf16, CACHE_VALUES);
    attnsmith_buffer* results = upload_filled(runtime, 0, Q_VALUES);
    attnsmith_buffer* table = upload(runtime, pages, sizeof pages);
    attnsmith_buffer* lens = upload(runtime, lengths, sizeof lengths);

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
    check(attnsmith_call_synchronize(call, NULL, &error), &error);
    printf("launched; %d results are wrong\n", count_others(results, one_in_bf16));

    attnsmith_call_free(call);
    attnsmith_buffer* buffers[] = {queries, results, keys, values, table, lens};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; ++i) attnsmith_buffer_free(buffers[i]);
    attnsmith_kernel_free(kernel);
    attnsmith_runtime_free(runtime);
    return 0;
}
