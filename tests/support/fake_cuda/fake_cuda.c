#include "fake_cuda.h"

#include <cuda.h>
#include <elf.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* <cuda.h> renames this one to a version that drivers before 12.8 lack; the library asks for the old name. */
#undef cuEventElapsedTime

#define EXPORT __attribute__((visibility("default")))
#define COUNT(counter) __atomic_add_fetch(&state.counter, 1, __ATOMIC_RELAXED)

enum { MAX_DEVICES = 8, MAX_DEPTH = 64, SHARED_OPTIN = 232448, SHARED_DEFAULT = 49152 };

struct CUctx_st {
    int device;
};
struct CUstream_st {
    CUcontext context;
    int capturing;
};
struct CUevent_st {
    int recorded;
};
struct CUlib_st {
    unsigned char* image;
    size_t bytes;
};
struct CUkern_st {
    struct CUlib_st* library;
    _Atomic int max_dynamic[MAX_DEVICES];
};
struct CUgraph_st {
    int unused;
};
struct CUgraphExec_st {
    int unused;
};

static struct fake_cuda_state state;
static int sm = 90, devices = 1, refuse = 0, ready = 0;
static struct CUctx_st primaries[MAX_DEVICES];
static _Thread_local CUcontext stack[MAX_DEPTH];
static _Thread_local int depth;
static pthread_mutex_t last_launch_lock = PTHREAD_MUTEX_INITIALIZER;

EXPORT struct fake_cuda_state* fake_cuda_get_state(void) { return &state; }

EXPORT void* fake_cuda_make_context(int device) {
    static struct CUctx_st contexts[MAX_DEPTH];
    static atomic_int next;
    CUcontext context = &contexts[atomic_fetch_add(&next, 1) % MAX_DEPTH];
    context->device = device;
    return context;
}

static int from_environment(const char* name, int otherwise) {
    const char* text = getenv(name);
    return text != NULL && *text != '\0' ? atoi(text) : otherwise;
}

static CUcontext current(void) { return depth > 0 ? stack[depth - 1] : NULL; }

/* ---- Start, errors, devices */

