"""The frameworks that tensors come from: how each tells memory, stream and gradients, and makes new tensors.

None is imported: a framework is met when an object of it is.
"""

from __future__ import annotations

import importlib
import math
import numbers
import sys
from ctypes import c_void_p
from functools import partial
from typing import Any, Callable, NoReturn, Optional, Sequence

from .._base.integers import fitting, shown
from .._c_api import abi
from ..buffers import Array, Buffer
from ..errors import InvalidRequest
from . import interface as _interface, views as _views
from .dlpack import borrow, device_of
from .views import View

_CUDA_WANTED = "a CUDA device; move the tensor there first"


class Order:
    """Where one call stands among the work of others: its stream, what must live until it is done, and how to wait
    for another stream."""

    __slots__ = ("stream", "held", "wait")

    def __init__(self, stream: int, wait: Callable[[int], None]) -> None:
        self.stream: int = stream
        self.held: "list[Any]" = []
        self.wait: Callable[[int], None] = wait


class Framework:
    """What attnsmith needs of a framework; this one is for any object with DLPack or the CUDA array interface."""

    name = ""
    # Whether memory that is given back is used again in the order of the stream. Where not, calls wait.
    ordered = False

    def index(self, tensor: Any, name: str) -> int:
        """The ordinal of the tensor's GPU, or -1 where it does not say."""
        if hasattr(tensor, "__dlpack_device__"):
            return device_of(tensor, name)[1]
        return _views.device_of(self.view(tensor, name, Order(0, lambda stream: None))[4])

    def stream(self, index: int) -> int:
        """The stream that the framework works on now: a CUstream as a number, 0 for the default stream."""
        return 0

    def stream_of(self, index: int) -> Callable[[], int]:
        """`stream` for one GPU, to be called before each of many launches."""
        return partial(self.stream, index)

    def view(self, tensor: Any, name: str, order: Order) -> View:
        """Raises InvalidRequest, naming the tensor, for what is no CUDA tensor of a known dtype."""
        if hasattr(tensor, "__dlpack__") and hasattr(tensor, "__dlpack_device__"):
            view, borrowed = borrow(tensor, name, order.stream)
            order.held.append(borrowed)
        elif hasattr(tensor, "__cuda_array_interface__"):
            interface = tensor.__cuda_array_interface__
            view = _interface.view(interface, name, _views.UNKNOWN_DEVICE)
            if interface.get("stream") not in (None, order.stream or 1):
                order.wait(fitting(f"{name}.stream", interface["stream"], c_void_p))
        elif isinstance(tensor, numbers.Real) and name.endswith("_scale"):
            raise InvalidRequest(name, shown(tensor), "an fp32 tensor of [1] or [kv_heads] on the GPU, where kernels "
                                 f"read it, such as torch.tensor([{shown(tensor)}], device=q.device)")
        else:
            raise InvalidRequest(name, f"an object of type {type(tensor).__name__}",
                                 "a CUDA tensor: torch.Tensor, cupy.ndarray, or any with __dlpack__ or "
                                 "__cuda_array_interface__")
        if view[3] not in _views.WORDS:
            _interface.refuse_dtype(name, f"DLPack type {view[3] >> 32:#x}")
        return view

    def layouts(self, tensors: Sequence[Any]) -> "Optional[tuple[list[int], list[Any]]]":
        """For a framework that is quicker without views: the pointers of those tensors that are not None, and what says
        the shape, strides, dtype and device of each, or None, in values that can be compared and hashed. None where
        `view` has to have a look, if only to name what is wrong."""
        return None

    def views(self, pointers: Sequence[int], layouts: Sequence[Any]) -> "Optional[list[Optional[View]]]":
        """The views of what `layouts` gave. None where `view` has to have a look."""
        return None

    def scope(self, index: int, stream: Optional[int]) -> Any:
        """What makes this GPU, and this stream unless it is None, the current one; None where they are already."""
        return None

    def empty(self, like: Any, shape: Sequence[int], kind: int, allocate: Callable[[int, int], Buffer],
              index: int) -> Any:
        """A new row-major tensor on the GPU of `like`."""
        nbytes = math.prod(shape) * _views.ITEM_BYTES[kind]
        return allocate(max(nbytes, 1), index).array(shape, _views.WORDS[kind])

    def result(self, tensor: Any) -> Any:
        """What the caller gets for a tensor that `empty` made, after the launch."""
        return tensor


class Jax(Framework):
    name = "jax"

    def result(self, tensor: Any) -> Any:
        return importlib.import_module("jax.dlpack").from_dlpack(tensor)


class Own(Framework):
    """attnsmith's own arrays, whose memory is freed when the device has done with it."""

    name = "attnsmith"
    ordered = True

    def index(self, tensor: Array, name: str) -> int:
        return tensor.device

    def view(self, tensor: Array, name: str, order: Order) -> View:
        return tensor._view


