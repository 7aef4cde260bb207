"""What the library needs to know of a tensor, as a plain tuple: one is made for each argument of each call.

    (pointer, shape, strides, kind, device)

``strides`` are in elements. ``kind`` is the second word of DLPack's description, less the rank: DLDataType << 32.
``device`` is the first one: DLDeviceType | index << 32.
"""

from __future__ import annotations

import struct
from ctypes import c_int64, c_void_p
from typing import Sequence, Tuple

from .._base.integers import fitting
from .._c_api import abi
from ..errors import InvalidRequest

View = Tuple[int, Sequence[int], Sequence[int], int, int]


def kind_of(code: int, bits: int, lanes: int = 1) -> int:
    return (code | bits << 8 | lanes << 16) << 32


FP16 = kind_of(abi.DL_FLOAT, 16)
BF16 = kind_of(abi.DL_BFLOAT, 16)
FP32 = kind_of(abi.DL_FLOAT, 32)
INT32 = kind_of(abi.DL_INT, 32)
INT64 = kind_of(abi.DL_INT, 64)
E4M3 = kind_of(abi.DL_E4M3FN, 8)
E5M2 = kind_of(abi.DL_E5M2, 8)
UINT8 = kind_of(abi.DL_UINT, 8)

WORDS = {FP16: "fp16", BF16: "bf16", FP32: "fp32", INT32: "int32", INT64: "int64", E4M3: "e4m3", E5M2: "e5m2",
         UINT8: "uint8"}
KINDS = {word: kind for kind, word in WORDS.items()}
ITEM_BYTES = {FP16: 2, BF16: 2, FP32: 4, INT32: 4, INT64: 8, E4M3: 1, E5M2: 1, UINT8: 1}

# A tensor that does not say which GPU it lies on. The library takes managed memory on any.
UNKNOWN_DEVICE = abi.DL_CUDA_MANAGED


MOST_AXES = 5  # of a tensor, as the library has it
_FITS = [struct.Struct(f"Q{2 * rank}q").pack for rank in range(MOST_AXES + 1)]


def on_device(index: int) -> int:
    return index << 32 | abi.DL_CUDA


def device_of(device: int) -> int:
    """The ordinal, or the library's number for the current device."""
    return abi.CURRENT_DEVICE if device == UNKNOWN_DEVICE else device >> 32


def compact_strides(shape: Sequence[int]) -> "tuple[int, ...]":
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))


def checked(view: View, name: str) -> View:
    """The view, whose numbers are what C has room for. Raises InvalidRequest naming the tensor."""
    pointer, shape, strides, _, _ = view
    try:
        _FITS[len(shape)](pointer, *shape, *strides)  # quicker than a look at each
        if not shape or min(shape) >= 0:
            return view
    except (IndexError, struct.error):
        pass
    fitting(f"{name}.data", pointer, c_void_p)
    for extent in shape:
        fitting(f"{name}.shape", extent, c_int64, 0)
    if len(strides) != len(shape):
        raise InvalidRequest(f"{name}.strides", str(tuple(strides)), f"as many as the shape has axes, {len(shape)}")
    for stride in strides:
        fitting(f"{name}.strides", stride, c_int64)
    return view


def inserted(view: View, axis: int) -> View:
    """With an axis of extent 1."""
    pointer, shape, strides, kind, device = view
    if axis > len(shape):  # of a tensor without axes; the library refuses it
        return view
    at = (*strides, 1)[axis]  # any would do: no second element is reached with it
    return pointer, (*shape[:axis], 1, *shape[axis:]), (*strides[:axis], at, *strides[axis:]), kind, device


def as_vector(view: View) -> View:
    """A tensor of one element without axes, as frameworks keep single numbers, with one."""
    return view if view[1] else inserted(view, 0)


def selected(view: View, axis: int, index: int) -> View:
    pointer, shape, strides, kind, device = view
    pointer += index * strides[axis] * ITEM_BYTES[kind] if pointer else 0
    return pointer, (*shape[:axis], *shape[axis + 1:]), (*strides[:axis], *strides[axis + 1:]), kind, device


def shortened(view: View, axis: int, extent: int) -> View:
    """With the first elements of an axis alone."""
    pointer, shape, strides, kind, device = view
    return pointer, (*shape[:axis], extent, *shape[axis + 1:]), strides, kind, device


def reach_bits(views: Sequence[View]) -> int:
    """Has a low bit set wherever the base or a stride, in bytes, of any of them has one; what no element is reached
    by does not count."""
    bits = 0
    for pointer, shape, strides, kind, _ in views:
        if 0 in shape:
            continue
        bits |= pointer
        for extent, stride in zip(shape[:-1], strides):
            if extent > 1:
                bits |= stride * ITEM_BYTES[kind]
    return bits
