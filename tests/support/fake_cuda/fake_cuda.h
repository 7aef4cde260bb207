/* A stub of libcuda.so for tests without a GPU: load it with Api::open(path). Device memory is host memory.
 * It is filled with FAKE_CUDA_GARBAGE when it is allocated and with FAKE_CUDA_FREED before it is freed, so
 * that what nobody wrote does not pass for zeros. A launch is recorded and runs nothing. Copies and fills
 * happen at once, unless the state says `defer`: those that are asynchronous then wait for somebody to
 * synchronise.
 *
 * Environment, read by cuInit: FAKE_CUDA_SM (default 90; "90,80" gives devices their own, the last one also
 * to those that follow), FAKE_CUDA_SM_COUNT (132; likewise), FAKE_CUDA_DEVICES (1), FAKE_CUDA_MEMORY (bytes
 * of each device, default 80 GiB: more cannot be allocated), FAKE_CUDA_VERSION (13000; read by
 * cuDriverGetVersion), FAKE_CUDA_REFUSE (1: cuLibraryLoadData gives CUDA_ERROR_NO_BINARY_FOR_GPU). A cubin is
 * loaded when its ELF header says an architecture that one of the devices runs; other ELF files always are.
 * Its kernels are whatever is asked for by a name that occurs in the file; each is of use on the devices that
 * run the cubin.
 *
 * Captures: what a capturing stream is given goes into its graph, and happens when the graph is launched. As
 * with the real driver, to synchronise a capturing stream, or a context that has one, fails with
 * CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED and loses the capture, and so does an allocation or a use of the
 * default stream, which fail with that code and with CUDA_ERROR_STREAM_CAPTURE_IMPLICIT.
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

enum {
    FAKE_CUDA_PARAM_BYTES = 4096,
    FAKE_CUDA_KEPT_LAUNCHES = 64,
    FAKE_CUDA_GARBAGE = 0xa5,
    FAKE_CUDA_FREED = 0xdd
};

struct fake_cuda_launch {
    unsigned grid[3], block[3], shared_bytes;
    const void* function;
    const void* stream;
    const void* context;                            /* where it would have run */
    unsigned char parameter[FAKE_CUDA_PARAM_BYTES]; /* the kernel's one parameter, as far as it is known */
    size_t parameter_bytes;                         /* as the cubin says; 0: it does not */
    int device;                                     /* that of the context */
    char entry[128];                                /* the kernel's name */
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
    size_t bytes_allocated; /* in all */
    struct fake_cuda_launch last_launch;

    /* What shall happen. */
    size_t param_bytes;    /* of the kernel's parameter, where it is not what the cubin says */
    int refuse_next_loads; /* so many loads fail with refuse_code */
    int refuse_code;       /* 0: CUDA_ERROR_NO_BINARY_FOR_GPU */
    int fail_launch;       /* 0, or the CUresult of every launch */
    int fail_alloc;        /* 0, or the CUresult of every allocation */
    unsigned global_u32;   /* the value of every __device__ variable */
    int defer;             /* 1: what is asynchronous happens when its stream or context is waited for */

    /* What happened, besides. */
    int bad_frees; /* of what is not allocated, or is no longer */
    int lost_captures;
    /* Who waits: for one stream, for the default stream, for all of a context. */
    int stream_waits, default_stream_waits, context_waits;
    int fills, async_fills, uploads, downloads, async_copies;
    int host_allocations, host_frees;
    size_t last_allocation; /* bytes */
    const void* last_wait;  /* the stream of the last of stream_waits */

    /* And what shall, besides. */
    int retain_us; /* microseconds that it takes to retain a primary context: so long do threads meet there */
};

/* The state, which lives as long as the process. */
struct fake_cuda_state* fake_cuda_get_state(void);
/* The launch that made state.launches `number`; of the last FAKE_CUDA_KEPT_LAUNCHES, else NULL. */
const struct fake_cuda_launch* fake_cuda_get_launch(int number);
/* A context of a device that is not its primary one, as a caller would make it. Never freed. */
void* fake_cuda_make_context(int device);

#ifdef __cplusplus
}
#endif

#endif
