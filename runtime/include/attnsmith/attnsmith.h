/* attnsmith.h: the C ABI of attnsmith, for engines in C, Rust, Go, Python and anything else that can call C.
 *
 *   attnsmith_runtime_create(NULL, &runtime, &error);    opens nothing until it is needed
 *   attnsmith_prepare(runtime, &spec, &sizes, ATTNSMITH_CURRENT_DEVICE, &kernel, &error);
 *                                                        plans, takes from the cache or compiles, loads
 *   attnsmith_bind(kernel, &tensors, &batch, NULL, &call, &error);
 *                                                        checks and fixes the arguments
 *   attnsmith_launch(call, stream, &error);              any number of times; can be captured
 *
 * It is the C++ API, whose comments hold here: those of attnsmith/runtime.hpp on thread safety, lifetimes and
 * units (strides and shapes in elements), of attnsmith/spec.hpp on what each field of a spec means and may
 * be, of attnsmith/batch.hpp on the shapes of tensors and the rules of lengths. What is added:
 *
 * - Every function that can fail returns an attnsmith_code and takes `error`, which may be NULL. After a
 *   failure *error is a new object that the caller frees; after a success it is NULL. Outputs are written
 *   on success alone; objects and strings that are handed out belong to the caller and go back through
 *   their _free function, which takes NULL. No C++ exception leaves the library.
 * - A pointer may be NULL where it is said so; else that is ATTNSMITH_INVALID_REQUEST.
 * - Structs begin with `size`, which the caller sets to sizeof of the struct that it was compiled with; of
 *   structs that are written to as well. A struct of an older header is taken: the fields that it lacks are
 *   their defaults. One that is larger than this library's is refused. In a zeroed struct every field but
 *   `size` is its default.
 * - Tensors are DLPack's DLTensor, restated below with the same layout: a DLTensor* may be passed as it is.
 *   Nothing is copied; the memory behind the tensors must live while launches are in flight, the structs
 *   only during the call. A tensor with no elements may have NULL data.
 * - Text is UTF-8 and NUL-terminated.
 * - Callbacks return: nothing may be thrown out of them, and no longjmp leaves them.
 */
#ifndef ATTNSMITH_ATTNSMITH_H
#define ATTNSMITH_ATTNSMITH_H

#include <stddef.h>
#include <stdint.h>

#include "attnsmith/export.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Version and features ---- */

/* Raised when a function or a field changes its meaning; additions do not raise it. */
#define ATTNSMITH_ABI_VERSION 2

ATTNSMITH_API int32_t attnsmith_abi_version(void); /* of the library that is loaded */
ATTNSMITH_API const char* attnsmith_version(void); /* "0.1.0" */
/* 1 if the library has it, else 0. Features: each operation ("op:attention", ...), each backend of kernels
 * ("backend:mma", "backend:wgmma", ...) and each operation of attnsmith_cache ("cache:stat", ...). */
ATTNSMITH_API int32_t attnsmith_has_feature(const char* name);
/* All of them: a JSON array of strings, valid for ever. */
ATTNSMITH_API const char* attnsmith_features(void);

/* ---- Errors ---- */

/* ATTNSMITH_OK, or which kind of error it is. */
typedef int32_t attnsmith_code;
enum {
    ATTNSMITH_OK = 0,
    ATTNSMITH_INVALID_REQUEST = 1, /* details: field, value, accepted */
    ATTNSMITH_UNSUPPORTED = 2,     /* details: refusals [{candidate, reason}] */
    ATTNSMITH_COMPILE_ERROR = 3,   /* details: log, options, numbered_source */
    ATTNSMITH_DRIVER_ERROR = 4,    /* details: call, driver_code (CUresult), meaning */
    ATTNSMITH_LIBRARY_MISSING = 5, /* details: library, tried */
    ATTNSMITH_CACHE_ERROR = 6,
    ATTNSMITH_OUT_OF_MEMORY = 7, /* of the host */
    ATTNSMITH_FAILED = 8,        /* anything else */
    ATTNSMITH_KERNEL_MISSING = 9 /* on_miss is error; details: request, sm, key, command */
};

/* What went wrong: a code, a message and details. */
typedef struct attnsmith_error attnsmith_error;

ATTNSMITH_API attnsmith_code attnsmith_error_code(const attnsmith_error* error); /* ATTNSMITH_OK for NULL */
/* One line that a person can act on. Valid while the error is; "" for NULL. */
ATTNSMITH_API const char* attnsmith_error_message(const attnsmith_error* error);
/* A JSON object: "code" (the name above in lower case, "invalid_request"), "message", and the fields listed
 * above. Valid while the error is; "{}" for NULL. */
ATTNSMITH_API const char* attnsmith_error_details(const attnsmith_error* error);
/* Takes NULL. */
ATTNSMITH_API void attnsmith_error_free(attnsmith_error* error);

