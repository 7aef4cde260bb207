"""The primitive of attnsmith.jax, and what JAX's transformations make of it. It needs JAX, and is imported by the first
call.

Its abstract evaluation needs no GPU. When it is lowered for CUDA the kernel is prepared, so that its errors are raised
where the call is, and the bytes of workspace that it needs become one more result of the call of the FFI handler.
"""

from __future__ import annotations

import functools
import importlib
import threading
from typing import Any, Dict, List, NoReturn, Sequence, Tuple

from .._base.extras import missing
from .._base.options import Options
from ..errors import Unsupported
from ..runtime import default_runtime
from . import handler
from .calls import FORMS, Asked, asked

TARGET = "attnsmith_attention"  # the name that compiled programs call the handler by
_ALIGNED = 255  # bytes more than a workspace needs, for the handler to align it


def _jax() -> Any:
    try:
        jax = importlib.import_module("jax")
    except ImportError as error:
        raise missing("attnsmith.jax", "JAX", "'jax[cuda12]'", error) from error
    try:
        importlib.import_module("jax.ffi")
    except ImportError:
        raise Unsupported(f"jax {jax.__version__} has no jax.ffi: take jax 0.5 or newer, or call attnsmith.attention "
                          "outside of jax.jit") from None
    return jax


jax = _jax()
_ad = importlib.import_module("jax.interpreters.ad")
_batching = importlib.import_module("jax.interpreters.batching")
_mlir = importlib.import_module("jax.interpreters.mlir")
_xla = importlib.import_module("jax.interpreters.xla")
_core = importlib.import_module("jax.core")
_numpy = importlib.import_module("numpy")

attention_p = importlib.import_module("jax.extend.core").Primitive(TARGET)
attention_p.multiple_results = True
attention_p.def_impl(functools.partial(_xla.apply_primitive, attention_p))


def bind(function: str, tensors: Sequence[Any], options: Options) -> List[Any]:
    """`tensors`: as the form of the function names them, None for those that are not given. Gives o, and lse where it
    is asked for."""
    given = [(name, tensor) for name, tensor in zip(FORMS[function].names, tensors) if tensor is not None]
    results: List[Any] = attention_p.bind(*[jax.numpy.asarray(tensor) for _, tensor in given], function=function,
                                          given=tuple([name for name, _ in given]), options=options)
    return results


def is_array(tensor: Any) -> bool:
    return isinstance(tensor, (jax.Array, _numpy.ndarray))


def _asked(avals: Sequence[Any], function: str, given: Tuple[str, ...], options: Options) -> Asked:
    return asked(function, given, tuple([(tuple(aval.shape), aval.dtype.name) for aval in avals]), options)


def _abstract(*avals: Any, **parameters: Any) -> List[Any]:
    return [_core.ShapedArray(shape, _numpy.dtype(dtype)) for shape, dtype in _asked(avals, **parameters).results]


attention_p.def_abstract_eval(_abstract)


def _differentiated(primals: Any, tangents: Any, *, function: str, **parameters: Any) -> NoReturn:
    raise Unsupported(f"attnsmith.jax.{function.partition(' ')[0]} has no gradient, since there is no backward pass: "
                      "jax.lax.stop_gradient on its inputs, or another attention for training")


_ad.primitive_jvps[attention_p] = _differentiated