class Cupy(Framework):
    name = "cupy"
    ordered = True

    def __init__(self, cupy: Any) -> None:
        self.cupy = cupy

    def index(self, tensor: Any, name: str) -> int:
        return int(tensor.device.id)

    def stream(self, index: int) -> int:
        if self.cupy.cuda.Device().id == index:
            return int(self.cupy.cuda.get_current_stream().ptr)
        with self.cupy.cuda.Device(index):  # current streams are each device's own
            return int(self.cupy.cuda.get_current_stream().ptr)

    def view(self, tensor: Any, name: str, order: Order) -> View:
        try:
            interface = tensor.__cuda_array_interface__
        except (AttributeError, TypeError, ValueError):  # of bfloat16, for which it has no words
            return super().view(tensor, name, order)
        if interface["typestr"] not in _interface.KINDS_BY_TYPESTR and hasattr(tensor, "__dlpack__"):
            return super().view(tensor, name, order)
        return _interface.view(interface, name, _views.on_device(tensor.device.id))

    def scope(self, index: int, stream: Optional[int]) -> Any:
        if stream is None:
            return None
        with self.cupy.cuda.Device(index):
            return self.cupy.cuda.ExternalStream(stream, index)

    def empty(self, like: Any, shape: Sequence[int], kind: int, allocate: Callable[[int, int], Buffer],
              index: int) -> Any:
        if _views.ITEM_BYTES[kind] == 1:
            raise InvalidRequest("q_out", "None", "an array of uint8: CuPy has no floats of 8 bits")
        dtype = {_views.FP16: "float16", _views.FP32: "float32", _views.INT32: "int32"}.get(kind) or like.dtype
        with self.cupy.cuda.Device(like.device.id):
            return self.cupy.empty(tuple(shape), dtype)


# By the names that torch and numpy have for them. Those of 8 bits came to torch with version 2.1.
KINDS_BY_NAME = {"float16": _views.FP16, "bfloat16": _views.BF16, "float32": _views.FP32, "int32": _views.INT32,
                "int64": _views.INT64, "float8_e4m3fn": _views.E4M3, "float8_e5m2": _views.E5M2, "uint8": _views.UINT8}


def refuse_gradient(name: str) -> NoReturn:
    raise InvalidRequest(f"{name}.requires_grad", "True", "a tensor without gradients, since there is no backward pass: "
                         f"call under torch.no_grad(), or pass {name}.detach()")


def refuse_tangent(name: str) -> NoReturn:
    raise InvalidRequest(f"{name}.tangent", "a tensor", "a tensor without a tangent, since there is no forward-mode derivative: "
                         f"pass torch.autograd.forward_ad.unpack_dual({name}).primal")


class Torch(Framework):
    """torch.Tensor by its own methods: no capsule is made, and what a call costs is a few of them."""

    name = "torch"
    ordered = True

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.kinds = {getattr(torch, name): kind for name, kind in KINDS_BY_NAME.items() if hasattr(torch, name)}
        self.dtypes = {kind: dtype for dtype, kind in self.kinds.items()}
        inner = torch._C
        public = torch.cuda
        # The public functions do the same, with much around it.
        self.raw_stream = getattr(inner, "_cuda_getCurrentRawStream",
                                  lambda index: public.current_stream(index).cuda_stream)
        self.current_device = getattr(inner, "_cuda_getDevice", public.current_device)
        self.is_capturing = getattr(inner, "_cuda_isCurrentStreamCapturing", public.is_current_stream_capturing)
        self.is_grad_enabled = torch.is_grad_enabled
        self.forward_ad: Any = getattr(getattr(torch, "autograd", None), "forward_ad", None)
        self.empty_like: Any = getattr(torch, "empty_like", None)

    def index(self, tensor: Any, name: str) -> int:
        if not tensor.is_cuda:
            raise InvalidRequest(f"{name}.device", str(tensor.device), _CUDA_WANTED)
        return int(tensor.get_device())

    def stream(self, index: int) -> int:
        return int(self.raw_stream(index))

    def stream_of(self, index: int) -> Callable[[], int]:
        return partial(self.raw_stream, index)

    def view(self, tensor: Any, name: str, order: Optional[Order] = None) -> View:
        try:
            if not tensor.is_cuda:
                raise InvalidRequest(f"{name}.device", str(tensor.device), _CUDA_WANTED)
            if tensor.requires_grad and self.is_grad_enabled():
                refuse_gradient(name)
            if self.has_tangents() and self.forward_ad.unpack_dual(tensor).tangent is not None:
                refuse_tangent(name)
            if tensor.is_neg():
                raise InvalidRequest(name, "a view that negates its memory", f"{name}.resolve_neg()")
            return (tensor.data_ptr(), tensor.shape, tensor.stride(), self.kinds[tensor.dtype],
                    tensor.get_device() << 32 | 2)
        except KeyError:
            _interface.refuse_dtype(name, str(tensor.dtype))
        except (AttributeError, NotImplementedError, RuntimeError) as error:
            if hasattr(tensor, "data_ptr"):  # sparse, nested and fake tensors have no such memory
                raise InvalidRequest(name, f"a tensor of which {error}".splitlines()[0],
                                     "a tensor with strided CUDA memory") from error
            return of(tensor, name).view(tensor, name, order or Order(0, lambda stream: None))

    def has_tangents(self) -> bool:
        """Whether a tensor could have one: within torch.autograd.forward_ad.dual_level() or torch.func.jvp."""
        return self.forward_ad is not None and bool(self.forward_ad._current_level >= 0)

    def layouts(self, tensors: Sequence[Any]) -> "Optional[tuple[list[int], list[Any]]]":
        if self.has_tangents():  # which takes a look at each
            return None
        pointers: "list[int]" = []
        layouts: "list[Any]" = []
        gradients = self.is_grad_enabled()
        try:
            for tensor in tensors:
                if tensor is None:
                    layouts.append(None)
                elif not tensor.is_cuda or gradients and tensor.requires_grad or tensor.is_neg():
                    return None
                else:
                    pointers.append(tensor.data_ptr())
                    layouts.append((tensor.shape, tensor.stride(), tensor.dtype, tensor.get_device()))
        except (AttributeError, NotImplementedError, RuntimeError):
            return None
        return pointers, layouts

    def views(self, pointers: Sequence[int], layouts: Sequence[Any]) -> "Optional[list[Optional[View]]]":
        rest = iter(pointers)
        try:
            return [layout and (next(rest), layout[0], layout[1], self.kinds[layout[2]], layout[3] << 32 | abi.DL_CUDA)
                    for layout in layouts]
        except KeyError:
            return None

    def scope(self, index: int, stream: Optional[int]) -> Any:
        cuda = self.torch.cuda
        if stream is None:
            return None if self.current_device() == index else cuda.device(index)
        return cuda.stream(cuda.ExternalStream(stream, device=index) if stream else cuda.default_stream(index))

    def empty(self, like: Any, shape: Sequence[int], kind: int, allocate: Callable[[int, int], Buffer],
              index: int) -> Any:
        return self.empty_strided(like, shape, _views.compact_strides(shape), kind)

    def empty_strided(self, like: Any, shape: Sequence[int], strides: Sequence[int], kind: int) -> Any:
        """A new tensor on the GPU of `like`. torch takes half as long for it as for one of a shape alone."""
        return like.new_empty_strided(shape, strides, dtype=self.dtypes[kind])


