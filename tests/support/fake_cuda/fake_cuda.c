/* The state, devices and contexts. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "internal.h"

enum { MAX_DEPTH = 64 };

struct fake_cuda_state fake_state;
struct fake_device fake_devices[MAX_DEVICES];
int fake_device_count = 1;
int fake_refuse;

static int ready;
static struct CUctx_st primaries[MAX_DEVICES];
static _Thread_local CUcontext stack[MAX_DEPTH];
static _Thread_local int depth;

EXPORT struct fake_cuda_state* fake_cuda_get_state(void) { return &fake_state; }

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

/* The item of a list such as "90,80" for one of the devices; where the list ends its last one. */
static int item_of(const char* name, int device, int otherwise) {
    const char* text = getenv(name);
    if (text == NULL || *text == '\0') return otherwise;
    for (const char* comma; device > 0 && (comma = strchr(text, ',')) != NULL; --device) text = comma + 1;
    return atoi(text);
}

CUcontext fake_current(void) { return depth > 0 ? stack[depth - 1] : NULL; }

/* ---- Start, errors, devices */

EXPORT CUresult cuInit(unsigned flags) {
    (void)flags;
    COUNT(inits);
    const int fault = from_environment("FAKE_CUDA_INIT", CUDA_SUCCESS);
    if (fault != CUDA_SUCCESS) return (CUresult)fault;
    fake_device_count = from_environment("FAKE_CUDA_DEVICES", 1);
    if (fake_device_count < 1 || fake_device_count > MAX_DEVICES) return CUDA_ERROR_NO_DEVICE;
    const char* const memory = getenv("FAKE_CUDA_MEMORY");
    for (int i = 0; i < MAX_DEVICES; ++i) {
        primaries[i].device = i;
        fake_devices[i].sm = item_of("FAKE_CUDA_SM", i, 90);
        fake_devices[i].sm_count = item_of("FAKE_CUDA_SM_COUNT", i, 132);
        fake_devices[i].memory =
            memory == NULL || *memory == '\0' ? (size_t)80 << 30 : strtoull(memory, NULL, 10);
    }
    fake_refuse = from_environment("FAKE_CUDA_REFUSE", 0);
    ready = 1;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDriverGetVersion(int* version) {
    *version = from_environment("FAKE_CUDA_VERSION", 13000);
    return CUDA_SUCCESS;
}

const struct entry* fake_find(const struct entry* table, size_t count, int key) {
    for (size_t i = 0; i < count; ++i)
        if (table[i].key == key) return &table[i];
    return NULL;
}

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
        NAMED(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED),
        NAMED(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED),
        NAMED(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT),
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
    *count = fake_device_count;
    return ready ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

EXPORT CUresult cuDeviceGet(CUdevice* device, int ordinal) {
    if (ordinal < 0 || ordinal >= fake_device_count) return CUDA_ERROR_INVALID_DEVICE;
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
    *bytes = fake_devices[device].memory;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
    const struct fake_device* const of = &fake_devices[device];
    const struct entry attributes[] = {
        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, "", of->sm / 10},
        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, "", of->sm % 10},
        {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, "", of->sm_count},
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
    if (fake_state.retain_us > 0) usleep((unsigned)fake_state.retain_us);
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
    *context = fake_current();
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
    if (fake_current() == NULL) return CUDA_ERROR_INVALID_CONTEXT;
    *device = fake_current()->device;
    return CUDA_SUCCESS;
}
