/* The layout of every struct, the value of every constant and the name of every function are the ABI: what is
 * written out here may be added to, never changed. */
#include <attnsmith/attnsmith.h>

#include "check.h"

#define SIZE(type, bytes) _Static_assert(sizeof(type) == (bytes), #type)
#define FIELD(type, field, offset) _Static_assert(offsetof(type, field) == (offset), #type "." #field)
#define VALUE(name, value) _Static_assert((name) == (value), #name)

/* DLPack 1.x, as its dlpack.h has it. */
SIZE(attnsmith_dl_device, 8);
FIELD(attnsmith_dl_device, device_type, 0);
FIELD(attnsmith_dl_device, device_id, 4);
SIZE(attnsmith_dl_data_type, 4);
FIELD(attnsmith_dl_data_type, code, 0);
FIELD(attnsmith_dl_data_type, bits, 1);
FIELD(attnsmith_dl_data_type, lanes, 2);
SIZE(attnsmith_dl_tensor, 48);
FIELD(attnsmith_dl_tensor, data, 0);
FIELD(attnsmith_dl_tensor, device, 8);
FIELD(attnsmith_dl_tensor, ndim, 16);
FIELD(attnsmith_dl_tensor, dtype, 20);
FIELD(attnsmith_dl_tensor, shape, 24);
FIELD(attnsmith_dl_tensor, strides, 32);
FIELD(attnsmith_dl_tensor, byte_offset, 40);
VALUE(ATTNSMITH_DL_CUDA, 2);
VALUE(ATTNSMITH_DL_CUDA_MANAGED, 13);
VALUE(ATTNSMITH_DL_INT, 0);
VALUE(ATTNSMITH_DL_UINT, 1);
VALUE(ATTNSMITH_DL_FLOAT, 2);
VALUE(ATTNSMITH_DL_BFLOAT, 4);
VALUE(ATTNSMITH_DL_E4M3FN, 10);
VALUE(ATTNSMITH_DL_E5M2, 12);

SIZE(attnsmith_spec, 232);
FIELD(attnsmith_spec, size, 0);
FIELD(attnsmith_spec, op, 8);
FIELD(attnsmith_spec, dtype, 12);
FIELD(attnsmith_spec, mask, 16);
FIELD(attnsmith_spec, kv, 20);
FIELD(attnsmith_spec, page_order, 24);
FIELD(attnsmith_spec, index_dtype, 28);
FIELD(attnsmith_spec, precision, 32);
FIELD(attnsmith_spec, consistency, 36);
FIELD(attnsmith_spec, alignment, 40);
FIELD(attnsmith_spec, alibi, 44);
FIELD(attnsmith_spec, sink, 48);
FIELD(attnsmith_spec, lse, 52);
FIELD(attnsmith_spec, has_window_left, 56);
FIELD(attnsmith_spec, has_window_right, 60);
FIELD(attnsmith_spec, window_left, 64);
FIELD(attnsmith_spec, window_right, 72);
FIELD(attnsmith_spec, head_dim_qk, 80);
FIELD(attnsmith_spec, head_dim_vo, 88);
FIELD(attnsmith_spec, q_heads, 96);
FIELD(attnsmith_spec, kv_heads, 104);
FIELD(attnsmith_spec, page_size, 112);
FIELD(attnsmith_spec, scale, 120);
FIELD(attnsmith_spec, softcap, 128);
FIELD(attnsmith_spec, attention_chunk, 136);
FIELD(attnsmith_spec, o_dtype, 144);
FIELD(attnsmith_spec, reserved, 148);
FIELD(attnsmith_spec, head_dim_ckv, 152);
FIELD(attnsmith_spec, head_dim_kpe, 160);
FIELD(attnsmith_spec, kv_dtype, 168);
FIELD(attnsmith_spec, kv_scale, 172);
FIELD(attnsmith_spec, slots, 176);
FIELD(attnsmith_spec, rope, 180);
FIELD(attnsmith_spec, rope_table, 184);
FIELD(attnsmith_spec, q_dtype, 188);
FIELD(attnsmith_spec, q_norm, 192);
FIELD(attnsmith_spec, k_norm, 196);
FIELD(attnsmith_spec, v_norm, 200);
FIELD(attnsmith_spec, check_slots, 204);
FIELD(attnsmith_spec, rotary_dim, 208);
FIELD(attnsmith_spec, rope_factor, 216);
FIELD(attnsmith_spec, norm_eps, 224);