/* Frees what a function gave as char**. */
ATTNSMITH_API void attnsmith_string_free(char* text);

/* ---- Tensors ---- */

/* DLPack 1.x, https://dmlc.github.io/dlpack: DLDevice, DLDataType and DLTensor. */
enum { ATTNSMITH_DL_CUDA = 2, ATTNSMITH_DL_CUDA_MANAGED = 13 }; /* DLDeviceType */
enum {
    ATTNSMITH_DL_INT = 0,
    ATTNSMITH_DL_UINT = 1,
    ATTNSMITH_DL_FLOAT = 2,
    ATTNSMITH_DL_BFLOAT = 4,
    ATTNSMITH_DL_E4M3FN = 10,
    ATTNSMITH_DL_E5M2 = 12
}; /* DLDataTypeCode */

/* DLDevice: where a tensor's memory is. */
typedef struct attnsmith_dl_device {
    int32_t device_type; /* CUDA or CUDA managed memory; others are refused */
    int32_t device_id;   /* the ordinal; of CUDA memory it must be the kernel's */
} attnsmith_dl_device;

/* DLDataType: what a tensor's elements are. */
typedef struct attnsmith_dl_data_type {
    uint8_t code;   /* DLDataTypeCode */
    uint8_t bits;   /* of one element */
    uint16_t lanes; /* 1 */
} attnsmith_dl_data_type;

/* DLTensor: a strided view of memory. Shape and strides are in elements. */
typedef struct attnsmith_dl_tensor {
    void* data;                   /* an address of the device's */
    attnsmith_dl_device device;   /* where it is */
    int32_t ndim;                 /* axes, and the length of shape and strides */
    attnsmith_dl_data_type dtype; /* of the elements */
    int64_t* shape;               /* elements */
    int64_t* strides;             /* elements; NULL: row-major and compact */
    uint64_t byte_offset;         /* of the first element, from data */
} attnsmith_dl_tensor;

/* ---- What is asked for ---- */

enum {
    ATTNSMITH_OP_ATTENTION = 0,
    ATTNSMITH_OP_MLA = 1,
    ATTNSMITH_OP_MERGE = 2,
    ATTNSMITH_OP_APPEND = 3,
    ATTNSMITH_OP_TOP_K = 4
};
/* 0 is the default: bf16 of tensors, int32 of indices. */
enum {
    ATTNSMITH_FP16 = 1,
    ATTNSMITH_BF16 = 2,
    ATTNSMITH_FP32 = 3,
    ATTNSMITH_INT32 = 4,
    ATTNSMITH_INT64 = 5,
    ATTNSMITH_E4M3 = 6,
    ATTNSMITH_E5M2 = 7,
    ATTNSMITH_UINT8 = 8
};
enum { ATTNSMITH_MASK_FULL = 0, ATTNSMITH_MASK_CAUSAL = 1 };
enum { ATTNSMITH_KV_DENSE = 0, ATTNSMITH_KV_RAGGED = 1, ATTNSMITH_KV_PAGED = 2 };
enum { ATTNSMITH_PAGES_NHD = 0, ATTNSMITH_PAGES_HND = 1 };
enum { ATTNSMITH_PRECISION_DEFAULT = 0, ATTNSMITH_PRECISION_HIGH = 1 };
enum { ATTNSMITH_CONSISTENCY_DEFAULT = 0, ATTNSMITH_CONSISTENCY_BITWISE = 1 };
enum {
    ATTNSMITH_KV_SCALE_NONE = 0,
    ATTNSMITH_KV_SCALE_TENSOR = 1,
    ATTNSMITH_KV_SCALE_HEAD = 2,
    ATTNSMITH_KV_SCALE_TOKEN_HEAD = 3,
    ATTNSMITH_KV_SCALE_BLOCK128 = 4
};
enum { ATTNSMITH_SLOTS_MAPPING = 0, ATTNSMITH_SLOTS_TABLE = 1 };
enum { ATTNSMITH_ROPE_NONE = 0, ATTNSMITH_ROPE_HALF = 1, ATTNSMITH_ROPE_INTERLEAVED = 2 };
enum { ATTNSMITH_ROPE_TABLE_COS_SIN = 0, ATTNSMITH_ROPE_TABLE_FREQUENCIES = 1 };

