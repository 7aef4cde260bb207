"""The declarations of attnsmith/attnsmith.h, for ctypes. Tests compare every struct with the header's."""

from __future__ import annotations

import ctypes
from ctypes import (CFUNCTYPE, POINTER, Structure, c_char_p, c_double, c_int32, c_int64, c_size_t, c_uint8, c_uint16,
                    c_uint64, c_void_p)
from typing import Any, Dict, Tuple, Type, get_args

from .. import words

ABI_VERSION = 1
OK = 0
CURRENT_DEVICE = -1

DL_CUDA, DL_CUDA_MANAGED = 2, 13
DL_INT, DL_UINT, DL_FLOAT, DL_BFLOAT, DL_E4M3FN, DL_E5M2 = 0, 1, 2, 4, 10, 12

Q_LEN_CLAMPED, KV_LEN_CLAMPED, PAGE_OUT_OF_RANGE, WORKSPACE_NOT_ZEROED, SCALE_NOT_POSITIVE = 1, 2, 4, 8, 16
SLOT_OUT_OF_RANGE, POSITION_OUT_OF_RANGE, SLOT_WRITTEN_TWICE = 32, 64, 128
WORKSPACE_ZEROED_BYTES = 8192

LOG_LEVELS = ("default", *get_args(words.LogLevel))  # by their numbers

Log = CFUNCTYPE(None, c_void_p, c_int32, c_char_p)
Progress = CFUNCTYPE(c_int32, c_void_p, c_char_p, c_int32, c_int32)
Waiting = CFUNCTYPE(c_int32, c_void_p, c_char_p)
ShouldStop = CFUNCTYPE(c_int32, c_void_p)
MemoryAllocate = CFUNCTYPE(c_void_p, c_void_p, c_size_t, c_int32)
MemoryFree = CFUNCTYPE(None, c_void_p, c_void_p, c_size_t, c_int32)


class Device(Structure):
    _fields_ = [("device_type", c_int32), ("device_id", c_int32)]


