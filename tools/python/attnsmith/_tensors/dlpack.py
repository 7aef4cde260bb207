"""DLPack through ctypes, both ways: capsules of others are read, and device memory of ours is handed out."""

from __future__ import annotations

import ctypes
import operator
from ctypes import CFUNCTYPE, POINTER, PYFUNCTYPE, Structure, c_char_p, c_int, c_int32, c_int64, c_void_p
from typing import Any, Optional

from .._base.integers import fitting
from .._c_api import abi
from ..errors import InvalidRequest
from .views import View, checked, compact_strides, kind_of

_DELETER = CFUNCTYPE(None, c_void_p)
_MOST_AXES = 64  # that anything has; more are garbage, and reading them would pass the end of their array
_NAME, _USED = b"dltensor", b"used_dltensor"  # capsules keep a pointer to their name, not a copy


class _Managed(Structure):
    """DLManagedTensor."""

    _fields_ = [("tensor", abi.Tensor), ("context", c_void_p), ("deleter", c_void_p)]


def _prototype(name: str, result: Any, *arguments: Any) -> Any:
    return PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


_new = _prototype("PyCapsule_New", ctypes.py_object, c_void_p, c_char_p, c_void_p)
_is_valid = _prototype("PyCapsule_IsValid", c_int, ctypes.py_object, c_char_p)
_get = _prototype("PyCapsule_GetPointer", c_void_p, ctypes.py_object, c_char_p)
_set_name = _prototype("PyCapsule_SetName", c_int, ctypes.py_object, c_char_p)
# For destructors, which get a capsule that must not be counted again: its address, not the object.
_is_valid_at = _prototype("PyCapsule_IsValid", c_int, c_void_p, c_char_p)
_get_at = _prototype("PyCapsule_GetPointer", c_void_p, c_void_p, c_char_p)

_DEVICE_TYPES = {1: "cpu", 2: "cuda", 3: "pinned host memory", 4: "opencl", 7: "vulkan", 8: "metal", 10: "rocm",
                 13: "managed cuda memory", 14: "oneapi"}


class Borrowed:
    """A DLManagedTensor that was taken from its capsule. Gives it back, once, with ``release`` or at its end."""

    def __init__(self, capsule: Any) -> None:
        self._address: Optional[int] = None
        if not _is_valid(capsule, _NAME):
            raise InvalidRequest("__dlpack__", "something else than an unused DLPack capsule", 'a capsule "dltensor"')
        address = _get(capsule, _NAME)
        _set_name(capsule, _USED)  # from here on giving it back is our part
        self._address = address
        self._managed = _Managed.from_address(address)

    @property
    def tensor(self) -> abi.Tensor:
        tensor: abi.Tensor = self._managed.tensor
        return tensor

    def release(self) -> None:
        address, self._address = self._address, None
        if address is not None and self._managed.deleter:
            # A callback of the kind that keeps the interpreter's lock: a deleter may count references, as many do.
            PYFUNCTYPE(None, c_void_p)(self._managed.deleter)(address)

    def __del__(self) -> None:
        self.release()


def device_of(tensor: Any, name: str) -> "tuple[int, int]":
    """DLPack's type and ordinal of a tensor's device. Raises InvalidRequest for what is no such pair."""
    device = tensor.__dlpack_device__()
    try:
        device_type, index = map(operator.index, device)
    except (TypeError, ValueError):
        raise InvalidRequest(f"{name}.__dlpack_device__", repr(device), "a pair (device type, ordinal)") from None
    return device_type, fitting(f"{name}.device", index, c_int32, 0)


def device_name(device_type: int, index: int) -> str:
    """For messages."""
    name = _DEVICE_TYPES.get(device_type, f"DLPack device type {device_type}")
    return name if device_type in (1, 3) else f"{name}:{index}"


def borrow(tensor: Any, name: str, stream: int) -> "tuple[View, Borrowed]":
    """The view of an object with ``__dlpack__``, whose work is ordered before what `stream` does next.

    Raises InvalidRequest for memory that is not a CUDA device's.
    """
    device_type, index = device_of(tensor, name)
    if device_type not in (abi.DL_CUDA, abi.DL_CUDA_MANAGED):
        raise InvalidRequest(f"{name}.device", device_name(device_type, index),
                             "a CUDA device; move the tensor there first")
    # DLPack has no 0 for CUDA: 1 is the legacy default stream, which 0 means to the driver.
    borrowed = Borrowed(tensor.__dlpack__(stream=stream or 1))
    dl = borrowed.tensor
    if not 0 <= dl.ndim <= _MOST_AXES or (dl.ndim and not dl.shape):
        raise InvalidRequest(f"{name}.shape", f"of {dl.ndim} axes" if dl.shape else "NULL",
                             f"the extents of at most {_MOST_AXES} axes")
    shape = tuple(dl.shape[:dl.ndim])
    strides = tuple(dl.strides[:dl.ndim]) if dl.strides else compact_strides(shape)
    pointer = (dl.data or 0) + dl.byte_offset
    kind = kind_of(dl.dtype.code, dl.dtype.bits, dl.dtype.lanes)
    index = fitting(f"{name}.device", dl.device.device_id, c_int32, 0)
    return checked((pointer, shape, strides, kind, dl.device.device_type | index << 32), name), borrowed


# What is handed out, by the address of its DLManagedTensor: the struct itself, and what it points to.
_lent: "dict[int, tuple[Any, ...]]" = {}


def _end_loan(address: int) -> None:
    _lent.pop(address, None)


def _end_capsule(capsule: int) -> None:
    """Frees a capsule that nobody took the tensor from."""
    if _is_valid_at(capsule, _NAME):
        _lent.pop(_get_at(capsule, _NAME), None)


_give_back, _destroy = _DELETER(_end_loan), PYFUNCTYPE(None, c_void_p)(_end_capsule)
for _callback in (_give_back, _destroy):  # tensors may be given back while the interpreter is taken down
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_callback))


def lend(view: View, owner: Any) -> Any:
    """A DLPack capsule of the view; `owner` lives until its taker gives it back."""
    pointer, shape, strides, kind, device = view
    extents, steps = (c_int64 * len(shape))(*shape), (c_int64 * len(shape))(*strides)
    managed = _Managed()
    managed.tensor.data = pointer or None
    managed.tensor.device = abi.Device(device & 0xFFFFFFFF, device >> 32)
    managed.tensor.ndim = len(shape)
    dtype = kind >> 32
    managed.tensor.dtype = abi.DataType(dtype & 0xFF, dtype >> 8 & 0xFF, dtype >> 16)
    managed.tensor.shape = ctypes.cast(extents, POINTER(c_int64))
    managed.tensor.strides = ctypes.cast(steps, POINTER(c_int64))
    managed.deleter = ctypes.cast(_give_back, c_void_p)
    address = ctypes.addressof(managed)
    _lent[address] = (managed, extents, steps, owner)
    return _new(address, _NAME, ctypes.cast(_destroy, c_void_p))