/* attnsmith::AttentionSpec. A window bound must be 0 where its has_ is 0, which means no bound. */
typedef struct attnsmith_spec {
    size_t size;
    int32_t op;
    int32_t dtype;
    int32_t mask;
    int32_t kv;
    int32_t page_order;
    int32_t index_dtype;
    int32_t precision;
    int32_t consistency;
    int32_t alignment;                         /* bytes; 0 means 16 */
    int32_t alibi, sink, lse;                  /* 0 or 1 */
    int32_t has_window_left, has_window_right; /* 0 or 1 */
    int64_t window_left, window_right;
    int64_t head_dim_qk;
    int64_t head_dim_vo; /* 0 means head_dim_qk */
    int64_t q_heads;
    int64_t kv_heads; /* 0 means q_heads, of op mla 1 */
    int64_t page_size;
    double scale;            /* 0 means 1 / sqrt(head_dim_qk); op mla needs it */
    double softcap;          /* 0 means none */
    int64_t attention_chunk; /* tokens; 0 means none, here alone */
    int32_t o_dtype;         /* 0 means dtype's own */
    int32_t reserved;        /* 0 */
    int64_t head_dim_ckv;    /* of op mla, and of op append with latents */
    int64_t head_dim_kpe;    /* of op mla; 0 means no such columns */
    int32_t kv_dtype;        /* 0 means dtype's own */
    int32_t kv_scale;        /* ATTNSMITH_KV_SCALE_*, of a kv_dtype of 8 bits */
    int32_t slots;           /* from here on of op append alone */
    int32_t rope;
    int32_t rope_table;
    int32_t q_dtype;                             /* 0 means dtype's own */
    int32_t q_norm, k_norm, v_norm, check_slots; /* 0 or 1 */
    int64_t rotary_dim;                          /* 0 means all that can be */
    double rope_factor;                          /* 0 means 1 */
    double norm_eps;                             /* 0 means 1e-6 */
} attnsmith_spec;

/* attnsmith::PlanSizes. 0 means 1; a NULL pointer means 1, 1, 1. */
typedef struct attnsmith_sizes {
    size_t size;
    int64_t batch;
    int64_t q_len;
    int64_t kv_len;
} attnsmith_sizes;

/* ---- Runtime ---- */

/* attnsmith::Runtime. */
typedef struct attnsmith_runtime attnsmith_runtime;

/* 0: what the environment variable ATTNSMITH_LOG says, else warn. */
enum {
    ATTNSMITH_LOG_OFF = 1,
    ATTNSMITH_LOG_ERROR = 2,
    ATTNSMITH_LOG_WARN = 3,
    ATTNSMITH_LOG_INFO = 4,
    ATTNSMITH_LOG_DEBUG = 5
};
/* May be called from any thread, by several at a time, until the runtime and all that is pending of it are
 * freed. `line` has no newline, and is the callee's only during the call. */
typedef void (*attnsmith_log)(void* user, int32_t level, const char* line);

/* attnsmith::CacheTrust: whose cache directories may be used. */
enum { ATTNSMITH_CACHE_TRUST_OWNER = 0, ATTNSMITH_CACHE_TRUST_GROUP = 1, ATTNSMITH_CACHE_TRUST_ALL = 2 };

/* attnsmith::Toolchain: which NVRTC's entries of the cache may be used. */
enum { ATTNSMITH_TOOLCHAIN_NEWEST = 0, ATTNSMITH_TOOLCHAIN_EXACT = 1 };

/* attnsmith::OnMiss: what a kernel is that no cache has. 0: what the environment variable ATTNSMITH_ON_MISS
 * says, else compile. */
enum { ATTNSMITH_ON_MISS_COMPILE = 1, ATTNSMITH_ON_MISS_ERROR = 2 };

/* attnsmith::Allocate and attnsmith::Free: device memory for workspaces that calls own and for buffers.
 * Called in the context of the device, from any thread, until the runtime and all that came of it are freed;
 * gives NULL where there is no memory. The address is a multiple of 256. */
typedef void* (*attnsmith_memory_allocate)(void* user, size_t bytes, int32_t device);
/* Takes back what attnsmith_memory_allocate gave, with the same size and device. */
typedef void (*attnsmith_memory_free)(void* user, void* memory, size_t bytes, int32_t device);

/* attnsmith::RuntimeOptions. NULL, empty strings and 0 are the defaults. */
typedef struct attnsmith_runtime_options {
    size_t size;
    const char* const* cache_dirs; /* the writable one first; remote layers are addresses behind it */
    size_t cache_dir_count;
    const char* nvrtc_path;
    const char* driver_path;
    const char* keep_source_dir;
    attnsmith_log log; /* NULL: standard error */
    void* log_user;
    int32_t log_level;
    int32_t no_cache; /* 1: neither reads nor writes a directory */
    int32_t compile_threads;
    int32_t toolchain;               /* ATTNSMITH_TOOLCHAIN_... */
    int64_t cache_max_bytes;         /* of the writable directory; 0: 2 GiB; -1: no limit */
    int32_t cache_trust;             /* ATTNSMITH_CACHE_TRUST_... */
    int32_t no_cache_source;         /* 1: entries do not hold their kernels' sources */
    const char* const* tuning_files; /* those in front win; none: ATTNSMITH_TUNING */
    size_t tuning_file_count;
    const char* record_file;            /* gets a line for each spec prepared; empty: ATTNSMITH_RECORD */
    int32_t on_miss;                    /* ATTNSMITH_ON_MISS_... */
    int32_t reserved;                   /* 0 */
    attnsmith_memory_allocate allocate; /* both or neither; NULL: the driver's own */
    attnsmith_memory_free free;
    void* memory_user;
    const char* const* trust_key_files; /* of public keys; none: ATTNSMITH_CACHE_TRUST_KEYS */
    size_t trust_key_file_count;
    const char* sign_key_file; /* of a secret key; empty: ATTNSMITH_CACHE_SIGN_KEY */
    int32_t push_compiled;     /* 1: to the remote layers; 0: as ATTNSMITH_CACHE_PUSH says, else not */
    int32_t reserved_2;        /* 0 */
} attnsmith_runtime_options;

