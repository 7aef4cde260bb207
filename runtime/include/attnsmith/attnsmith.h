/* attnsmith.h: the C ABI of attnsmith, for engines in C, Rust, Go, Python and anything else that can call C.
 *
 *   attnsmith_runtime_create(NULL, &runtime, &error);    opens nothing until it is needed
 *   attnsmith_prepare(runtime, &spec, &sizes, ATTNSMITH_CURRENT_DEVICE, &kernel, &error);
 *                                                        plans, takes from the cache or compiles, loads
 *   attnsmith_bind(kernel, &tensors, &batch, NULL, &call, &error);
 *                                                        checks and fixes the arguments
 *   attnsmith_launch(call, stream, &error);              any number of times; can be captured
 *
 * The rules of all functions:
 *
 * - Every function that can fail returns an attnsmith_code and takes `error`, which may be NULL. After a
 *   failure *error is a new object that the caller frees; after a success it is NULL. Outputs are written on
 *   success alone. Objects and strings that are handed out belong to the caller and go back through their
 *   _free function, which takes NULL. No C++ exception leaves the library.
 * - A pointer may be NULL where it is said so; else NULL is ATTNSMITH_CODE_INVALID_REQUEST.
 * - Functions may be called from any number of threads at the same time, also with the same object, but for
 *   the _free function of an object that another thread still uses. An attnsmith_error is for one thread.
 * - Tensors are DLPack's DLTensor, restated below with the same layout: a DLTensor* may be passed as it is.
 *   Nothing is copied: a tensor's memory must live while launches are in flight, the structs only during the
 *   call. Shapes and strides are in elements. A tensor with no elements may have NULL data.
 * - Text is UTF-8 and NUL-terminated.
 * - Callbacks return: nothing may be thrown out of them, and no longjmp leaves them.
 *
 * The structs: each begins with `size`, which the caller sets to sizeof of the struct that it was compiled
 * with, also of a struct that is written. In a zeroed struct every field but `size` is its default. Fields
 * are only ever added at the end, in whole 8 bytes. So a caller's struct may be
 * - smaller than the library's: the fields that it lacks are their defaults. A struct that is written, and
 *   that lacks a field without which the answer is wrong, is refused by the name of its `size`.
 * - larger than the library's, up to 4096 bytes: it is taken if its surplus is zero, so a program that uses
 *   nothing new works with an older library. The surplus of a struct that is written is set to zero.
 *
 * What stays: within one ATTNSMITH_ABI_VERSION functions, fields, enumerators and keys of JSON are added;
 * none is removed, changes its meaning or its number. How a program finds the library:
 * - A linked program asks the loader for the library's SONAME. Before 1.0 it is libattnsmith.so.MAJOR.MINOR:
 *   the program is linked anew for each minor version. From 1.0 on it is libattnsmith.so.MAJOR.
 * - A program that opens the library at run time (dlopen) checks attnsmith_abi_version(), and goes on to work
 *   with every library of that ABI version. It looks up by dlsym() what an older library may not have.
 */
#ifndef ATTNSMITH_ATTNSMITH_H
#define ATTNSMITH_ATTNSMITH_H

#include <stddef.h>
#include <stdint.h>

#include "attnsmith/export.h"
#include "attnsmith/version.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Version and features ---- */

/* The version of the C ABI that this header describes: 1 is that of the releases 0.1 and later. It is raised
 * when a function, a field, an enumerator or a key of JSON is removed or changes its meaning; additions do
 * not raise it. A program that opens the library at run time refuses one whose attnsmith_abi_version() is
 * another. */
#define ATTNSMITH_ABI_VERSION 1

/* The ABI version of the library that is loaded, to be compared with ATTNSMITH_ABI_VERSION. */
ATTNSMITH_NODISCARD ATTNSMITH_API int32_t attnsmith_abi_version(void) ATTNSMITH_NOEXCEPT;
/* The version of the library that is loaded, such as "0.1.0". The text is valid for ever. */
ATTNSMITH_NODISCARD ATTNSMITH_API const char* attnsmith_version(void) ATTNSMITH_NOEXCEPT;
/* 1 if the library that is loaded has a feature, else 0; 0 for NULL. Features: each operation
 * ("op:attention", ...), each backend of kernels ("backend:mma", "backend:wgmma", ...) and each operation of
 * attnsmith_cache ("cache:stat", ...). */
ATTNSMITH_NODISCARD ATTNSMITH_API int32_t attnsmith_has_feature(const char* name) ATTNSMITH_NOEXCEPT;
/* All names for which attnsmith_has_feature gives 1: a JSON array of strings, valid for ever. */
ATTNSMITH_NODISCARD ATTNSMITH_API const char* attnsmith_features(void) ATTNSMITH_NOEXCEPT;

/* ---- Errors ---- */

/* What a function returns that can fail: ATTNSMITH_OK, or ATTNSMITH_CODE_... for the kind of error. */
typedef int32_t attnsmith_code;
/* Values of attnsmith_code. More may be added: a program treats one that it does not know as
 * ATTNSMITH_CODE_FAILED. */
enum {
    ATTNSMITH_OK = 0, /* success */
    /* A field, tensor or option is wrong. Details: field, value, accepted. */
    ATTNSMITH_CODE_INVALID_REQUEST = 1,
    /* No kernel serves a valid request. Details: refusals [{candidate, reason}]. */
    ATTNSMITH_CODE_UNSUPPORTED = 2,
    /* NVRTC rejected a kernel's source. Details: log, options, numbered_source. */
    ATTNSMITH_CODE_COMPILE_ERROR = 3,
    /* A call of the CUDA driver failed. Details: call, driver_code (a CUresult), meaning. */
    ATTNSMITH_CODE_DRIVER_ERROR = 4,
    /* The driver or NVRTC cannot be opened. Details: library, tried. */
    ATTNSMITH_CODE_LIBRARY_MISSING = 5,
    /* An explicit operation on the cache failed. Details: path. */
    ATTNSMITH_CODE_CACHE_ERROR = 6,
    ATTNSMITH_CODE_OUT_OF_MEMORY = 7, /* the host is out of memory */
    ATTNSMITH_CODE_FAILED = 8,        /* any other failure */
    /* A kernel is in no cache, and on_miss is ATTNSMITH_ON_MISS_ERROR. Details: request, sm, key, command. */
    ATTNSMITH_CODE_KERNEL_MISSING = 9
};

/* What went wrong: a code, a message and details. The caller owns it and gives it back through
 * attnsmith_error_free. For one thread at a time. */
typedef struct attnsmith_error attnsmith_error;

/* The kind of error; ATTNSMITH_OK for NULL. */
ATTNSMITH_NODISCARD ATTNSMITH_API attnsmith_code attnsmith_error_code(const attnsmith_error* error)
    ATTNSMITH_NOEXCEPT;
/* One line that a person can act on. Valid while the error is; "" for NULL. */
ATTNSMITH_NODISCARD ATTNSMITH_API const char* attnsmith_error_message(const attnsmith_error* error)
    ATTNSMITH_NOEXCEPT;
/* A JSON object: "code" (the name of the attnsmith_code in lower case, such as "invalid_request"), "message",
 * and the fields that stand at that code. Valid while the error is; "{}" for NULL. */
ATTNSMITH_NODISCARD ATTNSMITH_API const char* attnsmith_error_details(const attnsmith_error* error)
    ATTNSMITH_NOEXCEPT;
/* The name of the field, tensor or option that is wrong, for ATTNSMITH_CODE_INVALID_REQUEST, such as
 * "spec.head_dim" or "k.dtype". Valid while the error is; "" for other codes and for NULL. */
ATTNSMITH_NODISCARD ATTNSMITH_API const char* attnsmith_error_field(const attnsmith_error* error)
    ATTNSMITH_NOEXCEPT;
/* The CUresult of the driver's call that failed, for ATTNSMITH_CODE_DRIVER_ERROR; 0 for other codes and for
 * NULL. */
ATTNSMITH_NODISCARD ATTNSMITH_API int32_t attnsmith_error_driver_code(const attnsmith_error* error)
    ATTNSMITH_NOEXCEPT;
/* Frees an error. Takes NULL. */
ATTNSMITH_API void attnsmith_error_free(attnsmith_error* error) ATTNSMITH_NOEXCEPT;

/* Frees a text that a function of this library gave as char**. Takes NULL. */
ATTNSMITH_API void attnsmith_string_free(char* text) ATTNSMITH_NOEXCEPT;

/* ---- Tensors ---- */