SIZE(attnsmith_sizes, 32);
FIELD(attnsmith_sizes, size, 0);
FIELD(attnsmith_sizes, batch, 8);
FIELD(attnsmith_sizes, q_len, 16);
FIELD(attnsmith_sizes, kv_len, 24);

SIZE(attnsmith_runtime_options, 184);
FIELD(attnsmith_runtime_options, size, 0);
FIELD(attnsmith_runtime_options, cache_dirs, 8);
FIELD(attnsmith_runtime_options, cache_dir_count, 16);
FIELD(attnsmith_runtime_options, nvrtc_path, 24);
FIELD(attnsmith_runtime_options, driver_path, 32);
FIELD(attnsmith_runtime_options, keep_source_dir, 40);
FIELD(attnsmith_runtime_options, log, 48);
FIELD(attnsmith_runtime_options, log_user, 56);
FIELD(attnsmith_runtime_options, log_level, 64);
FIELD(attnsmith_runtime_options, no_cache, 68);
FIELD(attnsmith_runtime_options, compile_threads, 72);
FIELD(attnsmith_runtime_options, toolchain, 76);
FIELD(attnsmith_runtime_options, cache_max_bytes, 80);
FIELD(attnsmith_runtime_options, cache_trust, 88);
FIELD(attnsmith_runtime_options, no_cache_source, 92);
FIELD(attnsmith_runtime_options, tuning_files, 96);
FIELD(attnsmith_runtime_options, tuning_file_count, 104);
FIELD(attnsmith_runtime_options, record_file, 112);
FIELD(attnsmith_runtime_options, on_miss, 120);
FIELD(attnsmith_runtime_options, reserved, 124);
FIELD(attnsmith_runtime_options, allocate, 128);
FIELD(attnsmith_runtime_options, free, 136);
FIELD(attnsmith_runtime_options, memory_user, 144);
FIELD(attnsmith_runtime_options, trust_key_files, 152);
FIELD(attnsmith_runtime_options, trust_key_file_count, 160);
FIELD(attnsmith_runtime_options, sign_key_file, 168);
FIELD(attnsmith_runtime_options, push_compiled, 176);
FIELD(attnsmith_runtime_options, reserved_2, 180);
VALUE(ATTNSMITH_CACHE_TRUST_OWNER, 0);
VALUE(ATTNSMITH_CACHE_TRUST_GROUP, 1);
VALUE(ATTNSMITH_CACHE_TRUST_ALL, 2);

SIZE(attnsmith_prewarm_options, 40);
FIELD(attnsmith_prewarm_options, size, 0);
FIELD(attnsmith_prewarm_options, progress, 8);
FIELD(attnsmith_prewarm_options, progress_user, 16);
FIELD(attnsmith_prewarm_options, jobs, 24);
FIELD(attnsmith_prewarm_options, reserved, 28);
FIELD(attnsmith_prewarm_options, push, 32);
FIELD(attnsmith_prewarm_options, no_compile, 36);

SIZE(attnsmith_tensors, 96);
FIELD(attnsmith_tensors, size, 0);
FIELD(attnsmith_tensors, q, 8);
FIELD(attnsmith_tensors, k, 16);
FIELD(attnsmith_tensors, v, 24);
FIELD(attnsmith_tensors, o, 32);
FIELD(attnsmith_tensors, lse, 40);
FIELD(attnsmith_tensors, sinks, 48);
FIELD(attnsmith_tensors, alibi_slopes, 56);
FIELD(attnsmith_tensors, q_pe, 64);
FIELD(attnsmith_tensors, kpe, 72);
FIELD(attnsmith_tensors, k_scale, 80);
FIELD(attnsmith_tensors, v_scale, 88);