/* `options` may be NULL. */
ATTNSMITH_API attnsmith_code attnsmith_runtime_create(const attnsmith_runtime_options* options,
                                                      attnsmith_runtime** runtime, attnsmith_error** error);
/* Kernels, calls and buffers of it may outlive it. Waits for what is pending. */
ATTNSMITH_API void attnsmith_runtime_free(attnsmith_runtime* runtime);

/* A JSON array of {"index", "name", "sm", "sm_count", "memory_bytes"}; empty where there is no driver or
 * no GPU. */
ATTNSMITH_API attnsmith_code attnsmith_devices_json(attnsmith_runtime* runtime, char** json,
                                                    attnsmith_error** error);

/* ---- Requests, models and plans; none of these needs a GPU ---- */

/* Reads a JSON request ({"op": "attention", "head_dim": 128, ...}) into a spec and sizes, whose `size` is set
 * by the caller. Its "sm" is checked and left out. */
ATTNSMITH_API attnsmith_code attnsmith_parse_request(const char* json, attnsmith_spec* spec,
                                                     attnsmith_sizes* sizes, attnsmith_error** error);
/* The validated request as JSON with every default filled in. */
ATTNSMITH_API attnsmith_code attnsmith_request_json(const attnsmith_spec* spec, const attnsmith_sizes* sizes,
                                                    char** json, attnsmith_error** error);
/* The distinct attentions of a Hugging Face config.json (its text): {"model_type", "attentions": [{"name",
 * "phase", "layers", "notes", "request": {...}}], "unsupported": [{"name", "reason"}], "warnings": [{"kind",
 * "field", "text"}]}. A warning's kind is "unknown_type", "unread_field", "not_planned" or "approximated".
 * `options` is NULL or a JSON object with any of dtype, lse, kv, page_size, page_order, index_dtype,
 * alignment, o_dtype, kv_dtype, kv_scale, precision, consistency, slots, batch, q_len, kv_len,
 * tensor_parallel and strict. With "strict": true an unsupported part or a warning gives
 * ATTNSMITH_UNSUPPORTED, whose refusals are all of them. */
ATTNSMITH_API attnsmith_code attnsmith_model_json(const char* config_json, const char* options, char** json,
                                                  attnsmith_error** error);
/* The attentions of a request, or of a model, where words of a program's choice (dtype, lse, kv, page_order,
 * page_size, index_dtype, alignment, o_dtype, kv_dtype, kv_scale, precision, consistency, slots) may be
 * arrays: those of every combination, each once. `config_json` is a config.json's text, and `words` what
 * attnsmith_model_json takes as options; or it is NULL, and `words` is a request. As the JSON of
 * attnsmith_model_json without its "model_type", and with "skipped": [{"name", "reason"}], combinations that
 * there are not, such as a page size of dense KV. A suffix in a request's sm that says nothing, as in "90f",
 * is a warning of kind "ignored". */
ATTNSMITH_API attnsmith_code attnsmith_coverage_json(const char* config_json, const char* words, char** json,
                                                     attnsmith_error** error);
/* The same of the text of a file that programs recorded (attnsmith_runtime_options.record_file): each spec
 * once. A line that a killed process left torn is skipped, and listed. `name` is the file's, for messages. */
ATTNSMITH_API attnsmith_code attnsmith_recorded_json(const char* text, const char* name, char** json,
                                                     attnsmith_error** error);
/* The plan, schema attnsmith.plan/1. `sm` 0 is the current device. */
ATTNSMITH_API attnsmith_code attnsmith_plan_json(attnsmith_runtime* runtime, const attnsmith_spec* spec,
                                                 const attnsmith_sizes* sizes, int32_t sm, char** json,
                                                 attnsmith_error** error);

/* Called from one thread at a time. `kernel` is JSON, the callee's only during the call: {"name", "sm",
 * "key", "state", "ms", "cubin_bytes"} and, of a failed one, "error". Anything but 0 cancels what is not
 * being compiled yet. */
typedef int32_t (*attnsmith_progress)(void* user, const char* kernel, int32_t done, int32_t total);

