#include <attnsmith/attnsmith.h>
#include <stdio.h>
static attnsmith_error* error;
static attnsmith_runtime* runtime;
static attnsmith_kernel* kernel;
static attnsmith_buffer* memory;
static attnsmith_call* call;

int main(void) {
    attnsmith_spec spec = {.size = sizeof spec, .head_dim_qk = 64, .q_heads = 8}; /* bf16, full mask */
    attnsmith_sizes sizes = {.size = sizeof sizes, .batch = 1, .q_len = 256, .kv_len = 256};
    int64_t shape[] = {1, 256, 8, 64}, bytes = 256 * 8 * 64 * 2;
    int failed = attnsmith_runtime_create(NULL, &runtime, &error);
    failed = failed || attnsmith_prepare(runtime, &spec, &sizes, 0, &kernel, &error); /* on device 0 */
    failed = failed || attnsmith_buffer_allocate(runtime, 0, 2 * bytes, &memory, &error);
    void* data = attnsmith_buffer_data(memory); /* q, k and v; behind them o */
    attnsmith_dl_tensor in = {data, {ATTNSMITH_DL_CUDA, 0}, 4, {ATTNSMITH_DL_BFLOAT, 16, 1}, shape, NULL, 0};
    attnsmith_dl_tensor out = in;
    out.byte_offset = bytes;
    attnsmith_tensors tensors = {.size = sizeof tensors, .q = &in, .k = &in, .v = &in, .o = &out};
    failed = failed || attnsmith_bind(kernel, &tensors, NULL, NULL, &call, &error);
    failed = failed || attnsmith_launch(call, NULL, &error);
    failed = failed || attnsmith_synchronize(runtime, NULL, &error);
    return puts(failed ? attnsmith_error_message(error) : "launched and done") < 0 || failed;
}
