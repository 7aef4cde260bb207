/* Memory: allocations with their bounds, copies and fills. */
#include <stdlib.h>
#include <string.h>

#include "internal.h"

/* Stands before each allocation, at a distance that keeps the alignment. */
struct block {
    size_t bytes;
    int device;
    struct block* next;
};

enum { BLOCK_BYTES = 256 };
/* No test looks further into memory that it has not written. */
static const size_t POISONED = (size_t)64 << 20;

static pthread_mutex_t blocks_lock = PTHREAD_MUTEX_INITIALIZER;
static struct block* blocks;

static void poison(void* memory, size_t bytes, int value) {
    memset(memory, value, bytes < POISONED ? bytes : POISONED);
}

EXPORT CUresult cuMemAlloc(CUdeviceptr* address, size_t bytes) {
    const CUcontext context = fake_current();
    if (context == NULL) return CUDA_ERROR_INVALID_CONTEXT;
    if (fake_lose_captures(context, FAKE_BY_ANY_THREAD)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (fake_state.fail_alloc != 0) return (CUresult)fake_state.fail_alloc;
    if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    struct fake_device* const device = &fake_devices[context->device];
    pthread_mutex_lock(&blocks_lock);
    struct block* block = NULL;
    if (bytes <= device->memory - device->in_use)
        block =
            aligned_alloc(BLOCK_BYTES, BLOCK_BYTES + (bytes + BLOCK_BYTES - 1) / BLOCK_BYTES * BLOCK_BYTES);
    if (block != NULL) {
        *block = (struct block){.bytes = bytes, .device = context->device, .next = blocks};
        blocks = block;
        device->in_use += bytes;
        fake_state.bytes_allocated += bytes;
        fake_state.last_allocation = bytes;
    }
    pthread_mutex_unlock(&blocks_lock);
    if (block == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    COUNT(allocations);
    unsigned char* const memory = (unsigned char*)block + BLOCK_BYTES;
    poison(memory, bytes, FAKE_CUDA_GARBAGE);
    *address = (CUdeviceptr)memory;
    return CUDA_SUCCESS;
}

/* Waits for the device, as the real one does. */
EXPORT CUresult cuMemFree(CUdeviceptr address) {
    if (fake_current() != NULL && fake_lose_captures(fake_current(), FAKE_BY_ANY_THREAD))
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    pthread_mutex_lock(&blocks_lock);
    struct block** at = &blocks;
    while (*at != NULL && (CUdeviceptr)*at + BLOCK_BYTES != address) at = &(*at)->next;
    struct block* const block = *at;
    if (block != NULL) {
        *at = block->next;
        fake_devices[block->device].in_use -= block->bytes;
    }
    pthread_mutex_unlock(&blocks_lock);
    if (block == NULL) {
        COUNT(bad_frees);
        return CUDA_ERROR_INVALID_VALUE;
    }
    COUNT(frees);
    fake_finish_device(block->device);
    poison((unsigned char*)block + BLOCK_BYTES, block->bytes, FAKE_CUDA_FREED);
    free(block);
    return CUDA_SUCCESS;
}

/* In the default stream; copies and fills of the host's own pace wait for what that was given before. */
static CUresult at_once(struct operation operation, int waits) {
    const CUcontext context = fake_current();
    if (context == NULL) return CUDA_ERROR_INVALID_CONTEXT;
    if (fake_lose_captures(context, FAKE_BY_DEFAULT_STREAM)) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    fake_enqueue(context, NULL, operation);
    if (waits) fake_finish(&context->pending);
    return CUDA_SUCCESS;
}

static CUresult in_stream(CUstream stream, struct operation operation) {
    if (stream == NULL) return at_once(operation, 0);
    fake_enqueue(stream->context, stream, operation);
    return CUDA_SUCCESS;
}

static struct operation copy(void* to, const void* from, size_t bytes) {
    return (struct operation){.to = to, .from = from, .bytes = bytes};
}

static struct operation fill(CUdeviceptr to, unsigned char value, size_t bytes) {
    return (struct operation){.to = (void*)to, .value = value, .bytes = bytes};
}

EXPORT CUresult cuMemcpyHtoD(CUdeviceptr to, const void* from, size_t n) {
    COUNT(uploads);
    return at_once(copy((void*)to, from, n), 1);
}

EXPORT CUresult cuMemcpyDtoH(void* to, CUdeviceptr from, size_t n) {
    COUNT(downloads);
    return at_once(copy(to, (const void*)from, n), 1);
}

EXPORT CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t n, CUstream stream) {
    COUNT(async_copies);
    return in_stream(stream, copy((void*)to, (const void*)from, n));
}

/* Between whatever memory. */
EXPORT CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t n, CUstream stream) {
    COUNT(async_copies);
    return in_stream(stream, copy((void*)to, (const void*)from, n));
}

EXPORT CUresult cuMemHostAlloc(void** memory, size_t bytes, unsigned flags) {
    const CUcontext context = fake_current();
    if (context == NULL) return CUDA_ERROR_INVALID_CONTEXT;
    if (fake_lose_captures(context, FAKE_BY_ANY_THREAD)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (flags != CU_MEMHOSTALLOC_PORTABLE) return CUDA_ERROR_INVALID_VALUE;
    COUNT(host_allocations);
    *memory = malloc(bytes);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemFreeHost(void* memory) {
    const CUcontext context = fake_current();
    if (context == NULL) return CUDA_ERROR_INVALID_CONTEXT;
    if (fake_lose_captures(context, FAKE_BY_ANY_THREAD)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    COUNT(host_frees);
    fake_finish_device(context->device);
    free(memory);
    return CUDA_SUCCESS;
}

/* Does not wait, as the real one on device memory. */
EXPORT CUresult cuMemsetD8(CUdeviceptr address, unsigned char value, size_t bytes) {
    COUNT(fills);
    return at_once(fill(address, value, bytes), 0);
}

EXPORT CUresult cuMemsetD8Async(CUdeviceptr address, unsigned char value, size_t bytes, CUstream stream) {
    COUNT(async_fills);
    return in_stream(stream, fill(address, value, bytes));
}
