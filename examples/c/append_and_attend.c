/* A paged cache of 8-bit keys and values: op append writes new tokens into it, with a scale for each token
 * and head, and attention reads it. Both use one workspace, whose status tells of slots and lengths that are
 * out of range. */
#include "example.h"

enum { TOKENS = 40, Q_HEADS = 8, KV_HEADS = 2, HEAD_DIM = 64, PAGE_SIZE = 16, PAGES = 4 };
enum { Q_VALUES = TOKENS * Q_HEADS * HEAD_DIM, KV_VALUES = TOKENS * KV_HEADS * HEAD_DIM };
enum { CACHE_BYTES = PAGES * PAGE_SIZE * KV_HEADS * HEAD_DIM, SCALES = PAGES * PAGE_SIZE * KV_HEADS };

static attnsmith_error* error;

static attnsmith_kernel* prepare(attnsmith_runtime* runtime, const attnsmith_spec* spec) {
    const attnsmith_sizes sizes = {.size = sizeof sizes, .batch = 1, .q_len = TOKENS, .kv_len = TOKENS};
    attnsmith_kernel* kernel = NULL;
    check(attnsmith_prepare(runtime, spec, &sizes, ATTNSMITH_CURRENT_DEVICE, &kernel, &error), &error);
    return kernel;
}

/* Scratch memory that is large enough for both kernels, cleared once. */
static attnsmith_workspace make_workspace(attnsmith_runtime* runtime, const attnsmith_kernel* const* kernels,
                                          attnsmith_buffer** memory) {
    const attnsmith_workspace_bounds bounds = {
        .size = sizeof bounds, .batch = 1, .q_tokens = TOKENS, .max_kv_len = PAGES * PAGE_SIZE};
    size_t bytes = attnsmith_workspace_zeroed_bytes();
    for (int i = 0; i < 2; ++i) {
        size_t needed = 0;
        check(attnsmith_kernel_workspace_bytes(kernels[i], &bounds, &needed, &error), &error);
        if (needed > bytes) bytes = needed;
    }
    *memory = allocate(runtime, bytes);
    const attnsmith_workspace workspace = {sizeof workspace, attnsmith_buffer_data(*memory), bytes};
    check(attnsmith_workspace_clear(runtime, &workspace, NULL, ATTNSMITH_CURRENT_DEVICE, &error), &error);
    return workspace;
}

