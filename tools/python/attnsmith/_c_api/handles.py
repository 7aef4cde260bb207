"""What owns an object of the library. It frees that once, so no copy may have it too; and what can be closed while
other threads are in a call of it is freed behind the last of these."""

from __future__ import annotations

import threading
import time
from typing import Any, Callable, Iterable, NoReturn, Optional, TypeVar

from ..errors import Error

_Self = TypeVar("_Self", bound="Owner")


class Owner:
    """Base of all that own an object of the library."""

    #: How to get another one. "" where one serves any number of users: a copy of it is itself.
    _another = ""
    #: What to do in another process, which has none of this one's objects.
    _elsewhere = ""

    def __copy__(self: _Self) -> _Self:
        if self._another:
            raise TypeError(f"an attnsmith.{type(self).__name__} cannot be copied: {self._another}")
        return self

    def __deepcopy__(self: _Self, memo: Any) -> _Self:
        return self.__copy__()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(f"an attnsmith.{type(self).__name__} cannot be pickled, since it is of this process alone: "
                        f"{self._elsewhere}")


class Shared:
    """A handle that any number of threads use and that one of them may close at any time. `with` it, a call has the
    handle to its end; close() refuses later calls, and the last of those under way frees it."""

    def __init__(self, pointer: int, free: Callable[[int], Any], closed: str) -> None:
        """`closed`: what a call after close() is told."""
        self._pointer = pointer
        self._free = free
        self._message = closed
        # One for each call under way. append and pop are atomic, and cheaper than a lock.
        self._users: "list[None]" = []
        self._closed = False
        self._once = threading.Lock()  # taken for good by whoever frees it
        self._freed = threading.Event()

    def __enter__(self) -> int:
        self._users.append(None)  # before the look, so that close() sees it or it sees close()
        if self._closed:
            self.__exit__()
            raise Error(self._message)
        return self._pointer

    def __exit__(self, *exception: Any) -> None:
        self._users.pop()
        if self._closed:
            self._free_behind_the_last()

    def close(self) -> None:
        """Waits for no call. Once more does nothing."""
        self._closed = True
        self._free_behind_the_last()

    def wait(self, seconds: float) -> bool:
        """Until it is freed, after close(). Whether it is."""
        return self._freed.wait(seconds)

    def _free_behind_the_last(self) -> None:
        if not self._users and self._once.acquire(blocking=False):
            self._free(self._pointer)
            self._freed.set()


class Closable(Owner):
    """Base of what may be closed before its end, from any thread."""

    _handle: Optional[Shared] = None  # until __init__ is through

    def _open(self) -> Shared:
        assert self._handle is not None
        return self._handle

    def _close(self) -> None:
        if self._handle is not None:
            self._handle.close()

    def __del__(self) -> None:
        self._close()


def close_all(owners: Iterable[Closable], seconds: float) -> None:
    """Closes them in this order, then waits, so long in all, until calls under way have freed them."""
    handles = [owner._handle for owner in owners if owner._handle is not None]
    for handle in handles:
        handle.close()
    end = time.monotonic() + seconds
    for handle in handles:
        handle.wait(max(end - time.monotonic(), 0))
