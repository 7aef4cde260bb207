/* Old names of the C ABI, from before the release 0.1. Each warns, and says what to use. None is exported by
 * the library. attnsmith.h includes this file unless ATTNSMITH_NO_DEPRECATED is defined. */
#ifndef ATTNSMITH_DEPRECATED_H
#define ATTNSMITH_DEPRECATED_H

#ifdef __cplusplus
extern "C" {
#endif

/* A constant with its old name. */
#define ATTNSMITH_OLD_NAME(old_name, new_name) old_name ATTNSMITH_DEPRECATED("use " #new_name) = new_name
enum {
    ATTNSMITH_OLD_NAME(ATTNSMITH_INVALID_REQUEST, ATTNSMITH_CODE_INVALID_REQUEST),
    ATTNSMITH_OLD_NAME(ATTNSMITH_UNSUPPORTED, ATTNSMITH_CODE_UNSUPPORTED),
    ATTNSMITH_OLD_NAME(ATTNSMITH_COMPILE_ERROR, ATTNSMITH_CODE_COMPILE_ERROR),
    ATTNSMITH_OLD_NAME(ATTNSMITH_DRIVER_ERROR, ATTNSMITH_CODE_DRIVER_ERROR),
    ATTNSMITH_OLD_NAME(ATTNSMITH_LIBRARY_MISSING, ATTNSMITH_CODE_LIBRARY_MISSING),
    ATTNSMITH_OLD_NAME(ATTNSMITH_CACHE_ERROR, ATTNSMITH_CODE_CACHE_ERROR),
    ATTNSMITH_OLD_NAME(ATTNSMITH_OUT_OF_MEMORY, ATTNSMITH_CODE_OUT_OF_MEMORY),
    ATTNSMITH_OLD_NAME(ATTNSMITH_FAILED, ATTNSMITH_CODE_FAILED),
    ATTNSMITH_OLD_NAME(ATTNSMITH_KERNEL_MISSING, ATTNSMITH_CODE_KERNEL_MISSING),
    ATTNSMITH_OLD_NAME(ATTNSMITH_FP16, ATTNSMITH_DTYPE_FP16),
    ATTNSMITH_OLD_NAME(ATTNSMITH_BF16, ATTNSMITH_DTYPE_BF16),
    ATTNSMITH_OLD_NAME(ATTNSMITH_FP32, ATTNSMITH_DTYPE_FP32),
    ATTNSMITH_OLD_NAME(ATTNSMITH_INT32, ATTNSMITH_DTYPE_INT32),
    ATTNSMITH_OLD_NAME(ATTNSMITH_INT64, ATTNSMITH_DTYPE_INT64),
    ATTNSMITH_OLD_NAME(ATTNSMITH_E4M3, ATTNSMITH_DTYPE_E4M3),
    ATTNSMITH_OLD_NAME(ATTNSMITH_E5M2, ATTNSMITH_DTYPE_E5M2),
    ATTNSMITH_OLD_NAME(ATTNSMITH_UINT8, ATTNSMITH_DTYPE_UINT8),
    ATTNSMITH_OLD_NAME(ATTNSMITH_PAGES_NHD, ATTNSMITH_PAGE_ORDER_NHD),
    ATTNSMITH_OLD_NAME(ATTNSMITH_PAGES_HND, ATTNSMITH_PAGE_ORDER_HND),
    ATTNSMITH_OLD_NAME(ATTNSMITH_Q_LEN_CLAMPED, ATTNSMITH_STATUS_Q_LEN_CLAMPED),
    ATTNSMITH_OLD_NAME(ATTNSMITH_KV_LEN_CLAMPED, ATTNSMITH_STATUS_KV_LEN_CLAMPED),
    ATTNSMITH_OLD_NAME(ATTNSMITH_PAGE_OUT_OF_RANGE, ATTNSMITH_STATUS_PAGE_OUT_OF_RANGE),
    ATTNSMITH_OLD_NAME(ATTNSMITH_WORKSPACE_NOT_ZEROED, ATTNSMITH_STATUS_WORKSPACE_NOT_ZEROED),
    ATTNSMITH_OLD_NAME(ATTNSMITH_SCALE_NOT_POSITIVE, ATTNSMITH_STATUS_SCALE_NOT_POSITIVE),
    ATTNSMITH_OLD_NAME(ATTNSMITH_SLOT_OUT_OF_RANGE, ATTNSMITH_STATUS_SLOT_OUT_OF_RANGE),
    ATTNSMITH_OLD_NAME(ATTNSMITH_POSITION_OUT_OF_RANGE, ATTNSMITH_STATUS_POSITION_OUT_OF_RANGE),
    ATTNSMITH_OLD_NAME(ATTNSMITH_SLOT_WRITTEN_TWICE, ATTNSMITH_STATUS_SLOT_WRITTEN_TWICE),
    ATTNSMITH_OLD_NAME(ATTNSMITH_PRECISION_DEFAULT, ATTNSMITH_PRECISION_STANDARD),
    ATTNSMITH_OLD_NAME(ATTNSMITH_CONSISTENCY_DEFAULT, ATTNSMITH_CONSISTENCY_STANDARD)
};
#undef ATTNSMITH_OLD_NAME

typedef attnsmith_log_fn attnsmith_log ATTNSMITH_DEPRECATED("use attnsmith_log_fn");
typedef attnsmith_progress_fn attnsmith_progress ATTNSMITH_DEPRECATED("use attnsmith_progress_fn");
typedef attnsmith_allocate_fn attnsmith_memory_allocate ATTNSMITH_DEPRECATED("use attnsmith_allocate_fn");
typedef attnsmith_release_fn attnsmith_memory_free ATTNSMITH_DEPRECATED("use attnsmith_release_fn");

ATTNSMITH_DEPRECATED("use attnsmith_buffer_allocate")
static inline attnsmith_code attnsmith_allocate(attnsmith_runtime* runtime, int32_t device, size_t bytes,
                                                attnsmith_buffer** buffer,
                                                attnsmith_error** error) ATTNSMITH_NOEXCEPT {
    return attnsmith_buffer_allocate(runtime, device, bytes, buffer, error);
}

ATTNSMITH_DEPRECATED("use attnsmith_buffer_upload")
static inline attnsmith_code attnsmith_upload(attnsmith_buffer* buffer, const void* host, size_t bytes,
                                              size_t offset, attnsmith_error** error) ATTNSMITH_NOEXCEPT {
    return attnsmith_buffer_upload(buffer, host, bytes, offset, error);
}

ATTNSMITH_DEPRECATED("use attnsmith_buffer_download")
static inline attnsmith_code attnsmith_download(const attnsmith_buffer* buffer, void* host, size_t bytes,
                                                size_t offset, attnsmith_error** error) ATTNSMITH_NOEXCEPT {
    return attnsmith_buffer_download(buffer, host, bytes, offset, error);
}

ATTNSMITH_DEPRECATED("use attnsmith_call_launch_at")
static inline attnsmith_code attnsmith_launch_at(const attnsmith_call* call,
                                                 const attnsmith_tensor_addresses* addresses, void* stream,
                                                 attnsmith_error** error) ATTNSMITH_NOEXCEPT {
    return attnsmith_call_launch_at(call, addresses, stream, error);
}

ATTNSMITH_DEPRECATED("use attnsmith_kernel_workspace_bytes")
static inline attnsmith_code attnsmith_workspace_bytes(const attnsmith_kernel* kernel, int64_t batch,
                                                       int64_t q_tokens, int64_t max_kv_len, size_t* bytes,
                                                       attnsmith_error** error) ATTNSMITH_NOEXCEPT {
    const attnsmith_workspace_bounds bounds = {sizeof bounds, batch, q_tokens, max_kv_len};
    return attnsmith_kernel_workspace_bytes(kernel, &bounds, bytes, error);
}

ATTNSMITH_DEPRECATED("use attnsmith_model_coverage_json or attnsmith_request_coverage_json")
static inline attnsmith_code attnsmith_coverage_json(const char* config_json, const char* words, char** json,
                                                     attnsmith_error** error) ATTNSMITH_NOEXCEPT {
    if (config_json != NULL) return attnsmith_model_coverage_json(config_json, words, json, error);
    return attnsmith_request_coverage_json(words == NULL ? "{}" : words, json, error);
}

ATTNSMITH_DEPRECATED("use attnsmith_recorded_coverage_json")
static inline attnsmith_code attnsmith_recorded_json(const char* text, const char* name, char** json,
                                                     attnsmith_error** error) ATTNSMITH_NOEXCEPT {
    return attnsmith_recorded_coverage_json(text, name, json, error);
}

#ifdef __cplusplus
}
#endif

#endif