/* attnsmith::PrewarmOptions. */
typedef struct attnsmith_prewarm_options {
    size_t size;
    attnsmith_progress progress; /* or NULL */
    void* progress_user;         /* `progress` gets it */
    int32_t jobs;                /* 0: the number of cores */
    int32_t reserved;            /* 0 */
    int32_t push;                /* 1: kernels that remote layers lack are put there, too */
    int32_t no_compile;          /* 1: what neither the cache nor a remote layer has is missing */
} attnsmith_prewarm_options;

/* Compiles into the cache every kernel that planning could choose for these specs on these compute
 * capabilities. `options` may be NULL. `report` is JSON of schema attnsmith.prewarm/1; kernels that failed
 * are in it, and do not fail the call, nor do specs that no kernel serves: "unsupported": [{"spec" (the place
 * in `specs`), "sm", "reason"}]. No specs or no SMs is nothing to do: a report of 0 kernels. There may be any
 * number of specs. Where a kernel is not in the cache and there is no NVRTC, or the cache cannot be written,
 * the call fails before anything is compiled. */
ATTNSMITH_API attnsmith_code attnsmith_prewarm(attnsmith_runtime* runtime, const attnsmith_spec* const* specs,
                                               size_t spec_count, const int32_t* sms, size_t sm_count,
                                               const attnsmith_prewarm_options* options, char** report,
                                               attnsmith_error** error);

/* Does "ls", "dir", "stat", "explain", "verify", "gc", "clear", "rm", "export", "import" or "push" on the
 * runtime's cache directories: the JSON is what the command `attnsmith cache OPERATION --json` prints.
 * `options` is NULL, which is "{}", or a JSON object: of "gc", {"max_bytes"}, which is optional; of
 * "explain", {"key"} or
 * {"request": {with its "sm"}}; of "rm", {"key"} (or how it begins); of "export", {"file", "sm": [...],
 * "model": {a config.json}, "model_options": {...}}, all but the file optional, or instead of the file
 * {"oci": DIR, "tag"}, for an image; of "push", which puts entries to the remote layers, {"sm", "model",
 * "model_options"}, all optional; of "import", {"file"}; of the others, {}. */
ATTNSMITH_API attnsmith_code attnsmith_cache(attnsmith_runtime* runtime, const char* operation,
                                             const char* options, char** json, attnsmith_error** error);

/* ---- Kernels ---- */

/* attnsmith::Kernel. */
typedef struct attnsmith_kernel attnsmith_kernel;

#define ATTNSMITH_CURRENT_DEVICE (-1) /* that of the caller's context, else device 0 */

/* The kernel for this problem on `device`. The first call plans, reads the cache or compiles, and loads;
 * later ones are a look-up. */
ATTNSMITH_API attnsmith_code attnsmith_prepare(attnsmith_runtime* runtime, const attnsmith_spec* spec,
                                               const attnsmith_sizes* sizes, int32_t device,
                                               attnsmith_kernel** kernel, attnsmith_error** error);
/* Takes NULL. Calls of it may outlive it. */
ATTNSMITH_API void attnsmith_kernel_free(attnsmith_kernel* kernel);

/* A kernel that is being prepared in the background. */
typedef struct attnsmith_pending attnsmith_pending;
/* As attnsmith_prepare, in the background. */
ATTNSMITH_API attnsmith_code attnsmith_prepare_async(attnsmith_runtime* runtime, const attnsmith_spec* spec,
                                                     const attnsmith_sizes* sizes, int32_t device,
                                                     attnsmith_pending** pending, attnsmith_error** error);
/* 1 if the next call does not wait, else 0. */
ATTNSMITH_API int32_t attnsmith_pending_ready(const attnsmith_pending* pending);
/* Waits, and hands out a kernel, or fails as attnsmith_prepare does. May be called more than once. */
ATTNSMITH_API attnsmith_code attnsmith_pending_kernel(const attnsmith_pending* pending,
                                                      attnsmith_kernel** kernel, attnsmith_error** error);
ATTNSMITH_API void attnsmith_pending_free(attnsmith_pending* pending); /* waits */

/* The normalised spec, into a struct whose `size` is set. */
ATTNSMITH_API attnsmith_code attnsmith_kernel_spec(const attnsmith_kernel* kernel, attnsmith_spec* spec,
                                                   attnsmith_error** error);
/* The ordinal; -1 for NULL. */
ATTNSMITH_API int32_t attnsmith_kernel_device(const attnsmith_kernel* kernel);
/* The plan that chose it, schema attnsmith.plan/1. */
ATTNSMITH_API attnsmith_code attnsmith_kernel_plan_json(const attnsmith_kernel* kernel, char** json,
                                                        attnsmith_error** error);
/* Bytes of workspace for tensors of these bounds. `q_tokens` counts the queries of all sequences. */
ATTNSMITH_API attnsmith_code attnsmith_workspace_bytes(const attnsmith_kernel* kernel, int64_t batch,
                                                       int64_t q_tokens, int64_t max_kv_len, size_t* bytes,
                                                       attnsmith_error** error);

