"""attnsmith: GPU attention kernels, built at run time.

    import attnsmith
    o = attnsmith.attention(q, k, v, causal=True)       # [batch, len, heads, head_dim], torch, CuPy, JAX, ...

The plain functions find, bind and launch in one call. ``Runtime`` -> ``Kernel`` -> ``Call`` are the three separate steps,
for engines; ``plan`` shows what would run and why; ``prewarm`` compiles all of a model's kernels without a GPU.
``attnsmith.torch.activate()`` serves torch's scaled_dot_product_attention, ``attnsmith.transformers.register()`` models of
transformers, and ``attnsmith.jax`` has functions for jax.jit. Errors: ``attnsmith.errors``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Iterable, List, Literal, Mapping, Optional, Union, overload

from . import errors as errors, functions, words as words
from ._base import reports
from ._base.arguments import by_name, named
from ._c_api.interruptible import Progress
from ._c_api.library import library as _opened
from .buffers import Array, Buffer
from .errors import (CacheError, CompileError, DriverError, Error, InvalidRequest, KernelMissing, LibraryMissing,
                     OutOfMemory, Unsupported)
from .functions import *  # noqa: F403 (what its __all__ has)
from .kernels import Call, CallStatus, Kernel, KernelSet, Pending
from .runtime import Runtime, default_runtime, set_default_runtime
from .words import (CacheOperation, Integer, Model, ModelChoices, ModelOptions, OneSm, Path, Request, RequestChoices, Requests,
                    Sms)

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from . import results as results
    from .results import (CacheClearReport, CacheDirectories, CacheExplanations, CacheExportReport, CacheGcReport,
                          CacheImportReport, CacheListing, CachePushReport, CacheRemoveReport, CacheStatistics,
                          CacheVerification, CoverageReport, DeviceInfo, ModelPlans, ModelReport, Plan, PrewarmReport)

    __version__: str


@named
def plan(*, sm: Optional[OneSm] = None, **words: Unpack[Request]) -> Plan:
    """Returns the plan for a request (schema attnsmith.plan/1): which kernels serve it, why, and what was refused.

    words: those of attnsmith.Request. sm: a compute capability: 90, "90a", "sm_90" or "9.0"; None and "native" are that of
        the current device.

    This is Runtime.plan of the default runtime. Raises InvalidRequest, which names the word, Unsupported.
    """
    return default_runtime().plan(sm=sm, **words)


@named
@by_name("sm")
def plan_model(config: Model, *, sm: Optional[Sms] = None, strict: bool = False,
               **options: Unpack[ModelChoices]) -> ModelPlans:
    """Returns one plan for each distinct attention of a model, phase and SM.

    config: a config.json's file, folder, text or dict, or a config object of transformers.
    sm: one or several compute capabilities, [80, 90], "80,90" or "all"; None and "native" are that of the current device.
    strict: True raises Unsupported for an unsupported part or a warning.
    options: those of attnsmith.ModelChoices.

    This is Runtime.plan_model of the default runtime. Raises InvalidRequest.
    """
    return default_runtime().plan_model(config, sm=sm, strict=strict, **options)


@named
def prewarm(requests: Requests = (), *, models: Union[Model, Iterable[Model]] = (),
            recorded: Union[Path, Iterable[Path]] = (), sm: Optional[Sms] = None, jobs: int = 0,
            progress: Optional[Progress] = None, strict: bool = False, push: bool = False, compile: bool = True,
            **model_options: Unpack[ModelChoices]) -> PrewarmReport:
    """Compiles into the cache every kernel that planning could choose. Needs no GPU if `sm` is given.

    requests: an attnsmith.Request, or several, whose words may be lists: kernels are compiled for all combinations.
    models: a config as plan_model() takes it, or several. model_options: those of attnsmith.ModelChoices.
    recorded: files in which programs recorded their requests.
    sm: one or several compute capabilities, [80, 90], "80,90" or "all"; None and "native" are those of the GPUs present.
    jobs: how many kernels are compiled at a time; 0 is the number of cores.
    progress: a function that is called with (kernel, done, total).
    strict: True raises Unsupported for an unsupported part or a warning of a model.
    push: True puts kernels that remotes do not have there, too.
    compile: False compiles nothing; a kernel that neither the cache nor a remote has is "missing".

    This is Runtime.prewarm of the default runtime, whose help says more. Raises InvalidRequest, CacheError, LibraryMissing.
    """
    return default_runtime().prewarm(requests, models=models, recorded=recorded, sm=sm, jobs=jobs, progress=progress,
                                     strict=strict, push=push, compile=compile, **model_options)


@named
def devices() -> List[DeviceInfo]:
    """Returns the GPUs, as dicts of "device" (the ordinal), "name", "sm", "sm_count" and "memory_bytes". The list is empty
    if there is no driver.

    This is Runtime.devices of the default runtime. Raises DriverError.
    """
    return default_runtime().devices()


@overload
def cache(operation: Literal["stat"] = "stat") -> CacheStatistics: ...
@overload
def cache(operation: Literal["ls"]) -> CacheListing: ...
@overload
def cache(operation: Literal["dir"]) -> CacheDirectories: ...
@overload
def cache(operation: Literal["explain"], *, key: str) -> CacheExplanations: ...
@overload
def cache(operation: Literal["explain"], *, request: Mapping[str, Any]) -> CacheExplanations: ...
@overload
def cache(operation: Literal["verify"]) -> CacheVerification: ...
@overload
def cache(operation: Literal["gc"], *, max_bytes: Optional[Integer] = None) -> CacheGcReport: ...
@overload
def cache(operation: Literal["clear"]) -> CacheClearReport: ...
@overload
def cache(operation: Literal["rm"], *, key: str) -> CacheRemoveReport: ...
@overload
def cache(operation: Literal["export"], *, file: Path, sm: Optional[Sms] = None, model: Optional[Model] = None,
          model_options: Optional[ModelChoices] = None) -> CacheExportReport: ...
@overload
def cache(operation: Literal["export"], *, oci: Path, tag: Optional[str] = None, sm: Optional[Sms] = None,
          model: Optional[Model] = None, model_options: Optional[ModelChoices] = None) -> CacheExportReport: ...
@overload
def cache(operation: Literal["import"], *, file: Path) -> CacheImportReport: ...
@overload
def cache(operation: Literal["push"], *, sm: Optional[Sms] = None, model: Optional[Model] = None,
          model_options: Optional[ModelChoices] = None) -> CachePushReport: ...
@named
def cache(operation: CacheOperation = "stat", **options: Any) -> Any:
    """Returns what `attnsmith cache OPERATION --json` prints.

    operation: "ls", "dir", "stat", "explain", "verify", "gc", "clear", "rm", "export", "import" or "push". options: those
        that the help of Runtime.cache says for each.

    This is Runtime.cache of the default runtime. Raises InvalidRequest, CacheError.
    """
    dispatch: Any = default_runtime().cache  # not one of its overloads, but any
    return dispatch(operation, **options)


@named
def features() -> List[str]:
    """Returns the features of the library: "op:attention", "backend:mma", ... Raises LibraryMissing."""
    return _opened().features()


# These are imported when they are first used. Type checkers know of them by the program's own "import attnsmith.jax".
_MODULES = ("compat", "jax", "results", "torch", "transformers", "tvm_ffi")

if not TYPE_CHECKING:  # a type checker would take any name for one of the module's

    def __getattr__(name: str) -> Any:
        if name == "__version__":  # of the library that is loaded
            return _opened().version
        if name in _MODULES:
            return importlib.import_module(f".{name}", __name__)
        if name in __all__:  # a type of a result
            return getattr(importlib.import_module(".results", __name__), name)
        if name == "ModelCoverage":
            reports.warn("ModelCoverage is now called ModelChoices", DeprecationWarning)
            return ModelChoices
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> List[str]:
    return sorted({*__all__, *_MODULES, "errors", "words", "__all__", "__doc__", "__file__", "__name__", "__path__",
                   "__version__"})


__all__ = ["Array", "Buffer", "CacheError", "Call", "CallStatus", "CompileError", "CoverageReport", "DeviceInfo", "DriverError",
           "Error", "InvalidRequest", "Kernel", "KernelMissing", "KernelSet", "LibraryMissing", "ModelChoices", "ModelOptions",
           "ModelPlans", "ModelReport", "OutOfMemory", "Pending", "Plan", "PrewarmReport", "Request", "RequestChoices", "Runtime",
           "Unsupported", "cache", "default_runtime", "devices", "features", "plan", "plan_model", "prewarm",
           "set_default_runtime"]
__all__ += functions.__all__