/* DLPack's DLDeviceType: the kinds of memory that are taken. (DLPack 1.x, https://dmlc.github.io/dlpack.) */
enum { ATTNSMITH_DL_CUDA = 2, ATTNSMITH_DL_CUDA_MANAGED = 13 };
/* DLPack's DLDataTypeCode: the kinds of elements that are taken. */
enum {
    ATTNSMITH_DL_INT = 0,     /* signed integers */
    ATTNSMITH_DL_UINT = 1,    /* unsigned integers */
    ATTNSMITH_DL_FLOAT = 2,   /* IEEE floating point */
    ATTNSMITH_DL_BFLOAT = 4,  /* bfloat16 */
    ATTNSMITH_DL_E4M3FN = 10, /* 8-bit floating point: 4 bits of exponent, no infinities, largest 448 */
    ATTNSMITH_DL_E5M2 = 12    /* 8-bit floating point: 5 bits of exponent, infinities */
};

/* DLPack's DLDevice: where a tensor's memory is. */
typedef struct attnsmith_dl_device {
    int32_t device_type; /* ATTNSMITH_DL_CUDA or ATTNSMITH_DL_CUDA_MANAGED; others are refused */
    int32_t device_id;   /* ordinal of the device; of ATTNSMITH_DL_CUDA memory it must be the kernel's */
} attnsmith_dl_device;

/* DLPack's DLDataType: what a tensor's elements are. */
typedef struct attnsmith_dl_data_type {
    uint8_t code;   /* kind of an element: ATTNSMITH_DL_INT and others */
    uint8_t bits;   /* bits of one element */
    uint16_t lanes; /* numbers in one element: 1; others are refused */
} attnsmith_dl_data_type;

/* DLPack's DLTensor: a strided view of memory. It owns neither the memory nor the lists. */
typedef struct attnsmith_dl_tensor {
    void* data;                   /* device address; NULL only for a tensor with no elements */
    attnsmith_dl_device device;   /* where the memory is */
    int32_t ndim;                 /* number of axes, 0 to 8, and the length of shape and strides */
    attnsmith_dl_data_type dtype; /* what an element is */
    int64_t* shape;               /* extent of each axis, in elements */
    int64_t* strides;             /* step of each axis, in elements; NULL: row-major and compact */
    uint64_t byte_offset;         /* bytes from `data` to the first element */
} attnsmith_dl_tensor;

/* ---- What is asked for ---- */

/* Values of attnsmith_spec.op: what is computed. */
enum {
    ATTNSMITH_OP_ATTENTION = 0, /* o = softmax(mask(scale * q k^T)) v, for each query head */
    ATTNSMITH_OP_MLA = 1,       /* attention whose keys and values are one latent for all heads (DeepSeek) */
    ATTNSMITH_OP_MERGE = 2,     /* joins attentions of the same queries over disjoint sets of keys */
    ATTNSMITH_OP_APPEND = 3,    /* writes the keys and values of new tokens into a cache */
    ATTNSMITH_OP_TOP_K = 4      /* selects the columns of the k largest scores of each row */
};
/* Values of attnsmith_spec.dtype and the fields that end in _dtype; 0 is the field's default. */
enum {
    ATTNSMITH_DTYPE_FP16 = 1,  /* IEEE half precision */
    ATTNSMITH_DTYPE_BF16 = 2,  /* bfloat16 */
    ATTNSMITH_DTYPE_FP32 = 3,  /* IEEE single precision */
    ATTNSMITH_DTYPE_INT32 = 4, /* 32-bit integer */
    ATTNSMITH_DTYPE_INT64 = 5, /* 64-bit integer */
    ATTNSMITH_DTYPE_E4M3 = 6,  /* 8-bit floating point of ATTNSMITH_DL_E4M3FN */
    ATTNSMITH_DTYPE_E5M2 = 7,  /* 8-bit floating point of ATTNSMITH_DL_E5M2 */
    ATTNSMITH_DTYPE_UINT8 = 8  /* bytes; a tensor of them is taken as the 8-bit float that the spec says */
};
/* Values of attnsmith_spec.mask: which keys a query sees before a window narrows them. Causal is bottom-right
 * aligned: the last query sees the last key. */
enum { ATTNSMITH_MASK_FULL = 0, ATTNSMITH_MASK_CAUSAL = 1 };
/* Values of attnsmith_spec.kv: one extent for each sequence (dense), sequences one after another with
 * attnsmith_batch.kv_indptr (ragged), or pages of a table (paged). */
enum { ATTNSMITH_KV_DENSE = 0, ATTNSMITH_KV_RAGGED = 1, ATTNSMITH_KV_PAGED = 2 };
/* Values of attnsmith_spec.page_order, the axes of a page: NHD is [page_size, kv_heads, head_dim], HND is
 * [kv_heads, page_size, head_dim]. */
enum { ATTNSMITH_PAGE_ORDER_NHD = 0, ATTNSMITH_PAGE_ORDER_HND = 1 };
/* Values of attnsmith_spec.precision: what products are computed in. */
enum { ATTNSMITH_PRECISION_STANDARD = 0, ATTNSMITH_PRECISION_HIGH = 1 };
/* Values of attnsmith_spec.consistency: bitwise means that the bits of a row do not depend on the batch that
 * it is in. */
enum { ATTNSMITH_CONSISTENCY_STANDARD = 0, ATTNSMITH_CONSISTENCY_BITWISE = 1 };
/* Values of attnsmith_spec.kv_scale: what each stored key and value is multiplied by. */
enum {
    ATTNSMITH_KV_SCALE_NONE = 0,       /* nothing */
    ATTNSMITH_KV_SCALE_TENSOR = 1,     /* one scale for all */
    ATTNSMITH_KV_SCALE_HEAD = 2,       /* one scale for each KV head */
    ATTNSMITH_KV_SCALE_TOKEN_HEAD = 3, /* one scale for each head of each token */
    ATTNSMITH_KV_SCALE_BLOCK128 = 4    /* one scale for each 128 columns of each head of each token */
};
/* Values of attnsmith_spec.slots: how op append finds the place of a token in the cache. With a mapping the
 * caller states a slot for each; with a table the tokens are the last keys of their sequences, whose lengths
 * and pages are those of attnsmith_batch. */
enum { ATTNSMITH_SLOTS_MAPPING = 0, ATTNSMITH_SLOTS_TABLE = 1 };
/* Values of attnsmith_spec.rope: which columns op append rotates with one another. Half: those half of the
 * rotary columns apart (GPT-NeoX, Llama). Interleaved: neighbours (GPT-J). */
enum { ATTNSMITH_ROPE_NONE = 0, ATTNSMITH_ROPE_HALF = 1, ATTNSMITH_ROPE_INTERLEAVED = 2 };
/* Values of attnsmith_spec.rope_table: what op append takes angles from, cosines and sines of each position
 * or frequencies. */
enum { ATTNSMITH_ROPE_TABLE_COS_SIN = 0, ATTNSMITH_ROPE_TABLE_FREQUENCIES = 1 };

/* What is asked for: which op, and how (attnsmith::AttentionSpec). It holds no pointer. A field that the op
 * does not use must be 0, and a window bound must be 0 where its has_ is 0. */
