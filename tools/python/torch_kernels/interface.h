/* What the Python package gives to the kernels, and what they offer it. Its mirror is in
 * attnsmith/_operators/torch_kernels.py. */
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
    /* attnsmith_bind, attnsmith_call_launch_at, attnsmith_call_free and attnsmith_error_free. */
    attnsmith_code (*bind)(const attnsmith_kernel*, const attnsmith_tensors*, const attnsmith_batch*,
                           const attnsmith_workspace*, attnsmith_call**,
                           attnsmith_error**) ATTNSMITH_NOEXCEPT;
    attnsmith_code (*launch_at)(const attnsmith_call*, const attnsmith_tensor_addresses*, void* stream,
                                attnsmith_error**) ATTNSMITH_NOEXCEPT;
    void (*call_free)(attnsmith_call*) ATTNSMITH_NOEXCEPT;
    void (*error_free)(attnsmith_error*) ATTNSMITH_NOEXCEPT;
    int (*is_capturing)(void* stream, int* status); /* cuStreamIsCapturing of the CUDA driver */
    /* Of Python. */
    void (*increment)(void*);
    void (*decrement)(void*);
    int (*lock)(void); /* PyGILState_Ensure */
    void (*unlock)(int);
    void* (*call)(void* function, void* end);                   /* PyObject_CallFunctionObjArgs, with NULL */
    void (*fetch)(void** type, void** value, void** traceback); /* PyErr_Fetch */
    void* is_ready; /* a function of Python, called before those of the package, so that an interrupt or a
                       lack of stack comes there: torch could not take either from within the operator */
} attnsmith_torch_functions;

/* What the kernel of an operator does with one of its arguments. */
enum {
    ATTNSMITH_TORCH_NUMBER = 0, /* a number or a bool that the layout has */
    ATTNSMITH_TORCH_TENSOR = 1, /* of `field`: a number of python/fields.hpp */
    ATTNSMITH_TORCH_STRING = 2, /* a word that the layout has */
    ATTNSMITH_TORCH_MASK = 3,   /* a tensor with which the call is one of torch's own kernel by cuDNN */
    ATTNSMITH_TORCH_OTHER = 4   /* a tensor that is handed on */
};
/* torch's own kernel that an operator's calls go to, past the dispatcher. */
enum {
    ATTNSMITH_TORCH_NONE = 0,
    ATTNSMITH_TORCH_CUDNN = 1,         /* _scaled_dot_product_cudnn_attention: those with a mask */
    ATTNSMITH_TORCH_CUDNN_BACKWARD = 2 /* its backward: all, with a gradient of o that has the strides of o */
};
typedef struct attnsmith_torch_argument {
    int32_t kind, is_optional, field;
} attnsmith_torch_argument;

/* An operator, "space::name". A call that its kernel does not serve goes to the operator `other`, which the
 * package has in Python, with the same arguments, but ints in the place of words, the addresses of their text
 * or 0 for none, and with those results that are tensors.
 *
 * results: a letter each. o, lse of l (undefined where a recipe has none), u an undefined tensor, q and k the
 * lengths of these ([batch, heads, tokens, head_dim]), and what dropout would need: s and i scalars of uint64
 * and int64, S two numbers of uint64, e an empty tensor of q's dtype. */
typedef struct attnsmith_torch_operator {
    size_t size;
    const char *space, *name, *other;
    const attnsmith_torch_argument* arguments;
    size_t argument_count;
    const char* results;
    int32_t refuses_gradients; /* in grad mode its calls are Python's, which looks at the tensors */
    int32_t own;               /* ATTNSMITH_TORCH_NONE and so on */
} attnsmith_torch_operator;

/* All that calls of one layout share: the arguments of attnsmith_run, copied, and what is made for the
 * caller. Pointers are those of the call that teaches, by which what is its own is told from what Python
 * made. */
typedef struct attnsmith_torch_recipe {
    size_t size;
    const attnsmith_kernel* kernel; /* the package keeps it until attnsmith_torch_forget() */
    const attnsmith_tensors* tensors;
    const attnsmith_batch* batch;
    size_t workspace_bytes;
    int64_t values_offset; /* bytes from k to v, where v lies in k's tensor, or -1 */
    size_t out_rank, lse_rank;
    int32_t out_is_fp32;                    /* else o has q's dtype */
    const int64_t *out_shape, *out_strides; /* elements */
    const int64_t* lse_shape;               /* row-major fp32; without axes where there is none */
} attnsmith_torch_recipe;

/* NULL, or the name of what is missing. Once, before all else. */
ATTNSMITH_API const char* attnsmith_torch_open(const attnsmith_torch_functions* functions);

/* Has a kernel serve an operator for a dispatch key, such as "CUDA". The operator's number, or -1 where torch
 * refuses. */
ATTNSMITH_API int32_t attnsmith_torch_add(const attnsmith_torch_operator* description,
                                          const char* dispatch_key);
/* Puts back what was there before. */
ATTNSMITH_API void attnsmith_torch_remove(int32_t number);

/* In an operator of Python, by the thread that called it: what the next calls of this layout need. */
ATTNSMITH_API void attnsmith_torch_learn(const attnsmith_torch_recipe* recipe);
/* The scratch memory of a GPU and stream, whose first bytes are zero. The package keeps it until it gives
 * another or calls attnsmith_torch_forget(). */
ATTNSMITH_API void attnsmith_torch_set_workspace(int32_t device, void* stream, void* data, size_t bytes);
/* Forgets recipes and workspaces. When it returns, no launch uses them any more. */
ATTNSMITH_API void attnsmith_torch_forget(void);

/* In such an operator: it failed with this exception (three objects of Python), which the caller gets. 0
 * where no call of these kernels is under way. */
ATTNSMITH_API int32_t attnsmith_torch_fail(void* type, void* value, void* traceback);

/* Calls that an operator's kernel has served so far. */
ATTNSMITH_API uint64_t attnsmith_torch_served(int32_t number);

#ifdef __cplusplus
}
#endif