/* ---- Sets of kernels ---- */

/* attnsmith::KernelSet: every kernel that planning could choose for a spec, loaded. A call of one of its
 * kernels divides the keys as planning would for the bounds that it is bound with. */
typedef struct attnsmith_kernel_set attnsmith_kernel_set;

/* All of them are compiled or taken from the cache, and loaded, when this returns. */
ATTNSMITH_API attnsmith_code attnsmith_prepare_set(attnsmith_runtime* runtime, const attnsmith_spec* spec,
                                                   int32_t device, attnsmith_kernel_set** set,
                                                   attnsmith_error** error);
/* Takes NULL. Calls of its kernels may outlive it. */
ATTNSMITH_API void attnsmith_kernel_set_free(attnsmith_kernel_set* set);
/* The kernel that attnsmith_prepare would choose for these sizes. It is the set's: it is not freed, and is
 * valid while the set is. Takes no lock and allocates nothing; sizes that were asked before take nanoseconds,
 * others less than a microsecond. */
ATTNSMITH_API attnsmith_code attnsmith_kernel_set_pick(const attnsmith_kernel_set* set,
                                                       const attnsmith_sizes* sizes,
                                                       const attnsmith_kernel** kernel,
                                                       attnsmith_error** error);
/* How many kernels attnsmith_kernel_set_pick can give; 0 for NULL. */
ATTNSMITH_API size_t attnsmith_kernel_set_size(const attnsmith_kernel_set* set);
/* Bytes of a workspace that serves every kernel of the set, for any tensors within these bounds, which are
 * those of attnsmith_workspace_bytes. */
ATTNSMITH_API attnsmith_code attnsmith_kernel_set_workspace_bytes(const attnsmith_kernel_set* set,
                                                                  int64_t batch, int64_t q_tokens,
                                                                  int64_t max_kv_len, size_t* bytes,
                                                                  attnsmith_error** error);

/* ---- Calls ---- */

/* attnsmith::AttentionTensors: NULL is a tensor that is not there. */
typedef struct attnsmith_tensors {
    size_t size;
    const attnsmith_dl_tensor* q;
    const attnsmith_dl_tensor* k;
    const attnsmith_dl_tensor* v;
    const attnsmith_dl_tensor* o;
    const attnsmith_dl_tensor* lse;
    const attnsmith_dl_tensor* sinks;
    const attnsmith_dl_tensor* alibi_slopes;
    const attnsmith_dl_tensor* q_pe; /* of op mla, as kpe */
    const attnsmith_dl_tensor* kpe;
    const attnsmith_dl_tensor* k_scale; /* of a spec with kv_scale, as v_scale; of tokens, with any strides */
    const attnsmith_dl_tensor* v_scale;
} attnsmith_tensors;

/* attnsmith::Batch. */
typedef struct attnsmith_batch {
    size_t size;
    const attnsmith_dl_tensor* q_indptr;
    const attnsmith_dl_tensor* q_lens;
    const attnsmith_dl_tensor* kv_indptr;
    const attnsmith_dl_tensor* kv_lens;
    const attnsmith_dl_tensor* page_table;
    const attnsmith_dl_tensor* page_indptr;
    const attnsmith_dl_tensor* page_indices;
    const attnsmith_dl_tensor* last_page_len;
    int64_t max_q_len;
    int64_t max_kv_len;
    const attnsmith_dl_tensor* table_rows;
} attnsmith_batch;

/* attnsmith::MergeTensors. Both lists have `state_count` tensors, none of them NULL. */
typedef struct attnsmith_merge_tensors {
    size_t size;
    size_t state_count;
    const attnsmith_dl_tensor* const* o_states;
    const attnsmith_dl_tensor* const* lse_states;
    const attnsmith_dl_tensor* o;
    const attnsmith_dl_tensor* lse;
} attnsmith_merge_tensors;

/* attnsmith::AppendTensors: NULL is a tensor that is not there. */
typedef struct attnsmith_append_tensors {
    size_t size;
    const attnsmith_dl_tensor* q;
    const attnsmith_dl_tensor* k;
    const attnsmith_dl_tensor* v;
    const attnsmith_dl_tensor* q_out;
    const attnsmith_dl_tensor* k_cache;
    const attnsmith_dl_tensor* v_cache;
    const attnsmith_dl_tensor* kpe; /* of latents, as kpe_cache */
    const attnsmith_dl_tensor* kpe_cache;
    const attnsmith_dl_tensor* slot_mapping;
    const attnsmith_dl_tensor* positions;
    const attnsmith_dl_tensor* rope_table;
    const attnsmith_dl_tensor* q_norm_weight;
    const attnsmith_dl_tensor* k_norm_weight;
    const attnsmith_dl_tensor* k_scale; /* of token_head and block128 written, as v_scale */
    const attnsmith_dl_tensor* v_scale;
    const attnsmith_dl_tensor* q_scale;
} attnsmith_append_tensors;