typedef struct attnsmith_spec {
    size_t size;              /* sizeof(attnsmith_spec) of the caller */
    int32_t op;               /* what is computed: ATTNSMITH_OP_... */
    int32_t dtype;            /* element type of q, k, v and o, as far as no other field says it; 0: bf16 */
    int32_t mask;             /* which keys a query sees: ATTNSMITH_MASK_... */
    int32_t kv;               /* how k and v lie in memory: ATTNSMITH_KV_... */
    int32_t page_order;       /* axes of a page: ATTNSMITH_PAGE_ORDER_...; HND with paged KV alone */
    int32_t index_dtype;      /* element type of indptrs, lengths and page tables; 0: int32; or int64 */
    int32_t precision;        /* what products are computed in: ATTNSMITH_PRECISION_... */
    int32_t consistency;      /* whether bits may depend on the batch: ATTNSMITH_CONSISTENCY_... */
    int32_t alignment;        /* bytes that bases and strides are multiples of: 16, 8, 4 or 2; 0: 16 */
    int32_t alibi;            /* 1: adds slope[q_head] * (j - i) to each logit; else 0 */
    int32_t sink;             /* 1: adds exp(sink[q_head]) to each row's denominator; else 0 */
    int32_t lse;              /* 1: writes the natural log-sum-exp of each row, too; else 0 */
    int32_t has_window_left;  /* 1: window_left is a bound; 0: it is not */
    int32_t has_window_right; /* 1: window_right is a bound; 0: it is not */
    /* Query i sees no key before i - window_left, aligned as the mask is; -1: no bound. */
    int64_t window_left;
    /* Query i sees no key after i + window_right, aligned as the mask is; -1: no bound. With a causal mask,
     * which ends at the query, it is 0. */
    int64_t window_right;
    int64_t head_dim_qk; /* columns of a head of q and k: a multiple of 8 from 8 to 512 */
    int64_t head_dim_vo; /* columns of a head of v and o: a multiple of 8 from 8 to 512; 0: head_dim_qk */
    int64_t q_heads;     /* number of query heads, at least 1; op top_k has none */
    int64_t kv_heads;    /* number of KV heads, which divides q_heads; 0: q_heads, with latents 1 */
    int64_t page_size;   /* tokens of a page, with paged KV alone */
    double scale;        /* factor on q k^T, above 0; 0: 1 / sqrt(head_dim_qk). Op mla needs it. */
    double softcap;      /* logits become softcap * tanh(logit / softcap); 0: they do not */
    /* Tokens: query i sees key j only where both lie in the same chunk of this length; 0: no chunks. */
    int64_t attention_chunk;
    int32_t o_dtype;      /* element type of o: dtype or fp32; 0: dtype */
    int32_t reserved;     /* 0 */
    int64_t head_dim_ckv; /* columns of a latent, and of o: a multiple of 64 up to 512; ops mla and append */
    int64_t head_dim_kpe; /* position columns of a latent: a multiple of 8 up to 64, or 0 for none */
    int32_t kv_dtype;     /* element type of k and v as they are stored: dtype, e4m3 or e5m2; 0: dtype */
    int32_t kv_scale;     /* scales of an 8-bit kv_dtype: ATTNSMITH_KV_SCALE_... */
    int32_t slots;        /* op append: how a token's place is found: ATTNSMITH_SLOTS_... */
    int32_t rope;         /* op append: which columns are rotated with which: ATTNSMITH_ROPE_... */
    int32_t rope_table;   /* op append: what angles are taken from: ATTNSMITH_ROPE_TABLE_... */
    int32_t q_dtype;      /* op append: element type of the q that is written: dtype, e4m3, e5m2; 0: dtype */
    int32_t q_norm;       /* op append: 1: RMS norm of each head of q, with weights, before the rotation */
    int32_t k_norm;       /* op append: 1: RMS norm of each head of k, with weights; of a latent's columns */
    int32_t v_norm;       /* op append: 1: RMS norm of each head of v, without weights */
    int32_t check_slots;  /* op append: 1: two tokens of one launch with one slot set a status bit */
    int64_t rotary_dim;   /* op append: first columns of a head that are rotated, even; 0: all that can be */
    double rope_factor;   /* op append: what cosines and sines of frequencies are multiplied by; 0: 1 */
    double norm_eps;      /* op append: what RMS norms add to the mean of squares, above 0; 0: 1e-6 */
    /* Tokens of a block, with a causal mask: a query sees the keys up to the end of its own block; 0: up to
     * its own key. */
    int64_t causal_block;
} attnsmith_spec;

/* The sizes to plan for (attnsmith::PlanSizes). They are no limits: a kernel that was planned for one size is
 * right for any. Where a function takes NULL, that is sizes of 1: a decode of one key. */
typedef struct attnsmith_sizes {
    size_t size;    /* sizeof(attnsmith_sizes) of the caller */
    int64_t batch;  /* number of sequences; 0: 1 */
    int64_t q_len;  /* queries of the longest sequence; op top_k: rows; 0: 1 */
    int64_t kv_len; /* keys of the longest sequence; op top_k: columns; 0: 1 */
} attnsmith_sizes;

/* ---- Runtime ---- */

/* What kernels are prepared with: caches, a compiler, devices (attnsmith::Runtime). A program needs one.
 * Threads: any number may use it. Lifetime: its kernels, calls and buffers may outlive it. */
typedef struct attnsmith_runtime attnsmith_runtime;

/* Values of attnsmith_runtime_options.log_level: the least important lines that are logged. 0: what the
 * environment variable ATTNSMITH_LOG says, else warn. */
enum {
    ATTNSMITH_LOG_OFF = 1,   /* nothing */
    ATTNSMITH_LOG_ERROR = 2, /* failures */
    ATTNSMITH_LOG_WARN = 3,  /* what a user should know of or mend, and failures */
    ATTNSMITH_LOG_INFO = 4,  /* what was compiled and loaded, and the levels before it */
    ATTNSMITH_LOG_DEBUG = 5  /* everything */
};
/* Takes a line of the log, which has no newline and is valid only during the call. Called from any thread, by
 * several at a time, until the runtime and all that is pending of it are freed. It must not use the runtime.
 */
typedef void (*attnsmith_log_fn)(void* user, int32_t level, const char* line);

/* Values of attnsmith_runtime_options.cache_trust: whose cache directories may be used. Owner: this process's
 * user or root owns it, and no other user may write to it. Group: its group may write to it, too. All: any.
 */
enum { ATTNSMITH_CACHE_TRUST_OWNER = 0, ATTNSMITH_CACHE_TRUST_GROUP = 1, ATTNSMITH_CACHE_TRUST_ALL = 2 };

/* Values of attnsmith_runtime_options.toolchain: which NVRTC's entries of the cache may be used. Newest: any,
 * the newest that the driver takes first; a hit needs no NVRTC. Exact: those of the NVRTC that is present. */
enum { ATTNSMITH_TOOLCHAIN_NEWEST = 0, ATTNSMITH_TOOLCHAIN_EXACT = 1 };

/* Values of attnsmith_runtime_options.on_miss: what to do on a cache miss. 0: what the environment variable
 * ATTNSMITH_ON_MISS says, else compile. Error: ATTNSMITH_CODE_KERNEL_MISSING. */
enum { ATTNSMITH_ON_MISS_COMPILE = 1, ATTNSMITH_ON_MISS_ERROR = 2 };

/* Allocates device memory for workspaces that calls own and for buffers. Called in the context of the device,
 * from any thread, until the runtime and all that was made by it are freed. Gives an address that is a
 * multiple of 256, or NULL where there is no memory. */
typedef void* (*attnsmith_allocate_fn)(void* user, size_t bytes, int32_t device);
/* Takes back what an attnsmith_allocate_fn gave, with the same size and device. It is called as soon as the
 * call or buffer is freed, though a launch that uses the memory may be in flight: free them when it is done.
 */
typedef void (*attnsmith_release_fn)(void* user, void* memory, size_t bytes, int32_t device);

/* What a runtime is made with (attnsmith::RuntimeOptions). NULL, empty strings and 0 are the defaults. The
 * texts are copied. */
typedef struct attnsmith_runtime_options {
    size_t size; /* sizeof(attnsmith_runtime_options) of the caller */
    /* Cache directories, the writable one first; after it directories and bundles that are read, and
     * addresses of remote layers. None: ATTNSMITH_CACHE_DIR, else $XDG_CACHE_HOME/attnsmith, else
     * ~/.cache/attnsmith. */
    const char* const* cache_dirs;
    size_t cache_dir_count;  /* number of cache_dirs */
    const char* nvrtc_path;  /* NVRTC's file or folder; empty: ATTNSMITH_NVRTC_PATH, else the usual places */
    const char* driver_path; /* the CUDA driver's file; empty: the usual places */
    const char* keep_source_dir; /* folder that generated sources are kept in; empty: they are not kept */
    attnsmith_log_fn log_line;   /* takes lines of the log; NULL: standard error */
    void* log_user;              /* first argument of log_line */
    int32_t log_level;           /* ATTNSMITH_LOG_...; 0: what ATTNSMITH_LOG says, else warn */
    int32_t no_cache;            /* 1: neither reads nor writes a cache directory; else 0 */
    int32_t compile_threads;     /* threads that compile; 0: the number of cores */
    int32_t toolchain;           /* whose entries may be used: ATTNSMITH_TOOLCHAIN_... */
    /* Bytes on the disk that the writable directory may have; the kernels that were unused for longest go
     * first. 0: 2 GiB; -1: no limit. */
    int64_t cache_max_bytes;
    int32_t cache_trust;             /* whose directories may be used: ATTNSMITH_CACHE_TRUST_... */
    int32_t no_cache_source;         /* 1: cache entries do not hold their kernels' sources; else 0 */
    const char* const* tuning_files; /* tuning tables, the winning one first; none: ATTNSMITH_TUNING */
    size_t tuning_file_count;        /* number of tuning_files */
    const char* record_file; /* file that gets a line for each spec prepared; empty: ATTNSMITH_RECORD */
    int32_t on_miss;         /* what to do on a cache miss: ATTNSMITH_ON_MISS_... */
    int32_t reserved;        /* 0 */
    attnsmith_allocate_fn allocate_memory; /* allocates device memory; NULL: the driver does, and frees it */
    attnsmith_release_fn release_memory;   /* frees device memory; NULL exactly where allocate_memory is */
    void* memory_user;                     /* first argument of allocate_memory and release_memory */
    /* Files of public keys. If there are any, bundles and remote layers are used only as far as one of these
     * keys signed what they have. None: ATTNSMITH_CACHE_TRUST_KEYS. */
    const char* const* trust_key_files;
    size_t trust_key_file_count; /* number of trust_key_files */
    const char* sign_key_file;   /* secret key's file, which signs pushes; empty: ATTNSMITH_CACHE_SIGN_KEY */
    int32_t push_compiled;  /* 1: compiled kernels are pushed; 0: as ATTNSMITH_CACHE_PUSH says, else not */
    int32_t no_environment; /* 1: no environment variable is read; what is left empty is off; else 0 */
} attnsmith_runtime_options;