def _mapped(tensors: Sequence[Any], axes: Sequence[Any], *, function: str, given: Tuple[str, ...],
            options: Options) -> Tuple[List[Any], List[int]]:
    """jax.vmap's axis becomes part of the batch."""
    if function != "attention":
        raise Unsupported(f"jax.vmap over attnsmith.jax.{function.partition(' ')[0]} is not supported: its sequences "
                          "are a batch already")
    axis_of = dict(zip(given, axes))
    for name in ("q", "k", "v"):
        if axis_of[name] is None:
            raise Unsupported(f"jax.vmap over attnsmith.jax.attention with {name} not mapped is not supported, since "
                              f"it would copy {name}: give it the axis, by jax.numpy.broadcast_to for a copy")
    for name in ("sinks", "alibi_slopes"):
        if axis_of.get(name) is not None:
            raise Unsupported(f"jax.vmap over {name} of attnsmith.jax.attention is not supported: all of a batch have "
                              "the same")
    count = tensors[0].shape[axes[0]]
    folded = []
    for name, tensor, axis in zip(given, tensors, axes):
        if axis is not None:
            tensor = jax.numpy.moveaxis(tensor, axis, 0)
        elif name in ("q_lens", "kv_lens"):
            tensor = jax.numpy.broadcast_to(tensor, (count, *tensor.shape))
        else:
            folded.append(tensor)
            continue
        folded.append(tensor.reshape(count * tensor.shape[1], *tensor.shape[2:]))
    results = attention_p.bind(*folded, function=function, given=given, options=options)
    return [one.reshape(count, one.shape[0] // count, *one.shape[1:]) for one in results], [0] * len(results)


_batching.primitive_batchers[attention_p] = _mapped


def gpus() -> List[int]:
    """The ordinals of GPUs of this process, one of each kind. Raises Unsupported where there is none."""
    try:
        devices = jax.local_devices(backend="cuda")
    except RuntimeError as error:
        raise Unsupported("attnsmith.jax needs an NVIDIA GPU to lower a program, since its kernel says how much "
                          f"workspace it needs there, and JAX has none: {str(error).splitlines()[0]}") from None
    kinds = {device["device"]: (device["sm"], device["sm_count"]) for device in default_runtime().devices()}
    found: Dict[Any, int] = {}
    for device in devices:
        found.setdefault(kinds.get(device.local_hardware_id), device.local_hardware_id)
    return list(found.values())


def lower(context: Any, *operands: Any, **parameters: Any) -> Any:
    """For CUDA."""
    register()
    wanted = _asked(context.avals_in, **parameters)
    nbytes = max([handler.workspace_bytes(device, wanted.request, wanted.batch, wanted.q_tokens, wanted.max_kv_len)
                  for device in gpus()])
    results = [jax.ShapeDtypeStruct(shape, _numpy.dtype(dtype)) for shape, dtype in
               (*wanted.results, ((nbytes + _ALIGNED,), "uint8"))]
    call = jax.ffi.ffi_call(TARGET, results)

    def called(*tensors: Any) -> Any:
        return call(*tensors, request=wanted.request, layouts=_numpy.array(wanted.layouts, _numpy.int64),
                    max_q_len=_numpy.int64(wanted.max_q_len), max_kv_len=_numpy.int64(wanted.max_kv_len))[:-1]

    return _mlir.lower_fun(called, multiple_results=True)(context, *operands)


def _lower_elsewhere(context: Any, *operands: Any, **parameters: Any) -> NoReturn:
    platforms = ", ".join(context.module_context.platforms)
    raise Unsupported(f"attnsmith.jax runs on NVIDIA GPUs, and not on the platform {platforms}: jax[cuda12] brings "
                      "CUDA, and jax.device_put moves arrays there")


_mlir.register_lowering(attention_p, _lower_elsewhere)
_mlir.register_lowering(attention_p, lower, platform="cuda")

_registered = False
_lock = threading.Lock()


def register() -> None:
    """Tells XLA of the handler, once. Raises LibraryMissing, Unsupported."""
    global _registered
    with _lock:
        if _registered:
            return
        opened = handler.handler()
        stages = {stage: jax.ffi.pycapsule(getattr(opened, f"attnsmith_jax_{stage}"))
                  for stage in ("initialize", "execute")}
        try:
            jax.ffi.register_ffi_target(TARGET, stages, platform="CUDA")
        except Exception as error:
            raise Unsupported("jaxlib refused attnsmith's handler, which was built with the headers of another one: "
                              f"{str(error).splitlines()[0]}; build attnsmith with this one's") from error
        _registered = True