class DataType(Structure):
    _fields_ = [("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16)]


class Tensor(Structure):
    """DLPack's DLTensor."""

    _fields_ = [("data", c_void_p), ("device", Device), ("ndim", c_int32), ("dtype", DataType),
                ("shape", POINTER(c_int64)), ("strides", POINTER(c_int64)), ("byte_offset", c_uint64)]


class Sized(Structure):
    """A struct of the ABI that begins with its own size."""

    _fields_ = [("size", c_size_t)]

    def __init__(self, **fields: object) -> None:
        super().__init__(size=ctypes.sizeof(type(self)), **fields)


def _all(kind: Any, *names: str) -> Any:
    return [(name, kind) for name in names]


class Spec(Sized):
    """attnsmith_spec. Only the library reads and writes its fields, by the names that a request has in JSON, so they are not
    restated here. The library takes a struct that is larger than its own, so this has room for the fields to come."""

    _fields_ = [("fields", c_int64 * 127)]


class Sizes(Sized):
    _fields_ = _all(c_int64, "batch", "q_len", "kv_len")


CACHE_TRUSTS = get_args(words.CacheTrust)  # these by their numbers, too
TOOLCHAINS = get_args(words.Toolchain)
ON_MISSES = ("default", *get_args(words.OnMiss))


class RuntimeOptions(Sized):
    _fields_ = [("cache_dirs", POINTER(c_char_p)), ("cache_dir_count", c_size_t), ("nvrtc_path", c_char_p),
                ("driver_path", c_char_p), ("keep_source_dir", c_char_p), ("log_line", Log), ("log_user", c_void_p),
                ("log_level", c_int32), ("no_cache", c_int32), ("compile_threads", c_int32), ("toolchain", c_int32),
                ("cache_max_bytes", c_int64), ("cache_trust", c_int32), ("no_cache_source", c_int32),
                ("tuning_files", POINTER(c_char_p)), ("tuning_file_count", c_size_t), ("record_file", c_char_p),
                ("on_miss", c_int32), ("reserved", c_int32), ("allocate_memory", MemoryAllocate),
                ("release_memory", MemoryFree),
                ("memory_user", c_void_p), ("trust_key_files", POINTER(c_char_p)), ("trust_key_file_count", c_size_t),
                ("sign_key_file", c_char_p), ("push_compiled", c_int32), ("no_environment", c_int32)]


class PrewarmOptions(Sized):
    _fields_ = [("progress", Progress), ("progress_user", c_void_p), ("jobs", c_int32), ("reserved", c_int32),
                ("push", c_int32), ("no_compile", c_int32), ("waiting", Waiting), ("waiting_user", c_void_p),
                ("should_stop", ShouldStop), ("stop_user", c_void_p)]


TENSOR_FIELDS = ("q", "k", "v", "o", "lse", "sinks", "alibi_slopes", "q_pe", "kpe", "k_scale", "v_scale")
BATCH_FIELDS = ("q_indptr", "q_lens", "kv_indptr", "kv_lens", "page_table", "page_indptr", "page_indices",
                "last_page_len", "table_rows")


class Tensors(Sized):
    _fields_ = _all(c_void_p, *TENSOR_FIELDS)


class Batch(Sized):
    # The fields of the first version, then those that were added.
    _fields_ = [*_all(c_void_p, *BATCH_FIELDS[:8]), *_all(c_int64, "max_q_len", "max_kv_len"),
                *_all(c_void_p, *BATCH_FIELDS[8:])]


class MergeTensors(Sized):
    _fields_ = [("state_count", c_size_t), ("o_states", c_void_p), ("lse_states", c_void_p), ("o", c_void_p),
                ("lse", c_void_p)]


class OpTensors(Sized):
    """What an op binds, where that is tensors alone, in the order of FIELDS."""

    FIELDS: "Tuple[str, ...]"


class AppendTensors(OpTensors):
    FIELDS = ("q", "k", "v", "q_out", "k_cache", "v_cache", "kpe", "kpe_cache", "slot_mapping", "positions", "rope_table",
              "q_norm_weight", "k_norm_weight", "k_scale", "v_scale", "q_scale")
    _fields_ = _all(c_void_p, *FIELDS)


class TopKTensors(OpTensors):
    FIELDS = ("scores", "row_starts", "row_ends", "indices")
    _fields_ = _all(c_void_p, *FIELDS)


# By their ops: attnsmith_bind_OP and attnsmith_run_OP take them.
OP_TENSORS: "Dict[str, Type[OpTensors]]" = {"append": AppendTensors, "top_k": TopKTensors}


class Workspace(Sized):
    _fields_ = [("data", c_void_p), ("bytes", c_size_t)]


class WorkspaceBounds(Sized):
    _fields_ = _all(c_int64, "batch", "q_tokens", "max_kv_len")


class TensorAddresses(Sized):
    _fields_ = _all(c_void_p, *TENSOR_FIELDS)


_struct = c_void_p  # the address of a struct, as an int or from byref()
_handle = c_void_p
_out = c_void_p

# Name: result, arguments. The functions of the second table can fail: they return an attnsmith_code, and an
# attnsmith_error** follows their arguments.
PLAIN: "dict[str, tuple[Any, tuple[Any, ...]]]" = {
    "attnsmith_abi_version": (c_int32, ()),
    "attnsmith_version": (c_char_p, ()),
    "attnsmith_has_feature": (c_int32, (c_char_p,)),
    "attnsmith_features": (c_char_p, ()),
    "attnsmith_error_message": (c_char_p, (_handle,)),
    "attnsmith_error_details": (c_char_p, (_handle,)),
    "attnsmith_error_field": (c_char_p, (_handle,)),
    "attnsmith_error_driver_code": (c_int32, (_handle,)),
    "attnsmith_error_free": (None, (_handle,)),
    "attnsmith_string_free": (None, (c_void_p,)),
    "attnsmith_runtime_free": (None, (_handle,)),
    "attnsmith_kernel_free": (None, (_handle,)),
    "attnsmith_pending_ready": (c_int32, (_handle,)),
    "attnsmith_pending_free": (None, (_handle,)),
    "attnsmith_kernel_device": (c_int32, (_handle,)),
    "attnsmith_kernel_set_free": (None, (_handle,)),
    "attnsmith_kernel_set_size": (c_size_t, (_handle,)),
    "attnsmith_kernel_set_kernel": (c_void_p, (_handle, c_size_t)),
    "attnsmith_kernel_set_device": (c_int32, (_handle,)),
    "attnsmith_workspace_zeroed_bytes": (c_size_t, ()),
    "attnsmith_call_free": (None, (_handle,)),
    "attnsmith_kept_free": (None, (_handle,)),
    "attnsmith_buffer_data": (c_void_p, (_handle,)),
    "attnsmith_buffer_bytes": (c_size_t, (_handle,)),
    "attnsmith_buffer_free": (None, (_handle,)),
}
CHECKED: "dict[str, tuple[Any, ...]]" = {
    "attnsmith_runtime_create": (_struct, _out),
    "attnsmith_devices_json": (_handle, _out),
    "attnsmith_parse_request": (c_char_p, _struct, _struct),
    "attnsmith_request_json": (_struct, _struct, _out),
    "attnsmith_model_json": (c_char_p, c_char_p, _out),
    "attnsmith_request_coverage_json": (c_char_p, _out),
    "attnsmith_model_coverage_json": (c_char_p, c_char_p, _out),
    "attnsmith_recorded_coverage_json": (c_char_p, c_char_p, _out),
    "attnsmith_plan_json": (_handle, _struct, _struct, c_int32, _out),
    "attnsmith_prewarm": (_handle, _struct, c_size_t, _struct, c_size_t, _struct, _out),
    "attnsmith_cache": (_handle, c_char_p, c_char_p, _out),
    "attnsmith_prepare": (_handle, _struct, _struct, c_int32, _out),
    "attnsmith_prepare_async": (_handle, _struct, _struct, c_int32, _out),
    "attnsmith_pending_kernel": (_handle, _out),
    "attnsmith_kernel_spec": (_handle, _struct),
    "attnsmith_kernel_plan_json": (_handle, _out),
    "attnsmith_kernel_workspace_bytes": (_handle, _struct, _out),
    "attnsmith_prepare_set": (_handle, _struct, c_int32, _out),
    "attnsmith_kernel_set_pick": (_handle, _struct, _out),
    "attnsmith_kernel_set_spec": (_handle, _struct),
    "attnsmith_kernel_set_workspace_bytes": (_handle, _struct, _out),
    "attnsmith_bind": (_handle, _struct, _struct, _struct, _out),
    "attnsmith_bind_merge": (_handle, _struct, _struct, _struct, _out),
    "attnsmith_bind_append": (_handle, _struct, _struct, _struct, _out),
    "attnsmith_bind_top_k": (_handle, _struct, _struct, _struct, _out),
    "attnsmith_launch": (_handle, c_void_p),
    "attnsmith_call_launch_at": (_handle, _struct, c_void_p),
    "attnsmith_call_keep_alive": (_handle, _out),
    "attnsmith_call_copy_status": (_handle, c_void_p, c_void_p),
    "attnsmith_call_status": (_handle, c_void_p, _out),
    "attnsmith_call_clear_status": (_handle, c_void_p),
    "attnsmith_call_describe": (_handle, _out),
    "attnsmith_call_synchronize": (_handle, c_void_p),
    "attnsmith_run": (_handle, _struct, _struct, _struct, c_void_p),
    "attnsmith_run_merge": (_handle, _struct, _struct, _struct, c_void_p),
    "attnsmith_run_append": (_handle, _struct, _struct, _struct, c_void_p),
    "attnsmith_run_top_k": (_handle, _struct, _struct, _struct, c_void_p),
    "attnsmith_buffer_allocate": (_handle, c_int32, c_size_t, _out),
    "attnsmith_buffer_upload": (_handle, c_void_p, c_size_t, c_size_t),
    "attnsmith_buffer_download": (_handle, c_void_p, c_size_t, c_size_t),
    "attnsmith_synchronize": (_handle, c_void_p),
    "attnsmith_workspace_clear": (_handle, _struct, c_void_p, c_int32),
}


def declare(library: ctypes.CDLL) -> None:
    """Gives every function its types. Raises AttributeError naming one that the library lacks."""
    for name, (result, arguments) in PLAIN.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    for name, arguments in CHECKED.items():
        function = getattr(library, name)
        function.restype, function.argtypes = c_int32, (*arguments, c_void_p)


# Structs by their names in the header, for the test of their layout. Of those in ROOMS the package knows no field.
STRUCTS = {
    "attnsmith_dl_device": Device,
    "attnsmith_dl_data_type": DataType,
    "attnsmith_dl_tensor": Tensor,
    "attnsmith_sizes": Sizes,
    "attnsmith_runtime_options": RuntimeOptions,
    "attnsmith_prewarm_options": PrewarmOptions,
    "attnsmith_tensors": Tensors,
    "attnsmith_batch": Batch,
    "attnsmith_merge_tensors": MergeTensors,
    "attnsmith_append_tensors": AppendTensors,
    "attnsmith_top_k_tensors": TopKTensors,
    "attnsmith_workspace": Workspace,
    "attnsmith_workspace_bounds": WorkspaceBounds,
    "attnsmith_tensor_addresses": TensorAddresses,
}
ROOMS = {"attnsmith_spec": Spec}