SIZE(attnsmith_batch, 96);
FIELD(attnsmith_batch, size, 0);
FIELD(attnsmith_batch, q_indptr, 8);
FIELD(attnsmith_batch, q_lens, 16);
FIELD(attnsmith_batch, kv_indptr, 24);
FIELD(attnsmith_batch, kv_lens, 32);
FIELD(attnsmith_batch, page_table, 40);
FIELD(attnsmith_batch, page_indptr, 48);
FIELD(attnsmith_batch, page_indices, 56);
FIELD(attnsmith_batch, last_page_len, 64);
FIELD(attnsmith_batch, max_q_len, 72);
FIELD(attnsmith_batch, max_kv_len, 80);
FIELD(attnsmith_batch, table_rows, 88);

SIZE(attnsmith_merge_tensors, 48);
FIELD(attnsmith_merge_tensors, size, 0);
FIELD(attnsmith_merge_tensors, state_count, 8);
FIELD(attnsmith_merge_tensors, o_states, 16);
FIELD(attnsmith_merge_tensors, lse_states, 24);
FIELD(attnsmith_merge_tensors, o, 32);
FIELD(attnsmith_merge_tensors, lse, 40);

SIZE(attnsmith_append_tensors, 136);
FIELD(attnsmith_append_tensors, size, 0);
FIELD(attnsmith_append_tensors, q, 8);
FIELD(attnsmith_append_tensors, k, 16);
FIELD(attnsmith_append_tensors, v, 24);
FIELD(attnsmith_append_tensors, q_out, 32);
FIELD(attnsmith_append_tensors, k_cache, 40);
FIELD(attnsmith_append_tensors, v_cache, 48);
FIELD(attnsmith_append_tensors, kpe, 56);
FIELD(attnsmith_append_tensors, kpe_cache, 64);
FIELD(attnsmith_append_tensors, slot_mapping, 72);
FIELD(attnsmith_append_tensors, positions, 80);
FIELD(attnsmith_append_tensors, rope_table, 88);
FIELD(attnsmith_append_tensors, q_norm_weight, 96);
FIELD(attnsmith_append_tensors, k_norm_weight, 104);
FIELD(attnsmith_append_tensors, k_scale, 112);
FIELD(attnsmith_append_tensors, v_scale, 120);
FIELD(attnsmith_append_tensors, q_scale, 128);

SIZE(attnsmith_top_k_tensors, 40);
FIELD(attnsmith_top_k_tensors, size, 0);
FIELD(attnsmith_top_k_tensors, scores, 8);
FIELD(attnsmith_top_k_tensors, row_starts, 16);
FIELD(attnsmith_top_k_tensors, row_ends, 24);
FIELD(attnsmith_top_k_tensors, indices, 32);

SIZE(attnsmith_workspace, 24);
FIELD(attnsmith_workspace, size, 0);
FIELD(attnsmith_workspace, data, 8);
FIELD(attnsmith_workspace, bytes, 16);

SIZE(attnsmith_tensor_addresses, 96);
FIELD(attnsmith_tensor_addresses, size, 0);
FIELD(attnsmith_tensor_addresses, q, 8);
FIELD(attnsmith_tensor_addresses, k, 16);
FIELD(attnsmith_tensor_addresses, v, 24);
FIELD(attnsmith_tensor_addresses, o, 32);
FIELD(attnsmith_tensor_addresses, lse, 40);
FIELD(attnsmith_tensor_addresses, sinks, 48);
FIELD(attnsmith_tensor_addresses, alibi_slopes, 56);
FIELD(attnsmith_tensor_addresses, q_pe, 64);
FIELD(attnsmith_tensor_addresses, kpe, 72);
FIELD(attnsmith_tensor_addresses, k_scale, 80);
FIELD(attnsmith_tensor_addresses, v_scale, 88);

