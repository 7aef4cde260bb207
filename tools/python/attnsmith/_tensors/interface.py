"""The CUDA array interface (Numba's, version 3) of other libraries' memory, held against what it promises."""

from __future__ import annotations

import re
from ctypes import c_int64
from typing import Any, NoReturn, Optional, Tuple

from .._base.integers import fitting, shown
from ..errors import InvalidRequest
from . import views as _views
from .views import View

KINDS_BY_TYPESTR = {"<f2": _views.FP16, "<f4": _views.FP32, "<i4": _views.INT32, "<i8": _views.INT64,
                    "|u1": _views.UINT8}
# Arguments that a launch writes to. Scales of tokens, which append writes, too, are inputs elsewhere.
_WRITTEN = frozenset(("out", "o", "lse", "workspace", "q_out", "k_cache", "v_cache", "kpe_cache", "indices"))
_TYPESTR = re.compile(r"[<>|=][a-zA-Z](\d+)")


def refuse_dtype(name: str, dtype: str) -> NoReturn:
    raise InvalidRequest(f"{name}.dtype", dtype, ", ".join(_views.KINDS))


def view(interface: Any, name: str, device: int) -> View:
    """Raises InvalidRequest naming the tensor and what is wrong with it."""
    pointer, shape, in_bytes, typestr = _read(interface, name)
    kind = KINDS_BY_TYPESTR.get(typestr)
    if kind is None:
        refuse_dtype(name, typestr)
    strides = _views.compact_strides(shape)
    if in_bytes is not None:
        size = _views.ITEM_BYTES[kind]
        for stride in in_bytes:
            if stride % size:
                raise InvalidRequest(f"{name}.strides", f"{in_bytes} bytes", f"multiples of {size} bytes")
        strides = tuple([stride // size for stride in in_bytes])
    return _views.checked((pointer, shape, strides, kind, device), name)


def memory(interface: Any, name: str) -> Tuple[int, int]:
    """Where contiguous memory of any dtype lies, and how many bytes it has. Raises InvalidRequest."""
    pointer, shape, in_bytes, typestr = _read(interface, name)
    matched = _TYPESTR.fullmatch(typestr)
    if matched is None:
        refuse_dtype(name, typestr)
    item = int(matched[1])
    strides = _views.compact_strides(shape)
    _views.checked((pointer, shape, strides, 0, 0), name)
    if in_bytes is not None and in_bytes != tuple([stride * item for stride in strides]):
        raise InvalidRequest(f"{name}.strides", f"{in_bytes} bytes", "contiguous memory")
    nbytes = item
    for extent in shape:
        nbytes *= extent
    return pointer, fitting(f"{name}.shape", nbytes, c_int64)


def _read(interface: Any, name: str) -> Tuple[int, Tuple[int, ...], Optional[Tuple[int, ...]], str]:
    """Pointer, shape, strides in bytes and typestr."""
    try:
        shape, typestr, data = interface["shape"], interface["typestr"], interface["data"]
        pointer, is_read_only = data
        strides = interface.get("strides")
        mask = interface.get("mask")
    except (KeyError, TypeError, ValueError, AttributeError):
        raise InvalidRequest(f"{name}.__cuda_array_interface__", _keys(interface),
                             "a dict with shape, typestr and data, which is (pointer, read only)") from None
    if mask is not None:
        raise InvalidRequest(f"{name}.mask", "a mask", "a tensor without one; give lengths by q_lens and kv_lens, or "
                             "in pages")
    if is_read_only and name in _WRITTEN:
        raise InvalidRequest(f"{name}.data", "memory that is read only", "memory that may be written to")
    if typestr.__class__ is not str:
        refuse_dtype(name, shown(typestr))
    return (0 if pointer is None else pointer, _integers(shape, f"{name}.shape", 0),
            None if strides is None else _integers(strides, f"{name}.strides"), typestr)


def _integers(given: Any, name: str, least: Optional[int] = None) -> Tuple[int, ...]:
    if given.__class__ is tuple:
        for one in given:
            if one.__class__ is not int:
                break
        else:
            return given  # what does not fit C is found by _views.checked()
    if isinstance(given, (str, bytes)) or not hasattr(given, "__iter__"):
        raise InvalidRequest(name, shown(given), "a tuple of integers")
    return tuple([fitting(name, one, c_int64, least) for one in given])


def _keys(interface: Any) -> str:
    if not isinstance(interface, dict):
        return shown(interface)
    return f"a dict of {', '.join(map(str, interface)) or 'nothing'}, with data {interface.get('data')!r}"