/* Makes a runtime. `options` may be NULL. A cache directory that cannot be used is passed over with a
 * warning; an option that cannot be is ATTNSMITH_CODE_INVALID_REQUEST. */
ATTNSMITH_NODISCARD ATTNSMITH_API attnsmith_code
attnsmith_runtime_create(const attnsmith_runtime_options* options, attnsmith_runtime** runtime,
                         attnsmith_error** error) ATTNSMITH_NOEXCEPT;
/* Frees a runtime, once all that attnsmith_prepare_async is preparing is done. Kernels, calls and buffers of
 * it may outlive it. Takes NULL. */
ATTNSMITH_API void attnsmith_runtime_free(attnsmith_runtime* runtime) ATTNSMITH_NOEXCEPT;

/* The GPUs: a JSON array of {"device", "index", "name", "sm", "sm_count", "memory_bytes"}, where "index" is
 * the old name of "device". Empty if there is no CUDA driver that can be opened, and if the driver sees no
 * GPU. Fails with ATTNSMITH_CODE_DRIVER_ERROR if the driver is there and fails. */
ATTNSMITH_NODISCARD ATTNSMITH_API attnsmith_code
attnsmith_devices_json(attnsmith_runtime* runtime, char** json, attnsmith_error** error) ATTNSMITH_NOEXCEPT;

/* ---- Requests, models and plans; none of these needs a GPU ---- */

/* Reads a JSON request ({"op": "attention", "head_dim": 128, ...}) into a spec and sizes, whose `size` is set
 * by the caller. The request's "sm" is checked and left out. */
ATTNSMITH_NODISCARD ATTNSMITH_API attnsmith_code
attnsmith_parse_request(const char* json, attnsmith_spec* spec, attnsmith_sizes* sizes,
                        attnsmith_error** error) ATTNSMITH_NOEXCEPT;
/* The validated request as JSON with every default filled in. `sizes` may be NULL. */
ATTNSMITH_NODISCARD ATTNSMITH_API attnsmith_code
attnsmith_request_json(const attnsmith_spec* spec, const attnsmith_sizes* sizes, char** json,
                       attnsmith_error** error) ATTNSMITH_NOEXCEPT;
/* The distinct attentions of a Hugging Face config.json (its text): {"model_type", "attentions": [{"name",
 * "phase", "layers", "notes", "request": {...}}], "unsupported": [{"name", "reason"}], "warnings": [{"kind",
 * "field", "text"}]}. A warning's kind is "unknown_type", "unread_field", "not_planned" or "approximated".
 * `options` is NULL or a JSON object with any of dtype, lse, kv, page_size, page_order, index_dtype,
 * alignment, o_dtype, kv_dtype, kv_scale, precision, consistency, slots, rope_table, q_dtype, check_slots,
 * batch, q_len, kv_len, tensor_parallel and strict. With "strict": true an unsupported part or a warning
 * gives ATTNSMITH_CODE_UNSUPPORTED, whose refusals are all of them. */
ATTNSMITH_NODISCARD ATTNSMITH_API attnsmith_code attnsmith_model_json(
    const char* config_json, const char* options, char** json, attnsmith_error** error) ATTNSMITH_NOEXCEPT;
/* The attentions of a request, in which words of a program's choice (dtype, lse, kv, page_order, page_size,
 * index_dtype, alignment, o_dtype, kv_dtype, kv_scale, precision, consistency, slots, rope_table, q_dtype,
 * check_slots) may be arrays: those of every combination, each once. JSON as of attnsmith_model_json without
 * its "model_type", and with "skipped": [{"name", "reason"}], combinations that cannot be, such as a page
 * size of dense KV. A suffix in the request's sm that says nothing, as in "90f", is a warning of kind
 * "ignored". */
ATTNSMITH_NODISCARD ATTNSMITH_API attnsmith_code
attnsmith_request_coverage_json(const char* request, char** json, attnsmith_error** error) ATTNSMITH_NOEXCEPT;
/* The attentions of a Hugging Face config.json (its text), each once. `options` is NULL or what
 * attnsmith_model_json takes, in which words of a program's choice may be arrays, as in a request of
 * attnsmith_request_coverage_json, which has the same JSON. */
ATTNSMITH_NODISCARD ATTNSMITH_API attnsmith_code attnsmith_model_coverage_json(
    const char* config_json, const char* options, char** json, attnsmith_error** error) ATTNSMITH_NOEXCEPT;
/* The attentions of the text of a file that programs recorded (attnsmith_runtime_options.record_file): each
 * spec once. JSON as of attnsmith_request_coverage_json. A line that a killed process left torn is skipped,
 * and listed. `name` is the name of the file, for messages. */
ATTNSMITH_NODISCARD ATTNSMITH_API attnsmith_code attnsmith_recorded_coverage_json(
    const char* text, const char* name, char** json, attnsmith_error** error) ATTNSMITH_NOEXCEPT;
/* The plan of a spec as JSON of schema attnsmith.plan/1. `sizes` may be NULL. `sm` is a compute capability,
 * such as 90, which needs no GPU; 0 is that of the current device. */
ATTNSMITH_NODISCARD ATTNSMITH_API attnsmith_code
attnsmith_plan_json(attnsmith_runtime* runtime, const attnsmith_spec* spec, const attnsmith_sizes* sizes,
                    int32_t sm, char** json, attnsmith_error** error) ATTNSMITH_NOEXCEPT;

/* Takes a kernel of a prewarm. `kernel` is JSON, valid only during the call: {"name", "sm", "key", "state",
 * "ms", "cubin_bytes"} and, if it failed, "error". `done` of `total` kernels are done. Called from one thread
 * at a time. Anything but 0 cancels what is not being compiled yet. */
typedef int32_t (*attnsmith_progress_fn)(void* user, const char* kernel, int32_t done, int32_t total);
/* Takes a kernel that another process has been compiling for some seconds, while a prewarm waits for it.
 * `kernel` is JSON, valid only during the call: {"name", "sm", "key"}. Called once for a kernel, in turn with
 * an attnsmith_progress_fn. Anything but 0 cancels what is not being compiled yet. */
typedef int32_t (*attnsmith_waiting_fn)(void* user, const char* kernel);
/* Tells whether a prewarm should stop: anything but 0 cancels what is not being compiled yet. Called some ten
 * times a second, by one thread of the library, until it says so or the prewarm ends. */
typedef int32_t (*attnsmith_should_stop_fn)(void* user);

/* How attnsmith_prewarm goes about its work (attnsmith::PrewarmOptions). */
typedef struct attnsmith_prewarm_options {
    size_t size;                    /* sizeof(attnsmith_prewarm_options) of the caller */
    attnsmith_progress_fn progress; /* takes each kernel that is done; or NULL */
    void* progress_user;            /* first argument of progress */
    int32_t jobs;                   /* kernels that are compiled at a time; 0: the number of cores */
    int32_t reserved;               /* 0 */
    int32_t push;                   /* 1: kernels that remote layers lack are pushed to them; else 0 */
    int32_t no_compile;             /* 1: what neither the cache nor a remote layer has is missing; else 0 */
    attnsmith_waiting_fn waiting;   /* takes each kernel that is waited for; or NULL */
    void* waiting_user;             /* first argument of waiting */
    attnsmith_should_stop_fn should_stop; /* tells whether to stop, also while nothing is done; or NULL */
    void* stop_user;                      /* first argument of should_stop */
} attnsmith_prewarm_options;

/* Compiles into the cache every kernel that planning could choose for these specs on these compute
 * capabilities. `options` may be NULL. `report` is JSON of schema attnsmith.prewarm/1; kernels that failed
 * are in it, and do not fail the call, nor do specs that no kernel serves: "unsupported": [{"spec" (the place
 * in `specs`), "sm", "reason"}]. No specs or no SMs is nothing to do: a report of 0 kernels. There may be any
 * number of specs. Where a kernel is not in the cache and there is no NVRTC, or the cache cannot be written,
 * the call fails before anything is compiled. */
ATTNSMITH_NODISCARD ATTNSMITH_API attnsmith_code
attnsmith_prewarm(attnsmith_runtime* runtime, const attnsmith_spec* const* specs, size_t spec_count,
                  const int32_t* sms, size_t sm_count, const attnsmith_prewarm_options* options,
                  char** report, attnsmith_error** error) ATTNSMITH_NOEXCEPT;

