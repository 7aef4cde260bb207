"""Kernels and scratch memory whose addresses a library of this package has, and which are kept for it."""

from __future__ import annotations

import atexit
import os
import threading
from typing import Any, Callable, List, Optional, Set

from .. import runtime
from .._c_api.library import library
from .._tensors.frameworks import Torch
from .dispatch import Dispatch, Recipe, dispatch_now
from .workspaces import PER_THREAD_STREAM, Workspaces


#: The functions of libattnsmith that such a library is given.
LAUNCHING = ("bind", "call_launch_at", "call_free", "error_free")


def launching() -> List[int]:
    """Their addresses."""
    return [library().address(f"attnsmith_{name}") for name in LAUNCHING]


class Lent:
    """`set_workspace(device, stream, data, nbytes)` and `forget()` tell the library."""

    def __init__(self, set_workspace: Callable[[int, int, int, int], Any], forget: Callable[[], Any]) -> None:
        self._set_workspace = set_workspace
        self._forget = forget
        self._lock = threading.RLock()  # a signal's handler may take all back meanwhile
        self._process = os.getpid()
        self._dispatch: Optional[Dispatch] = None
        self._kernels: Set[Any] = set()
        self._workspaces: Optional[Workspaces] = None
        runtime.on_default_change.append(self.take_back)
        atexit.register(self.take_back)  # before kernels are freed at the interpreter's end

    def take_back(self) -> None:
        """All of it. Not in a child of the process, where a launch of another thread may hold a lock for ever."""
        if os.getpid() != self._process:
            return
        with self._lock:
            self._forget()
            self._dispatch = None
            self._kernels.clear()
            self._workspaces = None

    def lend(self, recipe: Recipe, torch: Torch, device: int, teach: Callable[[], Any]) -> None:
        """Lends what calls of a recipe need on the current stream of a GPU, and has the library learn it. Not for a layout that
        may never come again, a runtime that is not the current one any more, or a stream that stands for several or is being
        captured. Nor where it fails, such as for want of memory: the call that teaches has been served."""
        try:
            self._lend(recipe, torch, device, teach)
        except Exception:  # an interrupt is the caller's
            pass

    def _lend(self, recipe: Recipe, torch: Torch, device: int, teach: Callable[[], Any]) -> None:
        stream, dispatch = torch.stream(device), dispatch_now()
        is_kept, is_current = recipe.blocks is not recipe.spare, recipe.spare is dispatch.blocks
        if not (is_kept and is_current) or stream == PER_THREAD_STREAM or torch.is_capturing():
            return
        with self._lock:
            if os.getpid() != self._process:
                if self._dispatch is not None:  # lent before the fork, whose memory the child has not
                    return
                self._process = os.getpid()
            if dispatch_now() is not dispatch:
                return
            if self._dispatch is not dispatch:
                if self._dispatch is not None:  # else all was taken back, and to forget would undo this call's teach()
                    self.take_back()
                self._dispatch = dispatch
                self._workspaces = Workspaces(dispatch.runtime.allocate, dispatch.runtime.synchronize)
            workspaces = self._workspaces
            assert workspaces is not None
            self._kernels.add(recipe.entry.kernel)
            # One of its own: that of calls in Python has a lock that the library does not know.
            workspace = workspaces.of(device, stream)
            if workspace.nbytes < recipe.nbytes:
                replaced = workspace.owner  # which the library may use until it has the other
                workspaces.grow(workspace, recipe.nbytes, torch, device, stream)
                self._set_workspace(device, stream, workspace.data, workspace.nbytes)
                del replaced
            if self._dispatch is dispatch:
                teach()
