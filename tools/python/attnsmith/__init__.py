"""attnsmith: GPU attention kernels, built at run time.

    import attnsmith
    o = attnsmith.attention(q, k, v, causal=True)       # [batch, len, heads, head_dim], torch, CuPy, JAX, ...

The plain functions find, bind and launch in one call. ``Runtime`` -> ``Kernel`` -> ``Call`` are the three steps by
themselves, for engines; ``plan`` shows what would run and why; ``prewarm`` compiles all of a model's kernels without a
GPU. ``attnsmith.torch`` has torch's scaled_dot_product_attention. Errors: ``attnsmith.errors``.
"""

from __future__ import annotations

import importlib
from typing import Any, Dict, List

from ._library import library as _opened
from .buffers import Array, Buffer
from .errors import (CacheError, CompileError, DriverError, Error, InvalidRequest, KernelMissing, LibraryMissing,
                     OutOfMemory, Unsupported)
from .functions import attention, merge_states, paged_attention, varlen_attention
from .kernels import Call, CallStatus, Kernel, Pending
from .runtime import Runtime, default_runtime, set_default_runtime


def plan(*, sm: Any = None, **words: Any) -> Dict[str, Any]:
    """Runtime.plan of the default runtime."""
    return default_runtime().plan(sm=sm, **words)


def plan_model(config: Any, sm: Any = None, **options: Any) -> Dict[str, Any]:
    """Runtime.plan_model of the default runtime."""
    return default_runtime().plan_model(config, sm, **options)


def prewarm(requests: Any = (), **options: Any) -> Dict[str, Any]:
    """Runtime.prewarm of the default runtime."""
    return default_runtime().prewarm(requests, **options)


def devices() -> List[Dict[str, Any]]:
    """Runtime.devices of the default runtime."""
    return default_runtime().devices()


def cache(operation: str = "stat", **options: Any) -> Dict[str, Any]:
    """Runtime.cache of the default runtime."""
    return default_runtime().cache(operation, **options)


def features() -> List[str]:
    """What the library has: "op:attention", "backend:mma", ..."""
    return _opened().features()


def __getattr__(name: str) -> Any:
    if name == "__version__":  # of the library that is loaded
        return _opened().version
    if name == "torch":
        return importlib.import_module(".torch", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")



__all__ = ["Array", "Buffer", "CacheError", "Call", "CallStatus", "CompileError", "DriverError", "Error",
           "InvalidRequest", "Kernel", "KernelMissing", "LibraryMissing", "OutOfMemory", "Pending", "Runtime", "Unsupported",
           "attention", "cache", "default_runtime", "devices", "features", "merge_states", "paged_attention", "plan",
           "plan_model", "prewarm", "set_default_runtime", "varlen_attention"]