/* Does "ls", "dir", "stat", "explain", "verify", "gc", "clear", "rm", "export", "import" or "push" on the
 * runtime's cache directories: the JSON is what the command `attnsmith cache OPERATION --json` prints.
 * `options` is NULL, which is "{}", or a JSON object:
 * - of "gc", {"max_bytes"}, which is optional;
 * - of "explain", {"key"} or {"request": {with its "sm"}};
 * - of "rm", {"key"}, or the first letters of one;
 * - of "export", {"file", "sm": [...], "model": {a config.json}, "model_options": {...}}, all but the file
 *   optional, or instead of the file {"oci": DIR, "tag"}, for an image;
 * - of "import", {"file"};
 * - of "push", which puts entries to the remote layers, {"sm", "model", "model_options"}, all optional;
 * - of the others, {}. */
ATTNSMITH_NODISCARD ATTNSMITH_API attnsmith_code attnsmith_cache(attnsmith_runtime* runtime,
                                                                 const char* operation, const char* options,
                                                                 char** json,
                                                                 attnsmith_error** error) ATTNSMITH_NOEXCEPT;

/* ---- Kernels ---- */

/* A loaded kernel with the plan that chose it (attnsmith::Kernel). It never changes. Threads: any number may
 * use it. Lifetime: its calls may outlive it, and it may outlive its runtime. */
typedef struct attnsmith_kernel attnsmith_kernel;

/* A device argument: the device of the caller's current context, or device 0 where there is none. */
#define ATTNSMITH_CURRENT_DEVICE (-1)

/* The kernel for this problem on `device`, an ordinal or ATTNSMITH_CURRENT_DEVICE. `sizes` may be NULL. The
 * first call plans, reads the cache or compiles, and loads; later ones are a look-up. */
ATTNSMITH_NODISCARD ATTNSMITH_API attnsmith_code
attnsmith_prepare(attnsmith_runtime* runtime, const attnsmith_spec* spec, const attnsmith_sizes* sizes,
                  int32_t device, attnsmith_kernel** kernel, attnsmith_error** error) ATTNSMITH_NOEXCEPT;
/* Frees a kernel. Calls of it may outlive it. Takes NULL. */
ATTNSMITH_API void attnsmith_kernel_free(attnsmith_kernel* kernel) ATTNSMITH_NOEXCEPT;

/* A kernel that is being prepared in the background. Threads: any number may use it. */
typedef struct attnsmith_pending attnsmith_pending;
/* Starts attnsmith_prepare on another thread, in the CUDA context that is current now. Wrong arguments fail
 * here, all else when the kernel is asked for. */
ATTNSMITH_NODISCARD ATTNSMITH_API attnsmith_code attnsmith_prepare_async(
    attnsmith_runtime* runtime, const attnsmith_spec* spec, const attnsmith_sizes* sizes, int32_t device,
    attnsmith_pending** pending, attnsmith_error** error) ATTNSMITH_NOEXCEPT;
/* 1 if attnsmith_pending_kernel would return at once, else 0; 1 for NULL. */
ATTNSMITH_NODISCARD ATTNSMITH_API int32_t attnsmith_pending_ready(const attnsmith_pending* pending)
    ATTNSMITH_NOEXCEPT;
/* Waits for the kernel and hands it out, or fails as attnsmith_prepare does. May be called more than once;
 * each kernel that is handed out is freed. */
ATTNSMITH_NODISCARD ATTNSMITH_API attnsmith_code attnsmith_pending_kernel(
    const attnsmith_pending* pending, attnsmith_kernel** kernel, attnsmith_error** error) ATTNSMITH_NOEXCEPT;
/* Waits for the kernel, then frees the pending object. Takes NULL. */
ATTNSMITH_API void attnsmith_pending_free(attnsmith_pending* pending) ATTNSMITH_NOEXCEPT;

/* The spec of a kernel with every default filled in, written to a struct whose `size` the caller sets. */
ATTNSMITH_NODISCARD ATTNSMITH_API attnsmith_code attnsmith_kernel_spec(
    const attnsmith_kernel* kernel, attnsmith_spec* spec, attnsmith_error** error) ATTNSMITH_NOEXCEPT;
/* The ordinal of the device that a kernel is for; -1 for NULL. */
ATTNSMITH_NODISCARD ATTNSMITH_API int32_t attnsmith_kernel_device(const attnsmith_kernel* kernel)
    ATTNSMITH_NOEXCEPT;
/* The plan that chose a kernel, as JSON of schema attnsmith.plan/1. Of a kernel of a set it is the plan for
 * sizes of 1, and says so. */
ATTNSMITH_NODISCARD ATTNSMITH_API attnsmith_code attnsmith_kernel_plan_json(
    const attnsmith_kernel* kernel, char** json, attnsmith_error** error) ATTNSMITH_NOEXCEPT;

/* The largest tensors that a workspace is to serve (attnsmith::WorkspaceBounds). */
typedef struct attnsmith_workspace_bounds {
    size_t size;        /* sizeof(attnsmith_workspace_bounds) of the caller */
    int64_t batch;      /* number of sequences; 0: 1 */
    int64_t q_tokens;   /* queries of all sequences: batch * max_q_len of a dense q; 0: 1 */
    int64_t max_kv_len; /* keys of the longest sequence; 0: 1 */
} attnsmith_workspace_bounds;

/* Bytes of a workspace that a call of this kernel needs whose tensors are within these bounds; 0 of op merge,
 * which needs none. A bound that is negative or more than any launch takes is refused by name. */
ATTNSMITH_NODISCARD ATTNSMITH_API attnsmith_code
attnsmith_kernel_workspace_bytes(const attnsmith_kernel* kernel, const attnsmith_workspace_bounds* bounds,
                                 size_t* bytes, attnsmith_error** error) ATTNSMITH_NOEXCEPT;

/* ---- Sets of kernels ---- */

/* Every kernel that planning could choose for a spec on a device, loaded (attnsmith::KernelSet). A call of
 * one of its kernels divides the keys as planning would for the bounds that it is bound with. It never
 * changes. Threads: any number may use it. Lifetime: calls of its kernels may outlive it. */
typedef struct attnsmith_kernel_set attnsmith_kernel_set;

/* Prepares the set of a spec on `device`, an ordinal or ATTNSMITH_CURRENT_DEVICE: all its kernels are
 * compiled or taken from the cache, and loaded, when this returns. */
ATTNSMITH_NODISCARD ATTNSMITH_API attnsmith_code
attnsmith_prepare_set(attnsmith_runtime* runtime, const attnsmith_spec* spec, int32_t device,
                      attnsmith_kernel_set** set, attnsmith_error** error) ATTNSMITH_NOEXCEPT;
/* Frees a set and its kernels. Calls of the kernels may outlive it. Takes NULL. */
ATTNSMITH_API void attnsmith_kernel_set_free(attnsmith_kernel_set* set) ATTNSMITH_NOEXCEPT;
/* The kernel that attnsmith_prepare would choose for these sizes, which may be NULL. It is the set's: it is
 * not freed, and is valid while the set is. Takes no lock and allocates nothing; sizes that were asked before
 * take nanoseconds, others less than a microsecond. */
ATTNSMITH_NODISCARD ATTNSMITH_API attnsmith_code
attnsmith_kernel_set_pick(const attnsmith_kernel_set* set, const attnsmith_sizes* sizes,
                          const attnsmith_kernel** kernel, attnsmith_error** error) ATTNSMITH_NOEXCEPT;
/* How many kernels attnsmith_kernel_set_pick can give; 0 for NULL. */
ATTNSMITH_NODISCARD ATTNSMITH_API size_t attnsmith_kernel_set_size(const attnsmith_kernel_set* set)
    ATTNSMITH_NOEXCEPT;
/* The kernel at a place from 0 to attnsmith_kernel_set_size - 1; NULL past the end and for NULL. It is the
 * set's: it is not freed, and is valid while the set is. */
ATTNSMITH_NODISCARD ATTNSMITH_API const attnsmith_kernel* attnsmith_kernel_set_kernel(
    const attnsmith_kernel_set* set, size_t index) ATTNSMITH_NOEXCEPT;
/* The spec of a set with every default filled in, written to a struct whose `size` the caller sets. */
ATTNSMITH_NODISCARD ATTNSMITH_API attnsmith_code attnsmith_kernel_set_spec(
    const attnsmith_kernel_set* set, attnsmith_spec* spec, attnsmith_error** error) ATTNSMITH_NOEXCEPT;
/* The ordinal of the device that a set is for; -1 for NULL. */
ATTNSMITH_NODISCARD ATTNSMITH_API int32_t attnsmith_kernel_set_device(const attnsmith_kernel_set* set)
    ATTNSMITH_NOEXCEPT;
/* Bytes of a workspace that serves every kernel of a set, for any tensors within these bounds. A bound that
 * is negative or more than any launch takes is refused by name. */
ATTNSMITH_NODISCARD ATTNSMITH_API attnsmith_code attnsmith_kernel_set_workspace_bytes(
    const attnsmith_kernel_set* set, const attnsmith_workspace_bounds* bounds, size_t* bytes,
    attnsmith_error** error) ATTNSMITH_NOEXCEPT;

/* ---- Calls ---- */