/* attnsmith::TopKTensors: NULL is a tensor that is not there. */
typedef struct attnsmith_top_k_tensors {
    size_t size;
    const attnsmith_dl_tensor* scores;
    const attnsmith_dl_tensor* row_starts;
    const attnsmith_dl_tensor* row_ends;
    const attnsmith_dl_tensor* indices;
} attnsmith_top_k_tensors;

/* Bytes at the start of a workspace, below. */
enum { ATTNSMITH_WORKSPACE_ZEROED_BYTES = 8192 };
/* attnsmith::Workspace: device memory, 256-byte aligned, whose first ATTNSMITH_WORKSPACE_ZEROED_BYTES the
 * caller zeroed once, before the first launch, and leaves alone from then on. No two launches may use one at
 * the same time. */
typedef struct attnsmith_workspace {
    size_t size;
    void* data;
    size_t bytes;
} attnsmith_workspace;

/* attnsmith::Call. */
typedef struct attnsmith_call attnsmith_call;

/* Checks the tensors against the kernel's spec and fixes the arguments. `batch` may be NULL: dense, all
 * lengths as the shapes say. `workspace` NULL: the call owns one. */
ATTNSMITH_API attnsmith_code attnsmith_bind(const attnsmith_kernel* kernel, const attnsmith_tensors* tensors,
                                            const attnsmith_batch* batch,
                                            const attnsmith_workspace* workspace, attnsmith_call** call,
                                            attnsmith_error** error);
/* The same of a merge, which needs no workspace. */
ATTNSMITH_API attnsmith_code attnsmith_bind_merge(const attnsmith_kernel* kernel,
                                                  const attnsmith_merge_tensors* tensors,
                                                  attnsmith_call** call, attnsmith_error** error);
/* The same of an append. `batch` is NULL with ATTNSMITH_SLOTS_MAPPING. */
ATTNSMITH_API attnsmith_code attnsmith_bind_append(const attnsmith_kernel* kernel,
                                                   const attnsmith_append_tensors* tensors,
                                                   const attnsmith_batch* batch,
                                                   const attnsmith_workspace* workspace,
                                                   attnsmith_call** call, attnsmith_error** error);
/* Binds the tensors of a kernel of op top_k. `batch` is NULL, or empty. */
ATTNSMITH_API attnsmith_code attnsmith_bind_top_k(const attnsmith_kernel* kernel,
                                                  const attnsmith_top_k_tensors* tensors,
                                                  const attnsmith_batch* batch,
                                                  const attnsmith_workspace* workspace, attnsmith_call** call,
                                                  attnsmith_error** error);
/* Takes NULL. */
ATTNSMITH_API void attnsmith_call_free(attnsmith_call* call);

/* Enqueues the kernels on `stream`, a CUstream or cudaStream_t; NULL is the default stream of the kernel's
 * device. */
ATTNSMITH_API attnsmith_code attnsmith_launch(const attnsmith_call* call, void* stream,
                                              attnsmith_error** error);

/* attnsmith::TensorAddresses: NULL is the address that was bound. */
typedef struct attnsmith_tensor_addresses {
    size_t size;
    const void* q;
    const void* k;
    const void* v;
    void* o;
    float* lse;
    const float* sinks;
    const float* alibi_slopes;
    const void* q_pe;
    const void* kpe;
    const float* k_scale;
    const float* v_scale;
} attnsmith_tensor_addresses;

/* The same with other addresses for some of the tensors, for this launch alone: a call that was bound once
 * serves every layer. Shapes, strides, lengths and page tables are those that were bound. Refused for a call
 * of other tensors than attnsmith_tensors. */
ATTNSMITH_API attnsmith_code attnsmith_launch_at(const attnsmith_call* call,
                                                 const attnsmith_tensor_addresses* addresses, void* stream,
                                                 attnsmith_error** error);

/* What a captured launch uses of a call: the loaded code, and the workspace where the call owns one. */
typedef struct attnsmith_kept attnsmith_kept;
/* For a graph that outlives the call. The last to be freed of this and the call frees memory by the driver:
 * the destructor of a CUDA user object, which may not, hands it to another thread. */
ATTNSMITH_API attnsmith_code attnsmith_call_keep_alive(const attnsmith_call* call, attnsmith_kept** kept,
                                                       attnsmith_error** error);
/* Takes NULL. */
ATTNSMITH_API void attnsmith_kept_free(attnsmith_kept* kept);

/* attnsmith::CallStatus: what the launches so far found wrong in device-side lengths, as a set of these bits.
 */
