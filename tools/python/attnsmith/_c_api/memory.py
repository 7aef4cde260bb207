"""The caller's allocator of device memory, as the library calls it."""

from __future__ import annotations

import traceback
from ctypes import c_void_p
from typing import Any, Callable, List, Optional, Tuple

from .._base.arguments import check_callable
from .._base.integers import fitting
from ..errors import InvalidRequest
from . import abi

# (bytes, device) -> an address, a multiple of 256, or None where there is no memory.
Allocate = Callable[[int, int], Optional[int]]
# (address, bytes, device)
Free = Callable[[int, int, int], Any]

# Calls and buffers may outlive their runtime, and give their memory back last of all.
_for_ever: "List[Tuple[Any, Any]]" = []


def callbacks(allocate: Optional[Allocate], free: Optional[Free]) -> Tuple[Any, Any]:
    """Both as C functions. Raises InvalidRequest for one without the other, and what is not callable."""
    if allocate is None and free is None:
        return abi.MemoryAllocate(), abi.MemoryFree()
    if allocate is None or free is None:
        missing = "allocate" if allocate is None else "free"
        raise InvalidRequest(missing, "None", "both of allocate and free, or neither")

    check_callable("allocate", allocate, "(bytes, device)")
    check_callable("free", free, "(address, bytes, device)")

    def call_allocate(user: Optional[int], nbytes: int, device: int) -> int:
        try:
            address = allocate(nbytes, device)
            # ctypes would leave what it cannot convert as it is, and the library would take that for an address.
            return 0 if address is None else fitting("allocate", address, c_void_p)
        except BaseException:  # nothing may pass into the library, which says that there is no memory
            traceback.print_exc()
            return 0

    def call_free(user: Optional[int], memory: int, nbytes: int, device: int) -> None:
        try:
            free(memory, nbytes, device)
        except BaseException:
            traceback.print_exc()

    _for_ever.append((abi.MemoryAllocate(call_allocate), abi.MemoryFree(call_free)))
    return _for_ever[-1]
