/* What the Python package gives to the kernels, and what they offer it. Its mirror is in
 * attnsmith/_torch_kernels.py. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "attnsmith/attnsmith.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Addresses. cuda_library and is_capturing may be NULL, where tensors lie in the host's memory (tests). */
typedef struct attnsmith_torch_functions {
    size_t size;
    void* torch_library; /* from dlopen: libtorch_cpu.so, which has what libtorch.hpp declares */
    void* cuda_library;  /* libtorch_cuda.so */
    /* attnsmith_bind, attnsmith_launch_at, attnsmith_call_free and attnsmith_error_free. */
    attnsmith_code (*bind)(const attnsmith_kernel*, const attnsmith_tensors*, const attnsmith_batch*,
                           const attnsmith_workspace*, attnsmith_call**, attnsmith_error**);
    attnsmith_code (*launch_at)(const attnsmith_call*, const attnsmith_tensor_addresses*, void* stream,
                                attnsmith_error**);
    void (*call_free)(attnsmith_call*);
    void (*error_free)(attnsmith_error*);
    int (*is_capturing)(void* stream, int* status); /* cuStreamIsCapturing of the CUDA driver */
    /* Of Python. */
    void (*increment)(void*);
    void (*decrement)(void*);
    int (*lock)(void); /* PyGILState_Ensure */
    void (*unlock)(int);
} attnsmith_torch_functions;

/* All that calls of one layout share: the arguments of attnsmith_run without pointers, copied, and what is
 * made for the caller. */
typedef struct attnsmith_torch_recipe {
    size_t size;
    const attnsmith_kernel* kernel; /* the package keeps it until attnsmith_torch_forget() */
    const attnsmith_tensors* tensors;
    const attnsmith_batch* batch;
    size_t workspace_bytes;
    size_t out_rank, lse_rank;
    const int64_t *out_shape, *out_strides; /* elements; of q's dtype */
    const int64_t* lse_shape;               /* row-major fp32; without axes where there is none */
} attnsmith_torch_recipe;

/* NULL, or the name of what is missing. Once, before all else. */
ATTNSMITH_API const char* attnsmith_torch_open(const attnsmith_torch_functions* functions);

/* Puts the kernels in the place of torch's for a dispatch key, "CUDA". A call that they do not serve goes to
 * the operator of the same name in the namespace attnsmith, which has the same schema. 0 where torch refuses.
 */
ATTNSMITH_API int32_t attnsmith_torch_activate(const char* dispatch_key);
ATTNSMITH_API void attnsmith_torch_deactivate(void);

/* In such an operator, by the thread that called it: what the next calls of this layout need. */
ATTNSMITH_API void attnsmith_torch_learn(const attnsmith_torch_recipe* recipe);
/* The scratch memory of a GPU and stream, whose first bytes are zero. The package keeps it until it gives
 * another or calls attnsmith_torch_forget(). */
ATTNSMITH_API void attnsmith_torch_set_workspace(int32_t device, void* stream, void* data, size_t bytes);
/* Forgets recipes and workspaces. When it returns, no launch uses them any more. */
ATTNSMITH_API void attnsmith_torch_forget(void);

/* In such an operator: it failed with this exception (three objects of Python), which the caller gets. */
ATTNSMITH_API void attnsmith_torch_fail(void* type, void* value, void* traceback);

/* Calls that were served so far by the kernel of an operator: 0 _scaled_dot_product_flash_attention, 1
 * _flash_attention_forward, 2 _scaled_dot_product_cudnn_attention. */
ATTNSMITH_API uint64_t attnsmith_torch_served(int32_t number);

#ifdef __cplusplus
}
#endif
