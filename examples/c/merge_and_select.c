/* Two ops around attention. merge joins what attention gave over two sets of the same queries' keys, such as
 * a shared prompt's and a sequence's own. top_k selects the keys with the largest scores of each query, as
 * indexers of sparse attention do. */
#include "example.h"

enum { TOKENS = 16, HEADS = 8, HEAD_DIM = 64, VALUES = TOKENS * HEADS * HEAD_DIM };
enum { ROWS = 4, COLUMNS = 1000, SELECTED = 8 };

static attnsmith_error* error;

static attnsmith_kernel* prepare(attnsmith_runtime* runtime, const attnsmith_spec* spec,
                                 const attnsmith_sizes* sizes) {
    attnsmith_kernel* kernel = NULL;
    check(attnsmith_prepare(runtime, spec, sizes, ATTNSMITH_CURRENT_DEVICE, &kernel, &error), &error);
    return kernel;
}

static void merge(attnsmith_runtime* runtime) {
    const attnsmith_spec spec = {
        .size = sizeof spec, .op = ATTNSMITH_OP_MERGE, .head_dim_vo = HEAD_DIM, .q_heads = HEADS, .lse = 1};
    const attnsmith_sizes sizes = {.size = sizeof sizes, .q_len = TOKENS};
    attnsmith_kernel* const kernel = prepare(runtime, &spec, &sizes);
    /* Both states are ones with an lse of 0, and so is their merge, with an lse of log 2. */
    const float zeros[TOKENS * HEADS] = {0};
    attnsmith_buffer* buffers[] = {
        upload_filled(runtime, one_in_bf16, VALUES), upload_filled(runtime, one_in_bf16, VALUES),
        upload(runtime, zeros, sizeof zeros),        upload(runtime, zeros, sizeof zeros),
        upload_filled(runtime, 0, VALUES),           allocate(runtime, sizeof zeros)};
    int64_t o_shape[] = {TOKENS, HEADS, HEAD_DIM}, lse_shape[] = {TOKENS, HEADS};
    attnsmith_dl_tensor o[2], lse[2];
    for (int i = 0; i < 2; ++i) {
        o[i] = tensor(buffers[i], 3, o_shape, ATTNSMITH_DL_BFLOAT, 16);
        lse[i] = tensor(buffers[2 + i], 2, lse_shape, ATTNSMITH_DL_FLOAT, 32);
    }
    const attnsmith_dl_tensor merged = tensor(buffers[4], 3, o_shape, ATTNSMITH_DL_BFLOAT, 16);
    const attnsmith_dl_tensor merged_lse = tensor(buffers[5], 2, lse_shape, ATTNSMITH_DL_FLOAT, 32);
    const attnsmith_dl_tensor *const o_states[] = {&o[0], &o[1]}, *const lse_states[] = {&lse[0], &lse[1]};
    attnsmith_merge_tensors tensors = {.size = sizeof tensors,
                                       .state_count = 2,
                                       .o_states = o_states,
                                       .lse_states = lse_states,
                                       .o = &merged,
                                       .lse = &merged_lse};
    attnsmith_call* call = NULL;
    check(attnsmith_bind_merge(kernel, &tensors, NULL, NULL, &call, &error), &error);
    check(attnsmith_launch(call, NULL, &error), &error);
    check(attnsmith_call_synchronize(call, NULL, &error), &error);
    printf("merged; %d results are wrong\n", count_others(buffers[4], one_in_bf16));

    /* In place: a result may be the very tensor that one of the states is. */
    tensors.o = &o[0], tensors.lse = &lse[0];
    check(attnsmith_run_merge(kernel, &tensors, NULL, NULL, NULL, &error), &error);
    check(attnsmith_synchronize(runtime, NULL, &error), &error);

    attnsmith_call_free(call);
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; ++i) attnsmith_buffer_free(buffers[i]);
    attnsmith_kernel_free(kernel);
}

static void select_columns(attnsmith_runtime* runtime) {
    const attnsmith_spec spec = {.size = sizeof spec, .op = ATTNSMITH_OP_TOP_K};
    const attnsmith_sizes sizes = {.size = sizeof sizes, .q_len = ROWS, .kv_len = COLUMNS};
    attnsmith_kernel* const kernel = prepare(runtime, &spec, &sizes);
    /* Scores grow with the columns: the last ones of each row are selected. Row i ends at column 100 * (i +
     * 1). */
    static float scores[ROWS][COLUMNS];
    int32_t ends[ROWS], selected[ROWS][SELECTED] = {{0}};
    for (int row = 0; row < ROWS; ++row) {
        ends[row] = 100 * (row + 1);
        for (int column = 0; column < COLUMNS; ++column) scores[row][column] = (float)column;
    }
    attnsmith_buffer* buffers[] = {upload(runtime, scores, sizeof scores), upload(runtime, ends, sizeof ends),
                                   upload(runtime, selected, sizeof selected)};
    int64_t scores_shape[] = {ROWS, COLUMNS}, ends_shape[] = {ROWS}, indices_shape[] = {ROWS, SELECTED};
    const attnsmith_dl_tensor given = tensor(buffers[0], 2, scores_shape, ATTNSMITH_DL_FLOAT, 32);
    const attnsmith_dl_tensor row_ends = tensor(buffers[1], 1, ends_shape, ATTNSMITH_DL_INT, 32);
    const attnsmith_dl_tensor indices = tensor(buffers[2], 2, indices_shape, ATTNSMITH_DL_INT, 32);
    const attnsmith_top_k_tensors tensors = {
        .size = sizeof tensors, .scores = &given, .row_ends = &row_ends, .indices = &indices};
    attnsmith_call* call = NULL;
    check(attnsmith_bind_top_k(kernel, &tensors, NULL, NULL, &call, &error), &error);
    check(attnsmith_launch(call, NULL, &error), &error);
    check(attnsmith_call_synchronize(call, NULL, &error), &error);
    check(attnsmith_buffer_download(buffers[2], selected, sizeof selected, 0, &error), &error);
    int wrong = 0;
    for (int row = 0; row < ROWS; ++row)
        for (int i = 0; i < SELECTED; ++i) wrong += selected[row][i] != ends[row] - SELECTED + i;
    printf("selected; %d results are wrong\n", wrong);

    /* For tensors that are new each time: with a workspace of the program's, and nothing is allocated. */
    const size_t bytes = attnsmith_workspace_zeroed_bytes(); /* all that op top_k needs */
    attnsmith_buffer* const memory = allocate(runtime, bytes);
    const attnsmith_workspace workspace = {sizeof workspace, attnsmith_buffer_data(memory), bytes};
    check(attnsmith_workspace_clear(runtime, &workspace, NULL, ATTNSMITH_CURRENT_DEVICE, &error), &error);
    check(attnsmith_run_top_k(kernel, &tensors, NULL, &workspace, NULL, &error), &error);
    check(attnsmith_synchronize(runtime, NULL, &error), &error);

    attnsmith_call_free(call);
    attnsmith_buffer_free(memory);
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; ++i) attnsmith_buffer_free(buffers[i]);
    attnsmith_kernel_free(kernel);
}

int main(void) {
    attnsmith_runtime* runtime = NULL;
    check(attnsmith_runtime_create(NULL, &runtime, &error), &error);
    merge(runtime);
    select_columns(runtime);
    attnsmith_runtime_free(runtime);
    return 0;
}