/* The tensors of ops attention and mla (attnsmith::AttentionTensors); NULL is a tensor that is not there. The
 * last stride of q, k, v and o is 1; other strides are any. */
typedef struct attnsmith_tensors {
    size_t size; /* sizeof(attnsmith_tensors) of the caller */
    /* Queries: [batch, q_len, q_heads, head_dim_qk], or with attnsmith_batch.q_indptr [q_tokens, q_heads,
     * head_dim_qk]. Op mla: head_dim_ckv and then head_dim_kpe columns, or the first alone where q_pe has the
     * others. */
    const attnsmith_dl_tensor* q;
    /* Keys: dense [batch, kv_len, kv_heads, head_dim_qk], ragged [kv_tokens, kv_heads, head_dim_qk], paged
     * [pages, page_size, kv_heads, head_dim_qk] (NHD) or [pages, kv_heads, page_size, head_dim_qk] (HND). Op
     * mla: the latents, with or without the axis of one KV head. */
    const attnsmith_dl_tensor* k;
    /* Values: the axes of k, with head_dim_vo columns. Op mla: NULL, since its values are the latents. */
    const attnsmith_dl_tensor* v;
    /* Output: the axes of q, with head_dim_vo columns, of op mla head_dim_ckv. It overlaps no other tensor.
     */
    const attnsmith_dl_tensor* o;
    /* Natural log-sum-exp of each row, fp32 [batch, q_len, q_heads] or [q_tokens, q_heads], with any strides.
     * Present exactly when the spec has lse. */
    const attnsmith_dl_tensor* lse;
    /* Sinks in units of the natural log, fp32 [q_heads]. Present exactly when the spec has sink. */
    const attnsmith_dl_tensor* sinks;
    /* Slopes of ALiBi, fp32 [q_heads]. Present exactly when the spec has alibi. */
    const attnsmith_dl_tensor* alibi_slopes;
    /* Op mla: the head_dim_kpe position columns of q, on the axes of q. NULL: q has them after its own. */
    const attnsmith_dl_tensor* q_pe;
    /* Op mla: the head_dim_kpe position columns of the latents, on the axes of k. NULL: k has them after its
     * own. */
    const attnsmith_dl_tensor* kpe;
    /* Scales of k, fp32; a key is its stored number times its scale. kv_scale tensor: [1]; head: [kv_heads];
     * token_head: the axes of k without the last; block128: those and one of ceil(head_dim / 128) blocks. Any
     * strides. Op mla: scales of the latents. Present exactly when the spec has a kv_scale. */
    const attnsmith_dl_tensor* k_scale;
    /* Scales of v, fp32, with the axes that k_scale has. Present exactly when the spec has a kv_scale; NULL
     * for op mla. */
    const attnsmith_dl_tensor* v_scale;
} attnsmith_tensors;

/* Where each sequence lies in the tensors (attnsmith::Batch); NULL is a tensor that is not there. The tensors
 * are device memory of the spec's index_dtype, contiguous. A length beyond its bound is clamped, and sets a
 * bit of the call's status. */
typedef struct attnsmith_batch {
    size_t size; /* sizeof(attnsmith_batch) of the caller */
    /* First token of each sequence's queries, and the end: [batch + 1]. NULL: q has an axis of the batch. */
    const attnsmith_dl_tensor* q_indptr;
    /* Queries in use of each sequence: [batch]. NULL: all that a dense q has. */
    const attnsmith_dl_tensor* q_lens;
    /* First token of each sequence's keys, and the end: [batch + 1]. Ragged KV alone. */
    const attnsmith_dl_tensor* kv_indptr;
    /* Keys of each sequence: [batch]. Needed with page_table; NULL with dense KV: all that k has. */
    const attnsmith_dl_tensor* kv_lens;
    /* Pages of each sequence: [batch, most pages of a sequence], or [rows, most pages of a sequence] with
     * table_rows. Rows may be strided. Paged KV, unless page_indices says the pages. */
    const attnsmith_dl_tensor* page_table;
    /* First entry of each sequence in page_indices, and the end: [batch + 1]. */
    const attnsmith_dl_tensor* page_indptr;
    /* Pages of all sequences, one after another: [most pages of all sequences]. Paged KV without page_table.
     */
    const attnsmith_dl_tensor* page_indices;
    /* Tokens in the last page of each sequence, 1 to page_size: [batch]. Present exactly when page_indices
     * is. */
    const attnsmith_dl_tensor* last_page_len;
    /* Bound on the queries of one sequence, which decides how fast a launch is; 0: what the shapes allow. */
    int64_t max_q_len;
    /* Bound on the keys of one sequence, which decides how fast a launch is; 0: what the shapes allow. */
    int64_t max_kv_len;
    /* Row of page_table for each sequence: [batch]. NULL: row i is that of sequence i. */
    const attnsmith_dl_tensor* table_rows;
} attnsmith_batch;

/* The tensors of op merge (attnsmith::MergeTensors): results of attention for the same queries over disjoint
 * sets of keys, and where they are joined. */
typedef struct attnsmith_merge_tensors {
    size_t size;        /* sizeof(attnsmith_merge_tensors) of the caller */
    size_t state_count; /* length of o_states and of lse_states: 1 to 32 */
    /* Output of each state: [q_tokens, q_heads, head_dim_vo], the last stride 1. None is NULL. */
    const attnsmith_dl_tensor* const* o_states;
    /* Natural log-sum-exp of each state: fp32 [q_tokens, q_heads]. None is NULL. */
    const attnsmith_dl_tensor* const* lse_states;
    /* Joined output: [q_tokens, q_heads, head_dim_vo]. May be the very view that one of o_states is; overlaps
     * nothing else. */
    const attnsmith_dl_tensor* o;
    /* Joined log-sum-exp: fp32 [q_tokens, q_heads]. May be the very view that one of lse_states is; overlaps
     * nothing else. Present exactly when the spec has lse. */
    const attnsmith_dl_tensor* lse;
} attnsmith_merge_tensors;

/* The tensors of op append (attnsmith::AppendTensors): rows of new tokens, and the cache that they are
 * written to; NULL is a tensor that is not there. Tokens are [batch, q_len] or [tokens], of all inputs alike;
 * the lists of axes below write them as [...]. */
typedef struct attnsmith_append_tensors {
    size_t size; /* sizeof(attnsmith_append_tensors) of the caller */
    /* Queries: [..., q_heads, head_dim_qk], or of latents [..., q_heads, head_dim_kpe], the position columns
     * alone. NULL, with q_out, for layers that only fill a cache. */
    const attnsmith_dl_tensor* q;
    /* Keys: [..., kv_heads, head_dim_qk], or latents [..., head_dim_ckv]. NULL, with v and the caches, for
     * layers that read another's cache. */
    const attnsmith_dl_tensor* k;
    /* Values: [..., kv_heads, head_dim_vo]. NULL for latents. */
    const attnsmith_dl_tensor* v;
    /* Where q is written: the axes of q, of the spec's q_dtype. May be the very view that q is; overlaps
     * nothing else. Present exactly when q is. */
    const attnsmith_dl_tensor* q_out;
    /* Cache of keys, of the spec's kv_dtype or uint8 for 8 bits: dense [batch, kv_len, kv_heads,
     * head_dim_qk], paged [pages, page_size, kv_heads, head_dim_qk] (NHD) or [pages, kv_heads, page_size,
     * head_dim_qk] (HND); of latents without the axis of heads. Overlaps no other tensor. */
    const attnsmith_dl_tensor* k_cache;
    /* Cache of values: the axes of k_cache, with head_dim_vo columns. NULL for latents. Overlaps no other
     * tensor. */
    const attnsmith_dl_tensor* v_cache;
    /* Latents: the head_dim_kpe position columns of the new tokens. NULL: k has them after its own. */
    const attnsmith_dl_tensor* kpe;
    /* Latents: the cache of position columns, on the axes of k_cache. NULL: k_cache has them after its own.
     */
    const attnsmith_dl_tensor* kpe_cache;
    /* Slot of each token, with ATTNSMITH_SLOTS_MAPPING: [tokens], int64 or the spec's index_dtype; page *
     * page_size + offset, or in a dense cache sequence * kv_len + position. A token with a negative one is
     * passed over. */
    const attnsmith_dl_tensor* slot_mapping;
    /* Position that each token is rotated by: [tokens], int64 or the spec's index_dtype. NULL with
     * ATTNSMITH_SLOTS_TABLE: its place in the sequence. Only with a rope. */
    const attnsmith_dl_tensor* positions;
    /* Angles. cos_sin: [positions, rotary_dim], the cosines and then the sines, fp32 or dtype. frequencies:
     * fp32 [rotary_dim / 2], radians a position. Present exactly when the spec has a rope. */
    const attnsmith_dl_tensor* rope_table;
    /* Weights of the RMS norm of q: [head_dim_qk], fp32 or dtype. Present exactly when q is and the spec has
     * q_norm. */
    const attnsmith_dl_tensor* q_norm_weight;
    /* Weights of the RMS norm of k: [head_dim_qk], of latents [head_dim_ckv], fp32 or dtype. Present exactly
     * when k is and the spec has k_norm. */
    const attnsmith_dl_tensor* k_norm_weight;
    /* Scales of k_cache, fp32. kv_scale tensor [1] and head [kv_heads] are read: what is stored is value /
     * scale. token_head (the axes of k_cache without the last) and block128 (those and one of blocks) are
     * computed and written. Present exactly when k is and the spec has a kv_scale. */
    const attnsmith_dl_tensor* k_scale;
    /* Scales of v_cache, fp32, read or written by the rule of k_scale. NULL for latents. */
    const attnsmith_dl_tensor* v_scale;
    /* Scale of q_out, fp32 [1], with an 8-bit q_dtype: what is stored is value / scale. NULL: 1. */
    const attnsmith_dl_tensor* q_scale;
} attnsmith_append_tensors;

