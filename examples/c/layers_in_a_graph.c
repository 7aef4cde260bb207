/* A CUDA graph of the attentions of all layers: one call, bound once, is launched at each layer's addresses
 * while a stream is captured. The graph outlives the call, and copies its status to the host each time.
 *
 * The CUDA driver is opened at run time, so that this builds without a CUDA toolkit. A program that has one
 * calls cudaStreamBeginCapture() and its like instead. */
#include <dlfcn.h>
#include <string.h>

#include "example.h"

enum { LAYERS = 3, BATCH = 2, HEADS = 8, HEAD_DIM = 64, KEYS = 128, STEPS = 4 };
enum { Q_VALUES = BATCH * HEADS * HEAD_DIM, KV_VALUES = BATCH * KEYS * HEADS * HEAD_DIM };

/* What is used of the driver. A CUresult is an int; contexts, streams and graphs are pointers. */
static struct {
    int (*init)(unsigned flags);
    int (*retain)(void** context, int device);
    int (*release)(int device);
    int (*push)(void* context);
    int (*pop)(void** context);
    int (*create_stream)(void** stream, unsigned flags);
    int (*destroy_stream)(void* stream);
    int (*begin_capture)(void* stream, int mode);
    int (*end_capture)(void* stream, void** graph);
    int (*instantiate)(void** executable, void* graph, unsigned long long flags);
    int (*launch)(void* executable, void* stream);
    int (*destroy_graph)(void* graph);
    int (*destroy_executable)(void* executable);
    int (*allocate_host)(void** memory, size_t bytes, unsigned flags);
    int (*free_host)(void* memory);
} cuda;

static void find(void* driver, const char* name, void* function) {
    void* const address = driver == NULL ? NULL : dlsym(driver, name);
    if (address == NULL) {
        fprintf(stderr, "the CUDA driver has no %s\n", name);
        exit(1);
    }
    memcpy(function, &address, sizeof address); /* ISO C has no cast from an object to a function */
}

static void open_driver(void) {
    void* const driver = dlopen("libcuda.so.1", RTLD_NOW);
    find(driver, "cuInit", &cuda.init);
    find(driver, "cuDevicePrimaryCtxRetain", &cuda.retain);
    find(driver, "cuDevicePrimaryCtxRelease_v2", &cuda.release);
    find(driver, "cuCtxPushCurrent_v2", &cuda.push);
    find(driver, "cuCtxPopCurrent_v2", &cuda.pop);
    find(driver, "cuStreamCreate", &cuda.create_stream);
    find(driver, "cuStreamDestroy_v2", &cuda.destroy_stream);
    find(driver, "cuStreamBeginCapture_v2", &cuda.begin_capture);
    find(driver, "cuStreamEndCapture", &cuda.end_capture);
    find(driver, "cuGraphInstantiateWithFlags", &cuda.instantiate);
    find(driver, "cuGraphLaunch", &cuda.launch);
    find(driver, "cuGraphDestroy", &cuda.destroy_graph);
    find(driver, "cuGraphExecDestroy", &cuda.destroy_executable);
    find(driver, "cuMemHostAlloc", &cuda.allocate_host);
    find(driver, "cuMemFreeHost", &cuda.free_host);
}

static void check_cuda(int result, const char* what) {
    if (result == 0) return;
    fprintf(stderr, "%s gave %d\n", what, result);
    exit(1);
}

struct layer {
    attnsmith_buffer *keys, *values, *results;
};

/* The graph of all layers. `status` is page-locked memory, which each launch of the graph writes. */
static void* capture(const attnsmith_call* call, const struct layer* layers, uint32_t* status, void* stream) {
    enum { THREAD_LOCAL = 1, NO_FLAGS = 0 };
    attnsmith_error* error = NULL;
    check_cuda(cuda.begin_capture(stream, THREAD_LOCAL), "cuStreamBeginCapture");
    for (int i = 0; i < LAYERS; ++i) { /* an engine's projections and MLPs come between */
        const attnsmith_tensor_addresses at = {.size = sizeof at,
                                               .k = attnsmith_buffer_data(layers[i].keys),
                                               .v = attnsmith_buffer_data(layers[i].values),
                                               .o = attnsmith_buffer_data(layers[i].results)};
        check(attnsmith_call_launch_at(call, &at, stream, &error), &error);
    }
    check(attnsmith_call_copy_status(call, status, stream, &error), &error);
    void *graph = NULL, *executable = NULL;
    check_cuda(cuda.end_capture(stream, &graph), "cuStreamEndCapture");
    check_cuda(cuda.instantiate(&executable, graph, NO_FLAGS), "cuGraphInstantiate");
    check_cuda(cuda.destroy_graph(graph), "cuGraphDestroy");
    return executable;
}

