"""Integers on their way into C: ctypes cuts off what its type cannot hold, and says nothing."""

from __future__ import annotations

import ctypes
import operator
from typing import Any, Dict, Optional, Tuple

from ..errors import InvalidRequest, shortened

_MOST_MEMBERS_SHOWN = 16
_MOST_BITS_SHOWN = 256  # Python does not write integers of any length
_Range = Tuple[int, int]


def _range_of(kind: Any) -> _Range:
    bits = 8 * ctypes.sizeof(kind)
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if kind(-1).value < 0 else (0, (1 << bits) - 1)


_RANGES: Dict[Any, _Range] = {kind: _range_of(kind) for kind in (ctypes.c_int32, ctypes.c_uint32, ctypes.c_int64,
                                                                             ctypes.c_size_t)}
_RANGES[ctypes.c_void_p] = _RANGES[ctypes.c_size_t]  # an address, or a stream as a number


def fitting(name: str, value: Any, kind: Any, least: Optional[int] = None) -> int:
    """An argument, `name`, as an integer that the C type holds, and that is no less than `least` where that is given.
    What numpy has for an integer is one; a bool is none. Raises InvalidRequest."""
    low, high = _RANGES[kind]
    low = low if least is None else least
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise InvalidRequest(name, shown(value), f"an integer from {low} to {high}") from None
    if not low <= number <= high:
        raise InvalidRequest(name, shown(number), f"an integer from {low} to {high}")
    return number


def shown(value: Any) -> str:
    """A value as messages have it: what says what it is, shortened, else its type."""
    if value.__class__ in (tuple, list) and len(value) <= _MOST_MEMBERS_SHOWN:
        members = ", ".join(map(_shown_alone, value))
        return shortened(f"({members})" if value.__class__ is tuple else f"[{members}]")
    return _shown_alone(value)


def _shown_alone(value: Any) -> str:
    if isinstance(value, int) and value.bit_length() > _MOST_BITS_SHOWN:
        return f"an integer of {value.bit_length()} bits"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    is_plain = isinstance(value, (bool, int, float, complex, str, bytes, type(None)))
    return shortened(repr(value)) if is_plain else f"an object of type {type(value).__name__}"