SIZE(attnsmith_code, 4);
VALUE(ATTNSMITH_ABI_VERSION, 2);
VALUE(ATTNSMITH_OK, 0);
VALUE(ATTNSMITH_INVALID_REQUEST, 1);
VALUE(ATTNSMITH_UNSUPPORTED, 2);
VALUE(ATTNSMITH_COMPILE_ERROR, 3);
VALUE(ATTNSMITH_DRIVER_ERROR, 4);
VALUE(ATTNSMITH_LIBRARY_MISSING, 5);
VALUE(ATTNSMITH_CACHE_ERROR, 6);
VALUE(ATTNSMITH_OUT_OF_MEMORY, 7);
VALUE(ATTNSMITH_FAILED, 8);
VALUE(ATTNSMITH_KERNEL_MISSING, 9);
VALUE(ATTNSMITH_ON_MISS_COMPILE, 1);
VALUE(ATTNSMITH_ON_MISS_ERROR, 2);
VALUE(ATTNSMITH_OP_ATTENTION, 0);
VALUE(ATTNSMITH_OP_MLA, 1);
VALUE(ATTNSMITH_OP_MERGE, 2);
VALUE(ATTNSMITH_OP_APPEND, 3);
VALUE(ATTNSMITH_OP_TOP_K, 4);
VALUE(ATTNSMITH_FP16, 1);
VALUE(ATTNSMITH_BF16, 2);
VALUE(ATTNSMITH_FP32, 3);
VALUE(ATTNSMITH_INT32, 4);
VALUE(ATTNSMITH_INT64, 5);
VALUE(ATTNSMITH_E4M3, 6);
VALUE(ATTNSMITH_E5M2, 7);
VALUE(ATTNSMITH_UINT8, 8);
VALUE(ATTNSMITH_MASK_FULL, 0);
VALUE(ATTNSMITH_MASK_CAUSAL, 1);
VALUE(ATTNSMITH_KV_DENSE, 0);
VALUE(ATTNSMITH_KV_RAGGED, 1);
VALUE(ATTNSMITH_KV_PAGED, 2);
VALUE(ATTNSMITH_PAGES_NHD, 0);
VALUE(ATTNSMITH_PAGES_HND, 1);
VALUE(ATTNSMITH_PRECISION_DEFAULT, 0);
VALUE(ATTNSMITH_PRECISION_HIGH, 1);
VALUE(ATTNSMITH_CONSISTENCY_DEFAULT, 0);
VALUE(ATTNSMITH_CONSISTENCY_BITWISE, 1);
VALUE(ATTNSMITH_KV_SCALE_NONE, 0);
VALUE(ATTNSMITH_KV_SCALE_TENSOR, 1);
VALUE(ATTNSMITH_KV_SCALE_HEAD, 2);
VALUE(ATTNSMITH_KV_SCALE_TOKEN_HEAD, 3);
VALUE(ATTNSMITH_KV_SCALE_BLOCK128, 4);
VALUE(ATTNSMITH_SLOTS_MAPPING, 0);
VALUE(ATTNSMITH_SLOTS_TABLE, 1);
VALUE(ATTNSMITH_ROPE_NONE, 0);
VALUE(ATTNSMITH_ROPE_HALF, 1);
VALUE(ATTNSMITH_ROPE_INTERLEAVED, 2);
VALUE(ATTNSMITH_ROPE_TABLE_COS_SIN, 0);
VALUE(ATTNSMITH_ROPE_TABLE_FREQUENCIES, 1);
VALUE(ATTNSMITH_LOG_OFF, 1);
VALUE(ATTNSMITH_LOG_ERROR, 2);
VALUE(ATTNSMITH_LOG_WARN, 3);
VALUE(ATTNSMITH_LOG_INFO, 4);
VALUE(ATTNSMITH_LOG_DEBUG, 5);
VALUE(ATTNSMITH_CURRENT_DEVICE, -1);
VALUE(ATTNSMITH_Q_LEN_CLAMPED, 1);
VALUE(ATTNSMITH_KV_LEN_CLAMPED, 2);
VALUE(ATTNSMITH_PAGE_OUT_OF_RANGE, 4);
VALUE(ATTNSMITH_WORKSPACE_NOT_ZEROED, 8);
VALUE(ATTNSMITH_SCALE_NOT_POSITIVE, 16);
VALUE(ATTNSMITH_SLOT_OUT_OF_RANGE, 32);
VALUE(ATTNSMITH_POSITION_OUT_OF_RANGE, 64);
VALUE(ATTNSMITH_SLOT_WRITTEN_TWICE, 128);
VALUE(ATTNSMITH_WORKSPACE_ZEROED_BYTES, 8192);

