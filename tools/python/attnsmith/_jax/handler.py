"""The library of the FFI handler, and the kernels that it launches."""

from __future__ import annotations

import ctypes
import json
import os
import pathlib
import threading
from ctypes import CFUNCTYPE, POINTER, Structure, byref, c_char, c_char_p, c_int32, c_size_t, c_void_p
from typing import Any, Dict, Optional, Tuple

from .._c_api.library import address_of, library
from ..errors import Error, LibraryMissing
from ..kernels import Kernel
from ..runtime import default_runtime

_BESIDE = pathlib.Path(__file__).resolve().parents[1] / "libattnsmith_jax.so"
_REMEDY = ("this attnsmith was built where JAX was not: build its wheel with the headers of this jaxlib, pip install . "
           "-C cmake.define.ATTNSMITH_XLA_INCLUDE=\"$(python -c 'import jax; print(jax.ffi.include_dir())')\", or set "
           "ATTNSMITH_JAX_LIBRARY to the libattnsmith_jax.so of a build")
_FAILED = 8  # ATTNSMITH_CODE_FAILED
_CODES = {"invalid_request": 1, "unsupported": 2, "compile_error": 3, "driver_error": 4, "library_missing": 5,
          "cache_error": 6, "out_of_memory": 7, "kernel_missing": 9}


class _Failure(Structure):
    """attnsmith_jax_failure."""

    _fields_ = [("code", c_int32), ("message", c_char * 4092)]


_Prepare = CFUNCTYPE(c_void_p, c_int32, c_char_p, POINTER(_Failure))


class _Functions(Structure):
    """attnsmith_jax_functions."""

    _fields_ = [("size", c_size_t), ("run", c_void_p), ("error_message", c_void_p), ("error_free", c_void_p),
                ("fill_async", c_void_p), ("prepare", _Prepare)]


# For as long as the process: programs that are compiled hold no more than the text of a request, and the handler keeps
# the address that it was given for it.
_kernels: Dict[Tuple[int, str], Kernel] = {}
_lock = threading.Lock()


def kernel_of(device: int, request: str) -> Kernel:
    """The kernel for a request on a GPU, prepared by the default runtime the first time. Raises Error."""
    kernel = _kernels.get((device, request))
    if kernel is None:
        prepared = default_runtime().prepare(device=device, **json.loads(request))
        with _lock:
            kernel = _kernels.setdefault((device, request), prepared)
    return kernel


def _prepare(device: int, request: bytes, failure: Any) -> Optional[int]:
    """Called by the handler's first stage, on a thread of XLA's that holds no lock of Python's."""
    try:
        return kernel_of(device, request.decode())._pointer
    except BaseException as error:  # nothing may pass into the library, and XLA says it to the caller
        code = _CODES.get(str(error.details.get("code")), _FAILED) if isinstance(error, Error) else _FAILED
        said = str(error) if isinstance(error, Error) else repr(error)
        failure.contents.code = code
        failure.contents.message = said.encode()[:4091].decode(errors="ignore").encode()
        return None


def driver() -> Any:
    """The CUDA driver, which JAX has opened before anything runs."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise LibraryMissing(f"the CUDA driver could not be opened: {error}", "libcuda.so.1", [str(error)]) from None


_callback = _Prepare(_prepare)  # which the handler keeps
_opened: Any = None


def handler() -> Any:
    """The handler's library, with attnsmith_jax_initialize and attnsmith_jax_execute. Raises LibraryMissing."""
    global _opened
    with _lock:
        if _opened is None:
            _opened = _open(os.environ.get("ATTNSMITH_JAX_LIBRARY") or str(_BESIDE))
        return _opened


def _open(file: str) -> Any:
    try:
        opened = ctypes.CDLL(file)
        use = opened.attnsmith_jax_use
    except (OSError, AttributeError) as error:
        raise LibraryMissing(f"libattnsmith_jax could not be opened: {error}; {_REMEDY}", "libattnsmith_jax",
                             [file]) from None
    functions = library().functions
    addresses = map(address_of, (functions.attnsmith_run, functions.attnsmith_error_message,
                                 functions.attnsmith_error_free, driver().cuMemsetD8Async))
    use.argtypes = [POINTER(_Functions)]
    if not use(byref(_Functions(ctypes.sizeof(_Functions), *addresses, _callback))):
        raise LibraryMissing(f"{file} is of another version of attnsmith; {_REMEDY}", "libattnsmith_jax", [file])
    return opened


def workspace_bytes(device: int, request: str, batch: int, q_tokens: int, max_kv_len: int) -> int:
    """What the kernel of a request needs on a GPU. Raises Error."""
    return kernel_of(device, request).workspace_bytes(batch=batch, q_tokens=q_tokens, max_kv_len=max_kv_len)