/* The tensors of op top_k (attnsmith::TopKTensors): of each row the columns of the k largest scores are
 * written in ascending order, and -1 follows where there are fewer. NULL is a tensor that is not there. */
typedef struct attnsmith_top_k_tensors {
    size_t size;                       /* sizeof(attnsmith_top_k_tensors) of the caller */
    const attnsmith_dl_tensor* scores; /* scores: fp32 [rows, columns], the last stride 1 */
    /* First column of each row: [rows], of the spec's index_dtype; NULL: 0. */
    const attnsmith_dl_tensor* row_starts;
    /* Column after the last one of each row: [rows], of the spec's index_dtype; NULL: all columns. A bound
     * outside the columns is clamped, and sets ATTNSMITH_STATUS_KV_LEN_CLAMPED. */
    const attnsmith_dl_tensor* row_ends;
    /* Selected columns: int32 [rows, k], the last stride 1. Overlaps no other tensor. */
    const attnsmith_dl_tensor* indices;
} attnsmith_top_k_tensors;

/* Bytes at the start of a workspace that are zero before its first launch. No library of this ABI version
 * needs more. */
enum { ATTNSMITH_WORKSPACE_ZEROED_BYTES = 8192 };
/* The bytes at the start of a workspace that the library which is loaded wants zero before the first launch:
 * at most ATTNSMITH_WORKSPACE_ZEROED_BYTES. */
ATTNSMITH_NODISCARD ATTNSMITH_API size_t attnsmith_workspace_zeroed_bytes(void) ATTNSMITH_NOEXCEPT;

/* Scratch memory of the caller's for launches (attnsmith::Workspace). It owns nothing. The start is cleared
 * once, before the first launch (attnsmith_workspace_clear), and left alone from then on. No two launches may
 * use one workspace at the same time; in the order of a stream it may serve any calls that it is large enough
 * for. */
typedef struct attnsmith_workspace {
    size_t size;  /* sizeof(attnsmith_workspace) of the caller */
    void* data;   /* device address, a multiple of 256 */
    size_t bytes; /* length from `data` on, as attnsmith_kernel_workspace_bytes says it at least */
} attnsmith_workspace;

/* Enqueues the zeroing of what must be zero before the first launch that uses a workspace. `stream` is a
 * CUstream or cudaStream_t of `device`; NULL is the device's default stream. Waits for nothing. It is not for
 * later: it would clear the status, and what launches in flight count in. */
ATTNSMITH_NODISCARD ATTNSMITH_API attnsmith_code
attnsmith_workspace_clear(attnsmith_runtime* runtime, const attnsmith_workspace* workspace, void* stream,
                          int32_t device, attnsmith_error** error) ATTNSMITH_NOEXCEPT;

/* One launch, ready to go (attnsmith::Call): its arguments are fixed. It holds the loaded code, and its
 * workspace if it was bound without one; not the tensors, nor a workspace of the caller's. Threads: any
 * number may use it, but no two of its launches may be in flight at the same time, since they share the
 * workspace. Lifetime: it may outlive the kernel and the runtime. */
typedef struct attnsmith_call attnsmith_call;

/* Checks tensors against the spec of a kernel of op attention or mla, and fixes the arguments. `batch` may be
 * NULL: dense tensors, and lengths as the shapes say. `workspace` may be NULL: the call allocates and owns
 * one. */
ATTNSMITH_NODISCARD ATTNSMITH_API attnsmith_code attnsmith_bind(
    const attnsmith_kernel* kernel, const attnsmith_tensors* tensors, const attnsmith_batch* batch,
    const attnsmith_workspace* workspace, attnsmith_call** call, attnsmith_error** error) ATTNSMITH_NOEXCEPT;
/* Checks tensors against the spec of a kernel of op merge, and fixes the arguments. `batch` is NULL, or
 * empty: op merge has none. `workspace` may be NULL: op merge needs none and leaves it alone. */
ATTNSMITH_NODISCARD ATTNSMITH_API attnsmith_code attnsmith_bind_merge(
    const attnsmith_kernel* kernel, const attnsmith_merge_tensors* tensors, const attnsmith_batch* batch,
    const attnsmith_workspace* workspace, attnsmith_call** call, attnsmith_error** error) ATTNSMITH_NOEXCEPT;
/* Checks tensors against the spec of a kernel of op append, and fixes the arguments. `batch` is NULL, or
 * empty, with ATTNSMITH_SLOTS_MAPPING. `workspace` may be NULL: the call allocates and owns one. */
ATTNSMITH_NODISCARD ATTNSMITH_API attnsmith_code attnsmith_bind_append(
    const attnsmith_kernel* kernel, const attnsmith_append_tensors* tensors, const attnsmith_batch* batch,
    const attnsmith_workspace* workspace, attnsmith_call** call, attnsmith_error** error) ATTNSMITH_NOEXCEPT;
/* Checks tensors against the spec of a kernel of op top_k, and fixes the arguments. `batch` is NULL, or
 * empty: op top_k has none. `workspace` may be NULL: the call allocates and owns one. */
ATTNSMITH_NODISCARD ATTNSMITH_API attnsmith_code attnsmith_bind_top_k(
    const attnsmith_kernel* kernel, const attnsmith_top_k_tensors* tensors, const attnsmith_batch* batch,
    const attnsmith_workspace* workspace, attnsmith_call** call, attnsmith_error** error) ATTNSMITH_NOEXCEPT;
/* Frees a call, and its workspace if it owns one: cuMemFree waits for the device, an attnsmith_release_fn
 * does not. Takes NULL. */
ATTNSMITH_API void attnsmith_call_free(attnsmith_call* call) ATTNSMITH_NOEXCEPT;

/* Enqueues the kernels on `stream`, a CUstream or cudaStream_t; NULL is the default stream of the kernel's
 * device. Takes no lock, allocates nothing, may be captured. */
ATTNSMITH_NODISCARD ATTNSMITH_API attnsmith_code attnsmith_launch(const attnsmith_call* call, void* stream,
                                                                  attnsmith_error** error) ATTNSMITH_NOEXCEPT;

/* Other addresses for tensors of a call, for one launch of it (attnsmith::TensorAddresses); NULL is the
 * address that was bound. */
typedef struct attnsmith_tensor_addresses {
    size_t size;               /* sizeof(attnsmith_tensor_addresses) of the caller */
    const void* q;             /* first element of q in this launch; NULL: the bound one */
    const void* k;             /* first element of k in this launch; NULL: the bound one */
    const void* v;             /* first element of v in this launch; NULL: the bound one */
    void* o;                   /* first element of o in this launch, which overlaps no other tensor */
    float* lse;                /* first element of lse in this launch, if the call was bound with one */
    const float* sinks;        /* first element of sinks in this launch, if the call was bound with them */
    const float* alibi_slopes; /* first element of alibi_slopes in this launch, if they were bound */
    const void* q_pe;          /* first element of q_pe in this launch, if the call was bound with it */
    const void* kpe;      /* first element of kpe in this launch, if it was bound; NULL: it moves with k */
    const float* k_scale; /* first scale of k in this launch, if bound; NULL: they move with k */
    const float* v_scale; /* first scale of v in this launch, if bound; NULL: they move with v */
} attnsmith_tensor_addresses;

/* Enqueues the kernels with other addresses for some of the tensors, for this launch alone: a call that was
 * bound once serves every layer. Shapes, strides, lengths and page tables are those that were bound. Takes no
 * lock, allocates nothing, may be captured. Refused for a call of other tensors than attnsmith_tensors, and
 * for the address of a tensor that was not bound. */
ATTNSMITH_NODISCARD ATTNSMITH_API attnsmith_code
attnsmith_call_launch_at(const attnsmith_call* call, const attnsmith_tensor_addresses* addresses,
                         void* stream, attnsmith_error** error) ATTNSMITH_NOEXCEPT;