enum {
    ATTNSMITH_Q_LEN_CLAMPED = 1,
    ATTNSMITH_KV_LEN_CLAMPED = 2,
    ATTNSMITH_PAGE_OUT_OF_RANGE = 4,
    ATTNSMITH_WORKSPACE_NOT_ZEROED = 8,
    ATTNSMITH_SCALE_NOT_POSITIVE = 16,
    ATTNSMITH_SLOT_OUT_OF_RANGE = 32,
    ATTNSMITH_POSITION_OUT_OF_RANGE = 64,
    ATTNSMITH_SLOT_WRITTEN_TWICE = 128
};
/* Enqueues a copy of the bits to `word`, page-locked host memory (or device memory); waits for nothing and
 * may be captured. */
ATTNSMITH_API attnsmith_code attnsmith_call_copy_status(const attnsmith_call* call, uint32_t* word,
                                                        void* stream, attnsmith_error** error);
/* The bits after all that `stream` was given so far. Waits for that stream alone; refused, without harm to
 * any capture, where it is being captured. */
ATTNSMITH_API attnsmith_code attnsmith_call_status(const attnsmith_call* call, void* stream, uint32_t* bits,
                                                   attnsmith_error** error);
/* Clears them in the stream's order. */
ATTNSMITH_API attnsmith_code attnsmith_call_clear_status(const attnsmith_call* call, void* stream,
                                                         attnsmith_error** error);
/* Waits for all that `stream` was given; NULL is the default stream of the kernel's device, which
 * attnsmith_launch takes, too. */
ATTNSMITH_API attnsmith_code attnsmith_call_synchronize(const attnsmith_call* call, void* stream,
                                                        attnsmith_error** error);
/* The kernels' grids, for logs. */
ATTNSMITH_API attnsmith_code attnsmith_call_describe(const attnsmith_call* call, char** text,
                                                     attnsmith_error** error);

/* Bind and launch in one, for tensors that are new each time. Allocates no device memory: the workspace is
 * the caller's, and must not be in use by another stream's launch. */
ATTNSMITH_API attnsmith_code attnsmith_run(const attnsmith_kernel* kernel, const attnsmith_tensors* tensors,
                                           const attnsmith_batch* batch, const attnsmith_workspace* workspace,
                                           void* stream, attnsmith_error** error);
/* The same of a merge. */
ATTNSMITH_API attnsmith_code attnsmith_run_merge(const attnsmith_kernel* kernel,
                                                 const attnsmith_merge_tensors* tensors, void* stream,
                                                 attnsmith_error** error);
/* The same of an append. */
ATTNSMITH_API attnsmith_code attnsmith_run_append(const attnsmith_kernel* kernel,
                                                  const attnsmith_append_tensors* tensors,
                                                  const attnsmith_batch* batch,
                                                  const attnsmith_workspace* workspace, void* stream,
                                                  attnsmith_error** error);

/* Binds the tensors of a kernel of op top_k and launches it. */
ATTNSMITH_API attnsmith_code attnsmith_run_top_k(const attnsmith_kernel* kernel,
                                                 const attnsmith_top_k_tensors* tensors,
                                                 const attnsmith_batch* batch,
                                                 const attnsmith_workspace* workspace, void* stream,
                                                 attnsmith_error** error);

/* ---- Device memory, for programs without a framework of their own ---- */

/* attnsmith::Buffer. */
typedef struct attnsmith_buffer attnsmith_buffer;

/* `bytes` of device memory, at an address that is a multiple of 256. */
ATTNSMITH_API attnsmith_code attnsmith_allocate(attnsmith_runtime* runtime, int32_t device, size_t bytes,
                                                attnsmith_buffer** buffer, attnsmith_error** error);
/* A device address; NULL for NULL. */
ATTNSMITH_API void* attnsmith_buffer_data(const attnsmith_buffer* buffer);
/* As asked for; 0 for NULL. */
ATTNSMITH_API size_t attnsmith_buffer_bytes(const attnsmith_buffer* buffer);
/* Copies to the device, in the order of the default stream, and waits for it alone until the copy is done.
 * `offset` and `bytes` are of the buffer, and within it. */
ATTNSMITH_API attnsmith_code attnsmith_upload(attnsmith_buffer* buffer, const void* host, size_t bytes,
                                              size_t offset, attnsmith_error** error);
/* Copies to the host, likewise. */
ATTNSMITH_API attnsmith_code attnsmith_download(const attnsmith_buffer* buffer, void* host, size_t bytes,
                                                size_t offset, attnsmith_error** error);
/* Takes NULL. */
ATTNSMITH_API void attnsmith_buffer_free(attnsmith_buffer* buffer);
/* Waits for all of a stream; NULL is the default stream of the caller's context. */
ATTNSMITH_API attnsmith_code attnsmith_synchronize(attnsmith_runtime* runtime, void* stream,
                                                   attnsmith_error** error);

#ifdef __cplusplus
}
#endif

#endif
