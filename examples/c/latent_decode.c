/* Decodes over a paged cache of latents, as DeepSeek-V2 and V3 do (op mla): one row of 512 + 64 columns a
 * token is the keys of all query heads, and its first 512 columns are the values. */
#include "example.h"

enum {
    BATCH = 2,
    HEADS = 16,
    CKV = 512,
    KPE = 64,
    PAGE_SIZE = 64,
    PAGES_EACH = 4,
    PAGES = BATCH * PAGES_EACH
};

int main(void) {
    attnsmith_error* error = NULL;
    attnsmith_runtime* runtime = NULL;
    attnsmith_kernel* kernel = NULL;
    attnsmith_call* call = NULL;
    /* The scale follows from head dims of the model that are none of these: here 128 + 64. */
    const attnsmith_spec spec = {.size = sizeof spec,
                                 .op = ATTNSMITH_OP_MLA,
                                 .head_dim_ckv = CKV,
                                 .head_dim_kpe = KPE,
                                 .q_heads = HEADS,
                                 .scale = 0.07216878364870323,
                                 .kv = ATTNSMITH_KV_PAGED,
                                 .page_size = PAGE_SIZE};
    const attnsmith_sizes sizes = {
        .size = sizeof sizes, .batch = BATCH, .q_len = 1, .kv_len = PAGES_EACH * PAGE_SIZE};
    check(attnsmith_runtime_create(NULL, &runtime, &error), &error);
    check(attnsmith_prepare(runtime, &spec, &sizes, ATTNSMITH_CURRENT_DEVICE, &kernel, &error), &error);

    int32_t pages[PAGES], lengths[BATCH] = {200, 33};
    for (int32_t i = 0; i < PAGES; ++i) pages[i] = i;
    attnsmith_buffer* queries = upload_filled(runtime, one_in_bf16, BATCH * HEADS * (CKV + KPE));
    attnsmith_buffer* latents = upload_filled(runtime, one_in_bf16, PAGES * PAGE_SIZE * (CKV + KPE));
    attnsmith_buffer* results = upload_filled(runtime, 0, BATCH * HEADS * CKV);
    attnsmith_buffer* table = upload(runtime, pages, sizeof pages);
    attnsmith_buffer* lens = upload(runtime, lengths, sizeof lengths);
    int64_t q_shape[] = {BATCH, 1, HEADS, CKV + KPE}, k_shape[] = {PAGES, PAGE_SIZE, CKV + KPE};
    int64_t o_shape[] = {BATCH, 1, HEADS, CKV}, table_shape[] = {BATCH, PAGES_EACH}, lens_shape[] = {BATCH};
    const attnsmith_dl_tensor q = tensor(queries, 4, q_shape, ATTNSMITH_DL_BFLOAT, 16);
    const attnsmith_dl_tensor k = tensor(latents, 3, k_shape, ATTNSMITH_DL_BFLOAT, 16);
    const attnsmith_dl_tensor o = tensor(results, 4, o_shape, ATTNSMITH_DL_BFLOAT, 16);
    const attnsmith_dl_tensor page_table = tensor(table, 2, table_shape, ATTNSMITH_DL_INT, 32);
    const attnsmith_dl_tensor kv_lens = tensor(lens, 1, lens_shape, ATTNSMITH_DL_INT, 32);
    /* No v: the values are the first columns of k. */
    const attnsmith_tensors tensors = {.size = sizeof tensors, .q = &q, .k = &k, .o = &o};
    const attnsmith_batch batch = {.size = sizeof batch, .page_table = &page_table, .kv_lens = &kv_lens};
    check(attnsmith_bind(kernel, &tensors, &batch, NULL, &call, &error), &error);
    check(attnsmith_launch(call, NULL, &error), &error);
    check(attnsmith_call_synchronize(call, NULL, &error), &error);
    printf("launched; %d results are wrong\n", count_others(results, one_in_bf16));

    attnsmith_call_free(call);
    attnsmith_buffer* buffers[] = {queries, latents, results, table, lens};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; ++i) attnsmith_buffer_free(buffers[i]);
    attnsmith_kernel_free(kernel);
    attnsmith_runtime_free(runtime);
    return 0;
}