/* What a captured launch uses of a call: the loaded code, and the workspace if the call owns one. */
typedef struct attnsmith_kept attnsmith_kept;
/* Keeps what a captured launch uses alive after the call is freed, for a graph that outlives the call. The
 * last to be freed of this and the call frees memory by the driver. The destructor of a CUDA user object,
 * which may not call the driver, hands it to another thread. */
ATTNSMITH_NODISCARD ATTNSMITH_API attnsmith_code attnsmith_call_keep_alive(
    const attnsmith_call* call, attnsmith_kept** kept, attnsmith_error** error) ATTNSMITH_NOEXCEPT;
/* Lets go of what attnsmith_call_keep_alive kept. Takes NULL. */
ATTNSMITH_API void attnsmith_kept_free(attnsmith_kept* kept) ATTNSMITH_NOEXCEPT;

/* Bits of a call's status (attnsmith::CallStatus): what its launches so far found wrong on the device. They
 * stay until they are cleared. */
enum {
    ATTNSMITH_STATUS_Q_LEN_CLAMPED = 1,  /* a sequence had more queries than the bound or the tensor */
    ATTNSMITH_STATUS_KV_LEN_CLAMPED = 2, /* a sequence had more keys, or a row more columns, than there are */
    ATTNSMITH_STATUS_PAGE_OUT_OF_RANGE = 4, /* a page or a row of the table does not exist */
    /* The start of the workspace was not zero before the first launch, or two launches used it at the same
     * time: o is wrong. Not every such fault is found. */
    ATTNSMITH_STATUS_WORKSPACE_NOT_ZEROED = 8,
    ATTNSMITH_STATUS_SCALE_NOT_POSITIVE = 16,    /* a scale is no finite number above 0: its rows are NaN */
    ATTNSMITH_STATUS_SLOT_OUT_OF_RANGE = 32,     /* op append did not write a token: it has no place */
    ATTNSMITH_STATUS_POSITION_OUT_OF_RANGE = 64, /* op append did not write a token: it has no angles */
    ATTNSMITH_STATUS_SLOT_WRITTEN_TWICE = 128    /* op append, with check_slots: two tokens have one slot */
};
/* Enqueues a copy of the status bits to `word`, page-locked host memory (or device memory) that the caller
 * keeps until the stream has passed it. Waits for nothing, may be captured. */
ATTNSMITH_NODISCARD ATTNSMITH_API attnsmith_code attnsmith_call_copy_status(
    const attnsmith_call* call, uint32_t* word, void* stream, attnsmith_error** error) ATTNSMITH_NOEXCEPT;
/* The status bits after all that `stream` was given so far. Waits for that stream alone; refused, without
 * harm to any capture, where it is being captured. */
ATTNSMITH_NODISCARD ATTNSMITH_API attnsmith_code attnsmith_call_status(
    const attnsmith_call* call, void* stream, uint32_t* bits, attnsmith_error** error) ATTNSMITH_NOEXCEPT;
/* Enqueues the clearing of the status bits on `stream`. Waits for nothing, may be captured. */
ATTNSMITH_NODISCARD ATTNSMITH_API attnsmith_code attnsmith_call_clear_status(
    const attnsmith_call* call, void* stream, attnsmith_error** error) ATTNSMITH_NOEXCEPT;
/* Waits for all that `stream` was given; NULL is the default stream of the kernel's device, which
 * attnsmith_launch takes, too. */
ATTNSMITH_NODISCARD ATTNSMITH_API attnsmith_code attnsmith_call_synchronize(
    const attnsmith_call* call, void* stream, attnsmith_error** error) ATTNSMITH_NOEXCEPT;
/* The grids of a call's kernels in the order of their launch, as text for logs. */
ATTNSMITH_NODISCARD ATTNSMITH_API attnsmith_code
attnsmith_call_describe(const attnsmith_call* call, char** text, attnsmith_error** error) ATTNSMITH_NOEXCEPT;

/* Binds and launches a kernel of op attention or mla in one call, for tensors that are new each time.
 * Allocates no device memory: the workspace is the caller's, and must not be in use by another stream's
 * launch. */
ATTNSMITH_NODISCARD ATTNSMITH_API attnsmith_code
attnsmith_run(const attnsmith_kernel* kernel, const attnsmith_tensors* tensors, const attnsmith_batch* batch,
              const attnsmith_workspace* workspace, void* stream, attnsmith_error** error) ATTNSMITH_NOEXCEPT;
/* Binds and launches a kernel of op merge in one call. `batch` is NULL, or empty: op merge has none.
 * `workspace` may be NULL: op merge needs none and leaves it alone. */
ATTNSMITH_NODISCARD ATTNSMITH_API attnsmith_code attnsmith_run_merge(
    const attnsmith_kernel* kernel, const attnsmith_merge_tensors* tensors, const attnsmith_batch* batch,
    const attnsmith_workspace* workspace, void* stream, attnsmith_error** error) ATTNSMITH_NOEXCEPT;
/* Binds and launches a kernel of op append in one call. `batch` is NULL, or empty, with
 * ATTNSMITH_SLOTS_MAPPING. The workspace is the caller's. */
ATTNSMITH_NODISCARD ATTNSMITH_API attnsmith_code attnsmith_run_append(
    const attnsmith_kernel* kernel, const attnsmith_append_tensors* tensors, const attnsmith_batch* batch,
    const attnsmith_workspace* workspace, void* stream, attnsmith_error** error) ATTNSMITH_NOEXCEPT;
/* Binds and launches a kernel of op top_k in one call. `batch` is NULL, or empty: op top_k has none. The
 * workspace is the caller's. */
ATTNSMITH_NODISCARD ATTNSMITH_API attnsmith_code attnsmith_run_top_k(
    const attnsmith_kernel* kernel, const attnsmith_top_k_tensors* tensors, const attnsmith_batch* batch,
    const attnsmith_workspace* workspace, void* stream, attnsmith_error** error) ATTNSMITH_NOEXCEPT;

/* ---- Device memory, for programs without a framework of their own ---- */

/* Device memory that is freed with the object (attnsmith::Buffer). Threads: any number may use it, but the
 * same bytes are copied to or from by one at a time. Lifetime: it may outlive its runtime. */
typedef struct attnsmith_buffer attnsmith_buffer;

/* Allocates `bytes` of memory of `device`, an ordinal or ATTNSMITH_CURRENT_DEVICE, at an address that is a
 * multiple of 256. */
ATTNSMITH_NODISCARD ATTNSMITH_API attnsmith_code
attnsmith_buffer_allocate(attnsmith_runtime* runtime, int32_t device, size_t bytes, attnsmith_buffer** buffer,
                          attnsmith_error** error) ATTNSMITH_NOEXCEPT;
/* The device address of a buffer; NULL for NULL. */
ATTNSMITH_NODISCARD ATTNSMITH_API void* attnsmith_buffer_data(const attnsmith_buffer* buffer)
    ATTNSMITH_NOEXCEPT;
/* The size that attnsmith_buffer_allocate was asked for, in bytes; 0 for NULL. */
ATTNSMITH_NODISCARD ATTNSMITH_API size_t attnsmith_buffer_bytes(const attnsmith_buffer* buffer)
    ATTNSMITH_NOEXCEPT;
/* Copies `bytes` of the host to a buffer, from the byte `offset` of it on, in the order of the default
 * stream, and waits until the copy is done. `host` may be NULL for 0 bytes. */
ATTNSMITH_NODISCARD ATTNSMITH_API attnsmith_code
attnsmith_buffer_upload(attnsmith_buffer* buffer, const void* host, size_t bytes, size_t offset,
                        attnsmith_error** error) ATTNSMITH_NOEXCEPT;
/* Copies `bytes` of a buffer to the host, from the byte `offset` of it on, in the order of the default
 * stream, and waits until the copy is done. `host` may be NULL for 0 bytes. */
ATTNSMITH_NODISCARD ATTNSMITH_API attnsmith_code
attnsmith_buffer_download(const attnsmith_buffer* buffer, void* host, size_t bytes, size_t offset,
                          attnsmith_error** error) ATTNSMITH_NOEXCEPT;
/* Frees a buffer and its memory: cuMemFree waits for the device, an attnsmith_release_fn does not. Takes
 * NULL. */
ATTNSMITH_API void attnsmith_buffer_free(attnsmith_buffer* buffer) ATTNSMITH_NOEXCEPT;

/* Waits for all that `stream` was given; NULL is the default stream of the caller's current context, or of
 * device 0 where there is none. After attnsmith_launch with NULL use attnsmith_call_synchronize, which waits
 * on the kernel's device. */
ATTNSMITH_NODISCARD ATTNSMITH_API attnsmith_code
attnsmith_synchronize(attnsmith_runtime* runtime, void* stream, attnsmith_error** error) ATTNSMITH_NOEXCEPT;

#ifdef __cplusplus
}
#endif

#ifndef ATTNSMITH_NO_DEPRECATED
#include "attnsmith/deprecated.h"
#endif

#endif
