"""Scratch memory of the plain functions: one for each GPU and stream, whose launches come one after the other."""

from __future__ import annotations

import concurrent.futures
import threading
from typing import Any, Callable, Dict, List, Tuple

from .._c_api import abi
from .._tensors import frameworks
from ..buffers import Buffer

PER_THREAD_STREAM = 2  # one number for a stream that every thread has its own of
_IN_TURN = -1  # in the place of a stream


class _InTurn(threading.local):
    """Whether the launches of this thread run one after the other, on whatever streams, and so do the replays of the graphs that
    capture them, as an engine orders its steps. They all use one workspace of their GPU.

    By default each stream has its own, and a launch that is captured has memory of its graph, which every replay zeroes.
    """

    on = False

    def __enter__(self) -> None:
        self.on = True

    def __exit__(self, *exception: Any) -> None:
        self.on = False


in_turn = _InTurn()


class Workspace:
    """`lock` is held from packing to launch: another thread's launch between the two kernels of a divided one would write over
    its parts. Launches run one after the other, and leave what they count in at zero for each other."""

    __slots__ = ("lock", "data", "nbytes", "owner")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.data = 0
        self.nbytes = 0
        self.owner: Any = None


class Workspaces:
    def __init__(self, allocate: Callable[[int, int], Buffer], wait: Callable[[int], None]) -> None:
        self._allocate = allocate
        self._wait = wait
        self._of: Dict[Tuple[int, ...], Workspace] = {}
        self._outgrown: List[Any] = []  # of launches in turn: graphs may use it, or another stream

    def of(self, index: int, stream: int) -> Workspace:
        key: Tuple[int, ...] = (index, stream)
        if in_turn.on:
            key = index, _IN_TURN, threading.get_ident()
        elif stream == PER_THREAD_STREAM:
            key = index, stream, threading.get_ident()
        workspace = self._of.get(key)
        if workspace is None:
            workspace = self._of.setdefault(key, Workspace())
        return workspace

    def serves_capture(self, index: int, stream: int, nbytes: int) -> bool:
        """Whether a launch that is being captured may use a workspace that exists."""
        return in_turn.on and self.of(index, stream).nbytes >= nbytes

    def grow(self, workspace: Workspace, nbytes: int, framework: frameworks.Framework, index: int,
             stream: int) -> None:
        """To at least `nbytes`; with its lock held."""
        nbytes = max(nbytes, 2 * workspace.nbytes, 1 << 16)
        if in_turn.on:
            self._outgrown.append(workspace.owner)
        if isinstance(framework, frameworks.Torch):
            # By its allocator, on this very stream: what is replaced may be used again behind the launches so far.
            owner, data = _kept_memory(framework, nbytes, index)
        else:
            if workspace.owner is not None:
                self._wait(stream)
            owner = self._allocate(nbytes, index)
            owner.upload(bytes(abi.WORKSPACE_ZEROED_BYTES))
            data = owner.data
        workspace.owner, workspace.data, workspace.nbytes = owner, data, nbytes


def torch_memory(framework: frameworks.Torch, nbytes: int, index: int) -> Tuple[Any, int]:
    torch = framework.torch
    memory = torch.empty(nbytes, dtype=torch.uint8, device=torch.device("cuda", index))
    memory[:abi.WORKSPACE_ZEROED_BYTES].zero_()
    return memory, memory.data_ptr()


def _kept_memory(framework: frameworks.Torch, nbytes: int, index: int) -> Tuple[Any, int]:
    """torch_memory of no pool that only this thread's allocations go to now: while a compiled graph warms up there is one
    that wants all of its memory back. A thread of its own allocates elsewhere."""
    torch = framework.torch
    stream = torch.cuda.current_stream(index)

    def make() -> Tuple[Any, int]:
        with torch.cuda.stream(stream):
            return torch_memory(framework, nbytes, index)

    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        return thread.submit(make).result()
