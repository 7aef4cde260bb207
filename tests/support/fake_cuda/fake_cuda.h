/* A stub of libcuda.so for tests without a GPU: load it with Api::open(path). Device memory is host memory, a
 * launch is recorded and runs nothing, "synchronous" and "asynchronous" are the same.
 *
 * Environment, read by cuInit: FAKE_CUDA_SM (default 90), FAKE_CUDA_DEVICES (1), FAKE_CUDA_VERSION (13000;
 * read by cuDriverGetVersion), FAKE_CUDA_REFUSE (1: cuLibraryLoadData gives CUDA_ERROR_NO_BINARY_FOR_GPU). A
 * cubin is loaded when its ELF header says an architecture that the device runs; other ELF files always are.
 * Its kernels are whatever is asked for by a name that occurs in the file.
 *
 * Tests reach the state through dlsym(handle, "fake_cuda_get_state"). Counters are atomic; the rest is for
 * one thread. */
#ifndef ATTNSMITH_TESTS_SUPPORT_FAKE_CUDA_H
#define ATTNSMITH_TESTS_SUPPORT_FAKE_CUDA_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { FAKE_CUDA_PARAM_BYTES = 4096 };

struct fake_cuda_launch {
    unsigned grid[3], block[3], shared_bytes;
    const void* function;
    const void* stream;
    const void* context;                            /* where it would have run */
    unsigned char parameter[FAKE_CUDA_PARAM_BYTES]; /* the first param_bytes of the kernel's one parameter */
};

/* What cuTensorMapEncodeTiled writes: its arguments. */
struct fake_cuda_tensor_map {
    uint64_t address, extents[5], strides[4];
    uint32_t box[5], rank, type, interleave, swizzle, promotion, fill;
};

struct fake_cuda_state {
    /* What happened. */
    int inits, library_loads, library_unloads, kernels, materialised, attribute_sets, launches, allocations,
        frees;
    int primary_retains, primary_releases, captures, graph_launches, context_queries;
    size_t bytes_allocated;
    struct fake_cuda_launch last_launch;

    /* What shall happen. */
    size_t param_bytes;    /* of the kernel's parameter; a real driver reads this off the cubin */
    int refuse_next_loads; /* so many loads fail with refuse_code */
    int refuse_code;       /* 0: CUDA_ERROR_NO_BINARY_FOR_GPU */
    int fail_launch;       /* 0, or the CUresult of every launch */
    int fail_alloc;        /* 0, or the CUresult of every allocation */
    unsigned global_u32;   /* the value of every __device__ variable */
};

/* The state, which lives as long as the process. */
struct fake_cuda_state* fake_cuda_get_state(void);
/* A context of a device that is not its primary one, as a caller would make it. Never freed. */
void* fake_cuda_make_context(int device);

#ifdef __cplusplus
}
#endif

#endif