EXPORT CUresult cuInit(unsigned flags) {
    (void)flags;
    COUNT(inits);
    sm = from_environment("FAKE_CUDA_SM", 90);
    devices = from_environment("FAKE_CUDA_DEVICES", 1);
    refuse = from_environment("FAKE_CUDA_REFUSE", 0);
    if (devices < 1 || devices > MAX_DEVICES) return CUDA_ERROR_NO_DEVICE;
    for (int i = 0; i < MAX_DEVICES; ++i) primaries[i].device = i;
    ready = 1;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDriverGetVersion(int* version) {
    *version = from_environment("FAKE_CUDA_VERSION", 13000);
    return CUDA_SUCCESS;
}

struct entry {
    int key;
    const char* name;
    int value;
};

static const struct entry* find(const struct entry* table, size_t count, int key) {
    for (size_t i = 0; i < count; ++i)
        if (table[i].key == key) return &table[i];
    return NULL;
}
#define FIND(table, key) find(table, sizeof(table) / sizeof *(table), key)

EXPORT CUresult cuGetErrorName(CUresult error, const char** name) {
#define NAMED(code) \
    { code, #code, 0 }
    static const struct entry errors[] = {
        NAMED(CUDA_SUCCESS),
        NAMED(CUDA_ERROR_INVALID_VALUE),
        NAMED(CUDA_ERROR_OUT_OF_MEMORY),
        NAMED(CUDA_ERROR_NO_DEVICE),
        NAMED(CUDA_ERROR_INVALID_IMAGE),
        NAMED(CUDA_ERROR_INVALID_CONTEXT),
        NAMED(CUDA_ERROR_NO_BINARY_FOR_GPU),
        NAMED(CUDA_ERROR_NOT_FOUND),
        NAMED(CUDA_ERROR_LAUNCH_FAILED),
    };
    const struct entry* const found = FIND(errors, error);
    *name = found != NULL ? found->name : NULL;
    return found != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuGetErrorString(CUresult error, const char** text) {
    const CUresult result = cuGetErrorName(error, text);
    if (result == CUDA_SUCCESS) *text = "as the fake driver puts it";
    return result;
}

EXPORT CUresult cuDeviceGetCount(int* count) {
    *count = devices;
    return ready ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

EXPORT CUresult cuDeviceGet(CUdevice* device, int ordinal) {
    if (ordinal < 0 || ordinal >= devices) return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetName(char* name, int length, CUdevice device) {
    (void)device;
    strncpy(name, "Fake GPU", (size_t)length - 1);
    name[length - 1] = '\0';
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceTotalMem(size_t* bytes, CUdevice device) {
    (void)device;
    *bytes = (size_t)80 << 30;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
    (void)device;
    const struct entry attributes[] = {
        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, "", sm / 10},
        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, "", sm % 10},
        {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, "", 132},
        {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, "", SHARED_OPTIN},
        {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, "", 233472},
        {CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK, "", 1024},
        {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, "", 65536},
        {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, "", 2048},
        {CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, "", 32},
        {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, "", 50 << 20},
    };
    const struct entry* const found = FIND(attributes, (int)attribute);
    if (found == NULL) return CUDA_ERROR_INVALID_VALUE;
    *value = found->value;
    return CUDA_SUCCESS;
}

/* ---- Contexts */

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
    COUNT(primary_retains);
    *context = &primaries[device];
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
    (void)device;
    COUNT(primary_releases);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetCurrent(CUcontext* context) {
    COUNT(context_queries);
    *context = current();
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxPushCurrent(CUcontext context) {
    if (context == NULL || depth == MAX_DEPTH) return CUDA_ERROR_INVALID_CONTEXT;
    stack[depth++] = context;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxPopCurrent(CUcontext* context) {
    if (depth == 0) return CUDA_ERROR_INVALID_CONTEXT;
    *context = stack[--depth];
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetDevice(CUdevice* device) {
    if (current() == NULL) return CUDA_ERROR_INVALID_CONTEXT;
    *device = current()->device;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSynchronize(void) {
    return current() == NULL ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}

/* ---- Machine code */

/* Where the file's header tables end: NVRTC puts them behind all else. */
static size_t image_bytes(const void* image) {
    Elf64_Ehdr header;
    memcpy(&header, image, sizeof header);
    const size_t sections = header.e_shoff + (size_t)header.e_shnum * header.e_shentsize;
    const size_t segments = header.e_phoff + (size_t)header.e_phnum * header.e_phentsize;
    const size_t end = sections > segments ? sections : segments;
    return end > sizeof header ? end : sizeof header;
}

/* A cubin runs on the same major architecture with the same or a newer minor one. */
static int runs_here(const void* image) {
    Elf64_Ehdr header;
    memcpy(&header, image, sizeof header);
    if (header.e_machine != 190) return 1;
    const int target = (int)(header.e_ident[EI_OSABI] == 0x33 ? header.e_flags : header.e_flags >> 8) & 0xff;
    return target / 10 == sm / 10 && target <= sm;
}

EXPORT CUresult cuLibraryLoadData(CUlibrary* library, const void* code, CUjit_option* options, void** values,
                                  unsigned count, CUlibraryOption* library_options, void** library_values,
                                  unsigned library_count) {
    (void)options, (void)values, (void)count, (void)library_options, (void)library_values,
        (void)library_count;
    COUNT(library_loads);
    if (memcmp(code, ELFMAG, SELFMAG) != 0) return CUDA_ERROR_INVALID_IMAGE;
    if (refuse != 0) return CUDA_ERROR_NO_BINARY_FOR_GPU;
    if (state.refuse_next_loads > 0) {
        --state.refuse_next_loads;
        return state.refuse_code != 0 ? (CUresult)state.refuse_code : CUDA_ERROR_NO_BINARY_FOR_GPU;
    }
    if (!runs_here(code)) return CUDA_ERROR_NO_BINARY_FOR_GPU;
    *library = malloc(sizeof **library);
    (*library)->bytes = image_bytes(code);
    (*library)->image = malloc((*library)->bytes);
    memcpy((*library)->image, code, (*library)->bytes);
    return CUDA_SUCCESS;
}

/* Kernels of the library are leaked: a use after this is caught by nothing better. */
EXPORT CUresult cuLibraryUnload(CUlibrary library) {
    COUNT(library_unloads);
    free(library->image);
    free(library);
    return CUDA_SUCCESS;
}

static int has_name(CUlibrary library, const char* name) {
    const size_t length = strlen(name) + 1;
    for (size_t i = 0; i + length <= library->bytes; ++i)
        if (memcmp(library->image + i, name, length) == 0) return 1;
    return 0;
}

EXPORT CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char* name) {
    static struct CUkern_st kernels[4096];
    static atomic_int next;
    if (!has_name(library, name)) return CUDA_ERROR_NOT_FOUND;
    COUNT(kernels);
    *kernel = &kernels[atomic_fetch_add(&next, 1) % 4096];
    (*kernel)->library = library;
    for (int i = 0; i < MAX_DEVICES; ++i) (*kernel)->max_dynamic[i] = SHARED_DEFAULT;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuLibraryGetGlobal(CUdeviceptr* address, size_t* bytes, CUlibrary library, const char* name) {
    if (current() == NULL) return CUDA_ERROR_INVALID_CONTEXT;
    if (!has_name(library, name)) return CUDA_ERROR_NOT_FOUND;
    *address = (CUdeviceptr)&state.global_u32;
    *bytes = sizeof state.global_u32;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
    if (current() == NULL) return CUDA_ERROR_INVALID_CONTEXT;
    COUNT(materialised);
    *function = (CUfunction)kernel;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuKernelGetAttribute(int* value, CUfunction_attribute attribute, CUkernel kernel,
                                     CUdevice device) {
    const struct entry attributes[] = {
        {CU_FUNC_ATTRIBUTE_NUM_REGS, "", 128},
        {CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, "", 0},
        {CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, "", 0},
        {CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, "", kernel->max_dynamic[device]},
        {CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, "", 1024},
    };
    const struct entry* const found = FIND(attributes, (int)attribute);
    if (found == NULL) return CUDA_ERROR_INVALID_VALUE;
    *value = found->value;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel kernel,
                                     CUdevice device) {
    COUNT(attribute_sets);
    if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES || value < 0 || value > SHARED_OPTIN)
        return CUDA_ERROR_INVALID_VALUE;
    kernel->max_dynamic[device] = value;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction function, int threads,
                                                            size_t shared_bytes) {
    (void)function;
    const int by_threads = 2048 / threads;
    const int by_shared = (int)(233472 / (shared_bytes + 1024));
    *blocks = by_threads < by_shared ? by_threads : by_shared;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** parameters,
                                 void** extra) {
    (void)extra;
    const CUkernel kernel = (CUkernel)function;
    const CUcontext context = config->hStream != NULL ? config->hStream->context : current();
    if (context == NULL) return CUDA_ERROR_INVALID_CONTEXT;
    if (state.fail_launch != 0) return (CUresult)state.fail_launch;
    if (config->gridDimX == 0 || config->gridDimY == 0 || config->gridDimZ == 0 || config->blockDimX == 0 ||
        (int)config->sharedMemBytes > kernel->max_dynamic[context->device])
        return CUDA_ERROR_INVALID_VALUE;
    COUNT(launches);
    pthread_mutex_lock(&last_launch_lock);
    if (state.param_bytes > 0) memcpy(state.last_launch.parameter, parameters[0], state.param_bytes);
    struct fake_cuda_launch* const last = &state.last_launch;
    last->grid[0] = config->gridDimX, last->grid[1] = config->gridDimY, last->grid[2] = config->gridDimZ;
    last->block[0] = config->blockDimX, last->block[1] = config->blockDimY,
    last->block[2] = config->blockDimZ;
    last->shared_bytes = config->sharedMemBytes;
    last->function = function, last->stream = config->hStream, last->context = context;
    pthread_mutex_unlock(&last_launch_lock);
    return CUDA_SUCCESS;
}

/* ---- Tensor maps */

_Static_assert(sizeof(struct fake_cuda_tensor_map) <= sizeof(CUtensorMap), "a map holds its record");

EXPORT CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank,
                                       void* address, const cuuint64_t* extents, const cuuint64_t* strides,
                                       const cuuint32_t* box, const cuuint32_t* element_strides,
                                       CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                       CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
    struct fake_cuda_tensor_map record = {.address = (uint64_t)address,
                                          .rank = rank,
                                          .type = type,
                                          .interleave = interleave,
                                          .swizzle = swizzle,
                                          .promotion = promotion,
                                          .fill = fill};
    if (current() == NULL) return CUDA_ERROR_INVALID_CONTEXT;
    if (rank < 1 || rank > 5 || address == NULL || (uint64_t)address % 16 != 0 || (uint64_t)map % 64 != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (type != CU_TENSOR_MAP_DATA_TYPE_FLOAT16 && type != CU_TENSOR_MAP_DATA_TYPE_BFLOAT16)
        return CUDA_ERROR_INVALID_VALUE;
    if (swizzle == CU_TENSOR_MAP_SWIZZLE_128B && box[0] * 2 > 128) return CUDA_ERROR_INVALID_VALUE;
    if (box[0] * 2 % 16 != 0) return CUDA_ERROR_INVALID_VALUE;
    for (cuuint32_t axis = 0; axis < rank; ++axis) {
        if (extents[axis] < 1 || extents[axis] > (uint64_t)1 << 32 || box[axis] < 1 || box[axis] > 256 ||
            element_strides[axis] < 1 || element_strides[axis] > 8)
            return CUDA_ERROR_INVALID_VALUE;
        if (axis > 0 && (strides[axis - 1] % 16 != 0 || strides[axis - 1] >= (uint64_t)1 << 40))
            return CUDA_ERROR_INVALID_VALUE;
        record.extents[axis] = extents[axis];
        record.box[axis] = box[axis];
        if (axis > 0) record.strides[axis - 1] = strides[axis - 1];
    }
    memcpy(map, &record, sizeof record);
    return CUDA_SUCCESS;
}

/* ---- Memory */

EXPORT CUresult cuMemAlloc(CUdeviceptr* address, size_t bytes) {
    if (current() == NULL) return CUDA_ERROR_INVALID_CONTEXT;
    if (state.fail_alloc != 0) return (CUresult)state.fail_alloc;
    void* memory = aligned_alloc(256, (bytes + 255) / 256 * 256);
    if (memory == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    COUNT(allocations);
    __atomic_add_fetch(&state.bytes_allocated, bytes, __ATOMIC_RELAXED);
    *address = (CUdeviceptr)memory;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemFree(CUdeviceptr address) {
    COUNT(frees);
    free((void*)address);
    return CUDA_SUCCESS;
}

static CUresult copy(void* to, const void* from, size_t bytes, int needs_context) {
    if (needs_context && current() == NULL) return CUDA_ERROR_INVALID_CONTEXT;
    memcpy(to, from, bytes);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemcpyHtoD(CUdeviceptr to, const void* from, size_t n) {
    return copy((void*)to, from, n, 1);
}
EXPORT CUresult cuMemcpyDtoH(void* to, CUdeviceptr from, size_t n) {
    return copy(to, (const void*)from, n, 1);
}
EXPORT CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t n, CUstream stream) {
    return copy((void*)to, (const void*)from, n, stream == NULL);
}

EXPORT CUresult cuMemsetD8(CUdeviceptr address, unsigned char value, size_t bytes) {
    if (current() == NULL) return CUDA_ERROR_INVALID_CONTEXT;
    memset((void*)address, value, bytes);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemsetD8Async(CUdeviceptr address, unsigned char value, size_t bytes, CUstream stream) {
    if (stream == NULL && current() == NULL) return CUDA_ERROR_INVALID_CONTEXT;
    memset((void*)address, value, bytes);
    return CUDA_SUCCESS;
}

/* ---- Streams, graphs, events */

EXPORT CUresult cuStreamCreate(CUstream* stream, unsigned flags) {
    (void)flags;
    if (current() == NULL) return CUDA_ERROR_INVALID_CONTEXT;
    *stream = calloc(1, sizeof **stream);
    (*stream)->context = current();
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamDestroy(CUstream stream) {
    free(stream);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamSynchronize(CUstream stream) {
    return stream == NULL && current() == NULL ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}

EXPORT CUresult cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode mode) {
    (void)mode;
    if (stream == NULL || stream->capturing) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    COUNT(captures);
    stream->capturing = 1;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) {
    if (!stream->capturing) return CUDA_ERROR_ILLEGAL_STATE;
    stream->capturing = 0;
    *graph = calloc(1, sizeof **graph);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec* exec, CUgraph graph, unsigned long long flags) {
    (void)graph, (void)flags;
    *exec = calloc(1, sizeof **exec);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphDestroy(CUgraph graph) {
    free(graph);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) {
    (void)exec, (void)stream;
    COUNT(graph_launches);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphExecDestroy(CUgraphExec exec) {
    free(exec);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventCreate(CUevent* event, unsigned flags) {
    (void)flags;
    *event = calloc(1, sizeof **event);
    return current() == NULL ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}

EXPORT CUresult cuEventDestroy(CUevent event) {
    free(event);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventRecord(CUevent event, CUstream stream) {
    (void)stream;
    event->recorded = 1;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventSynchronize(CUevent event) {
    (void)event;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
    *milliseconds = 1.0f;
    return start->recorded && end->recorded ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}