int main(void) {
    enum { NON_BLOCKING = 1, PORTABLE = 1 }; /* CU_STREAM_NON_BLOCKING, CU_MEMHOSTALLOC_PORTABLE */
    attnsmith_error* error = NULL;
    attnsmith_runtime* runtime = NULL;
    attnsmith_kernel* kernel = NULL;
    const attnsmith_spec spec = {.size = sizeof spec, .head_dim_qk = HEAD_DIM, .q_heads = HEADS};
    const attnsmith_sizes sizes = {.size = sizeof sizes, .batch = BATCH, .q_len = 1, .kv_len = KEYS};
    check(attnsmith_runtime_create(NULL, &runtime, &error), &error);
    check(attnsmith_prepare(runtime, &spec, &sizes, ATTNSMITH_CURRENT_DEVICE, &kernel, &error), &error);
    const int device = attnsmith_kernel_device(kernel);

    void *context = NULL, *stream = NULL, *status = NULL;
    open_driver();
    check_cuda(cuda.init(0), "cuInit");
    check_cuda(cuda.retain(&context, device), "cuDevicePrimaryCtxRetain");
    check_cuda(cuda.push(context), "cuCtxPushCurrent");
    check_cuda(cuda.create_stream(&stream, NON_BLOCKING), "cuStreamCreate");
    check_cuda(cuda.allocate_host(&status, sizeof(uint32_t), PORTABLE), "cuMemHostAlloc");

    attnsmith_buffer* const queries = upload_filled(runtime, one_in_bf16, Q_VALUES);
    struct layer layers[LAYERS];
    for (int i = 0; i < LAYERS; ++i) {
        layers[i].keys = upload_filled(runtime, one_in_bf16, KV_VALUES);
        layers[i].values = upload_filled(runtime, one_in_bf16, KV_VALUES);
        layers[i].results = upload_filled(runtime, 0, Q_VALUES);
    }
    int64_t q_shape[] = {BATCH, 1, HEADS, HEAD_DIM}, kv_shape[] = {BATCH, KEYS, HEADS, HEAD_DIM};
    const attnsmith_dl_tensor q = tensor(queries, 4, q_shape, ATTNSMITH_DL_BFLOAT, 16);
    const attnsmith_dl_tensor k = tensor(layers[0].keys, 4, kv_shape, ATTNSMITH_DL_BFLOAT, 16);
    const attnsmith_dl_tensor v = tensor(layers[0].values, 4, kv_shape, ATTNSMITH_DL_BFLOAT, 16);
    const attnsmith_dl_tensor o = tensor(layers[0].results, 4, q_shape, ATTNSMITH_DL_BFLOAT, 16);
    const attnsmith_tensors tensors = {.size = sizeof tensors, .q = &q, .k = &k, .v = &v, .o = &o};
    attnsmith_call* call = NULL;
    attnsmith_kept* kept = NULL;
    char* grids = NULL;
    check(attnsmith_bind(kernel, &tensors, NULL, NULL, &call, &error), &error);
    check(attnsmith_call_describe(call, &grids, &error), &error);
    printf("a launch is %s\n", grids);
    attnsmith_string_free(grids);
    void* const graph = capture(call, layers, status, stream);
    /* The graph uses the call's code and workspace: they are kept, and the call may go. */
    check(attnsmith_call_keep_alive(call, &kept, &error), &error);
    attnsmith_call_free(call);

    int wrong = 0;
    for (int step = 0; step < STEPS; ++step) check_cuda(cuda.launch(graph, stream), "cuGraphLaunch");
    check(attnsmith_synchronize(runtime, stream, &error), &error);
    for (int i = 0; i < LAYERS; ++i) wrong += count_others(layers[i].results, one_in_bf16);
    printf("launched %d graphs of %d layers with status %u; %d results are wrong\n", STEPS, LAYERS,
           (unsigned)*(uint32_t*)status, wrong);

    check_cuda(cuda.destroy_executable(graph), "cuGraphExecDestroy");
    attnsmith_kept_free(kept); /* no graph uses it any more */
    for (int i = 0; i < LAYERS; ++i) {
        attnsmith_buffer_free(layers[i].keys);
        attnsmith_buffer_free(layers[i].values);
        attnsmith_buffer_free(layers[i].results);
    }
    attnsmith_buffer_free(queries);
    attnsmith_kernel_free(kernel);
    attnsmith_runtime_free(runtime);
    check_cuda(cuda.free_host(status), "cuMemFreeHost");
    check_cuda(cuda.destroy_stream(stream), "cuStreamDestroy");
    check_cuda(cuda.pop(&context), "cuCtxPopCurrent");
    check_cuda(cuda.release(device), "cuDevicePrimaryCtxRelease");
    return 0;
}