typedef void (*function)(void);

/* Every function, by its address; exports_test.py checks that none is missing. */
static const function kFunctions[] = {
    (function)attnsmith_abi_version,
    (function)attnsmith_allocate,
    (function)attnsmith_bind,
    (function)attnsmith_bind_merge,
    (function)attnsmith_bind_append,
    (function)attnsmith_bind_top_k,
    (function)attnsmith_buffer_bytes,
    (function)attnsmith_buffer_data,
    (function)attnsmith_buffer_free,
    (function)attnsmith_cache,
    (function)attnsmith_call_clear_status,
    (function)attnsmith_call_copy_status,
    (function)attnsmith_call_describe,
    (function)attnsmith_call_free,
    (function)attnsmith_call_keep_alive,
    (function)attnsmith_call_status,
    (function)attnsmith_call_synchronize,
    (function)attnsmith_coverage_json,
    (function)attnsmith_devices_json,
    (function)attnsmith_download,
    (function)attnsmith_error_code,
    (function)attnsmith_error_details,
    (function)attnsmith_error_free,
    (function)attnsmith_error_message,
    (function)attnsmith_features,
    (function)attnsmith_has_feature,
    (function)attnsmith_kept_free,
    (function)attnsmith_kernel_device,
    (function)attnsmith_kernel_free,
    (function)attnsmith_kernel_plan_json,
    (function)attnsmith_kernel_set_free,
    (function)attnsmith_kernel_set_pick,
    (function)attnsmith_kernel_set_size,
    (function)attnsmith_kernel_set_workspace_bytes,
    (function)attnsmith_kernel_spec,
    (function)attnsmith_launch,
    (function)attnsmith_launch_at,
    (function)attnsmith_model_json,
    (function)attnsmith_parse_request,
    (function)attnsmith_pending_free,
    (function)attnsmith_pending_kernel,
    (function)attnsmith_pending_ready,
    (function)attnsmith_plan_json,
    (function)attnsmith_prepare,
    (function)attnsmith_prepare_async,
    (function)attnsmith_prepare_set,
    (function)attnsmith_prewarm,
    (function)attnsmith_recorded_json,
    (function)attnsmith_request_json,
    (function)attnsmith_run,
    (function)attnsmith_run_merge,
    (function)attnsmith_run_append,
    (function)attnsmith_run_top_k,
    (function)attnsmith_runtime_create,
    (function)attnsmith_runtime_free,
    (function)attnsmith_string_free,
    (function)attnsmith_synchronize,
    (function)attnsmith_upload,
    (function)attnsmith_version,
    (function)attnsmith_workspace_bytes,
};

int main(void) {
    const size_t count = sizeof kFunctions / sizeof *kFunctions;
    for (size_t i = 0; i < count; ++i) CHECK(kFunctions[i] != NULL);
    CHECK(attnsmith_abi_version() == ATTNSMITH_ABI_VERSION);
    printf("%zu functions\n", count);
    return 0;
}