int main(void) {
    attnsmith_runtime* runtime = NULL;
    check(attnsmith_runtime_create(NULL, &runtime, &error), &error);
    attnsmith_spec reads = {.size = sizeof reads,
                            .head_dim_qk = HEAD_DIM,
                            .q_heads = Q_HEADS,
                            .kv_heads = KV_HEADS,
                            .mask = ATTNSMITH_MASK_CAUSAL,
                            .kv = ATTNSMITH_KV_PAGED,
                            .page_size = PAGE_SIZE,
                            .kv_dtype = ATTNSMITH_DTYPE_E4M3,
                            .kv_scale = ATTNSMITH_KV_SCALE_TOKEN_HEAD};
    attnsmith_spec writes = reads; /* the cache is the same */
    writes.op = ATTNSMITH_OP_APPEND, writes.mask = ATTNSMITH_MASK_FULL;
    attnsmith_kernel *const reader = prepare(runtime, &reads), *const writer = prepare(runtime, &writes);
    attnsmith_buffer* scratch = NULL;
    const attnsmith_kernel* const kernels[] = {reader, writer};
    const attnsmith_workspace workspace = make_workspace(runtime, kernels, &scratch);

    /* Token i goes to slot i: page i / PAGE_SIZE of the table 0, 1, 2, 3. */
    int64_t slots[TOKENS];
    for (int64_t i = 0; i < TOKENS; ++i) slots[i] = i;
    const int32_t pages[PAGES] = {0, 1, 2, 3}, starts[] = {0, TOKENS}, lengths[] = {TOKENS};
    attnsmith_buffer* buffers[] = {upload_filled(runtime, one_in_bf16, Q_VALUES),
                                   upload_filled(runtime, one_in_bf16, KV_VALUES),
                                   upload_filled(runtime, one_in_bf16, KV_VALUES),
                                   allocate(runtime, CACHE_BYTES),
                                   allocate(runtime, CACHE_BYTES),
                                   allocate(runtime, SCALES * sizeof(float)),
                                   allocate(runtime, SCALES * sizeof(float)),
                                   upload(runtime, slots, sizeof slots),
                                   upload(runtime, pages, sizeof pages),
                                   upload(runtime, starts, sizeof starts),
                                   upload(runtime, lengths, sizeof lengths),
                                   upload_filled(runtime, 0, Q_VALUES)};
    attnsmith_buffer* const results = buffers[11];
    int64_t q_shape[] = {TOKENS, Q_HEADS, HEAD_DIM}, kv_shape[] = {TOKENS, KV_HEADS, HEAD_DIM};
    int64_t cache_shape[] = {PAGES, PAGE_SIZE, KV_HEADS, HEAD_DIM}, slots_shape[] = {TOKENS};
    int64_t table_shape[] = {1, PAGES}, starts_shape[] = {2}, lens_shape[] = {1};
    const attnsmith_dl_tensor q = tensor(buffers[0], 3, q_shape, ATTNSMITH_DL_BFLOAT, 16);
    const attnsmith_dl_tensor k = tensor(buffers[1], 3, kv_shape, ATTNSMITH_DL_BFLOAT, 16);
    const attnsmith_dl_tensor v = tensor(buffers[2], 3, kv_shape, ATTNSMITH_DL_BFLOAT, 16);
    const attnsmith_dl_tensor k_cache = tensor(buffers[3], 4, cache_shape, ATTNSMITH_DL_E4M3FN, 8);
    const attnsmith_dl_tensor v_cache = tensor(buffers[4], 4, cache_shape, ATTNSMITH_DL_E4M3FN, 8);
    const attnsmith_dl_tensor k_scale = tensor(buffers[5], 3, cache_shape, ATTNSMITH_DL_FLOAT, 32);
    const attnsmith_dl_tensor v_scale = tensor(buffers[6], 3, cache_shape, ATTNSMITH_DL_FLOAT, 32);
    const attnsmith_dl_tensor slot_mapping = tensor(buffers[7], 1, slots_shape, ATTNSMITH_DL_INT, 64);
    const attnsmith_dl_tensor page_table = tensor(buffers[8], 2, table_shape, ATTNSMITH_DL_INT, 32);
    const attnsmith_dl_tensor q_indptr = tensor(buffers[9], 1, starts_shape, ATTNSMITH_DL_INT, 32);
    const attnsmith_dl_tensor kv_lens = tensor(buffers[10], 1, lens_shape, ATTNSMITH_DL_INT, 32);
    const attnsmith_dl_tensor o = tensor(results, 3, q_shape, ATTNSMITH_DL_BFLOAT, 16);

    /* The append has tensors that an engine binds once. */
    attnsmith_call* append = NULL;
    const attnsmith_append_tensors written = {.size = sizeof written,
                                              .k = &k,
                                              .v = &v,
                                              .k_cache = &k_cache,
                                              .v_cache = &v_cache,
                                              .k_scale = &k_scale,
                                              .v_scale = &v_scale,
                                              .slot_mapping = &slot_mapping};
    check(attnsmith_bind_append(writer, &written, NULL, &workspace, &append, &error), &error);
    check(attnsmith_launch(append, NULL, &error), &error);
    /* Or both in one, for tensors that are new each time: here the same tokens once more. */
    check(attnsmith_run_append(writer, &written, NULL, &workspace, NULL, &error), &error);

    const attnsmith_tensors read = {.size = sizeof read,
                                    .q = &q,
                                    .k = &k_cache,
                                    .v = &v_cache,
                                    .o = &o,
                                    .k_scale = &k_scale,
                                    .v_scale = &v_scale};
    const attnsmith_batch batch = {.size = sizeof batch,
                                   .q_indptr = &q_indptr,
                                   .kv_lens = &kv_lens,
                                   .page_table = &page_table,
                                   .max_q_len = TOKENS,
                                   .max_kv_len = TOKENS};
    check(attnsmith_run(reader, &read, &batch, &workspace, NULL, &error), &error);

    /* The status is of all that used the workspace; asking for it waits for the stream. */
    uint32_t bits = 0;
    check(attnsmith_call_status(append, NULL, &bits, &error), &error);
    if ((bits & ATTNSMITH_STATUS_SLOT_OUT_OF_RANGE) != 0) fprintf(stderr, "a token has no slot\n");
    check(attnsmith_call_clear_status(append, NULL, &error), &error);
    printf("launched with status %u; %d results are wrong\n", (unsigned)bits,
           count_others(results, one_in_bf16));

    attnsmith_call_free(append);
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; ++i) attnsmith_buffer_free(buffers[i]);
    attnsmith_buffer_free(scratch);
    attnsmith_kernel_free(reader);
    attnsmith_kernel_free(writer);
    attnsmith_runtime_free(runtime);
    return 0;
}