_met: "dict[str, Framework]" = {}  # by name: each has one object, so that `is` tells them apart
_by_type: "dict[type, Framework]" = {Array: Own()}
_anything = Framework()
_MAKERS: "dict[str, Callable[[Any], Framework]]" = {"torch": Torch, "cupy": Cupy, "jax": lambda module: Jax()}
_ROOTS = {"torch": "torch", "cupy": "cupy", "jax": "jax", "jaxlib": "jax"}


def met(name: str) -> Framework:
    """The framework that is imported already, by its name."""
    if name not in _met:
        _met.setdefault(name, _MAKERS[name](sys.modules[name]))
    return _met[name]


def _find(kind: type) -> Framework:
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "Tensor") and issubclass(kind, torch.Tensor):
        return met("torch")
    for base in kind.__mro__:
        name = _ROOTS.get(base.__module__.partition(".")[0])
        if name in ("cupy", "jax") and name in sys.modules:
            return met(name)
    return _anything


def of(tensor: Any, name: str) -> Framework:
    """The framework of an object, by its type. Raises InvalidRequest for None, where a tensor is needed."""
    kind = type(tensor)
    framework = _by_type.get(kind)
    if framework is None:
        if tensor is None:
            raise InvalidRequest(name, "None", "a CUDA tensor")
        framework = _by_type[kind] = _find(kind)
    return framework


def raw_stream(stream: Any) -> int:
    """The number of a stream given as a number, or as an object of torch, CuPy, Numba or anything with __cuda_stream__.
    Raises InvalidRequest."""
    if isinstance(stream, int):
        return fitting("stream", stream, c_void_p)
    for attribute in ("cuda_stream", "__cuda_stream__", "ptr", "handle"):  # torch, CUDA's protocol, CuPy, Numba
        value = getattr(stream, attribute, None)
        if value is not None:
            return _number_of(value) if attribute != "__cuda_stream__" else _number_by_protocol(value)
    raise InvalidRequest("stream", f"an object of type {type(stream).__name__}",
                         "a CUstream as a number, or a stream of torch or CuPy")


def _number_of(value: Any) -> int:
    value = getattr(value, "value", value)  # of ctypes, where NULL is None
    if value is None:
        return 0
    if not hasattr(value, "__index__") and hasattr(value, "__int__") and not isinstance(value, numbers.Number):
        value = int(value)  # a handle of CUDA's own Python
    return fitting("stream", value, c_void_p)


def _number_by_protocol(protocol: Any) -> int:
    said = protocol() if callable(protocol) else protocol
    try:
        _, value = said
    except (TypeError, ValueError):
        raise InvalidRequest("stream", f"__cuda_stream__ that gives {said!r}", "a pair (version, CUstream)") from None
    return _number_of(value)
