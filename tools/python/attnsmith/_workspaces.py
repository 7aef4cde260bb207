"""Scratch memory of the plain functions: one for each GPU and stream, whose launches come one after the other."""

from __future__ import annotations

import concurrent.futures
import threading
from typing import Any, Callable, Dict, List, Tuple

from . import _abi, _frameworks
from .buffers import Buffer

PER_THREAD_STREAM = 2  # one number for a stream that every thread has its own of


class _Kept(threading.local):
    """Whether launches that are captured in a CUDA graph use the kept workspace of their stream.

    By default each such launch has memory of its own graph, which is zeroed there, since two graphs may run at the same time. An
    engine that replays its graphs one after the other saves that.
    """

    on = False

    def __enter__(self) -> None:
        self.on = True

    def __exit__(self, *exception: Any) -> None:
        self.on = False


kept_in_graphs = _Kept()


class Workspace:
    """`captured`: whether a graph uses its memory. `lock` is held from packing to launch: another thread's launch between the two kernels of a divided one would
    write over its parts. Launches of one kernel are in the stream's order, and leave what they count in at zero for
    each other."""

    __slots__ = ("lock", "data", "nbytes", "owner", "captured")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.data = 0
        self.nbytes = 0
        self.owner: Any = None
        self.captured = False


class Workspaces:
    def __init__(self, allocate: Callable[[int, int], Buffer], wait: Callable[[int], None]) -> None:
        self._allocate = allocate
        self._wait = wait
        self._of: Dict[Tuple[int, ...], Workspace] = {}
        self._of_graphs: List[Any] = []  # memory that graphs use and launches do not any more

    def of(self, index: int, stream: int) -> Workspace:
        key = (index, stream) if stream != PER_THREAD_STREAM else (index, stream, threading.get_ident())
        workspace = self._of.get(key)
        if workspace is None:
            workspace = self._of.setdefault(key, Workspace())
        return workspace

    def serves_capture(self, index: int, stream: int, nbytes: int) -> bool:
        """Whether a launch that is being captured may use the kept workspace of its stream, which is then never given back."""
        if not kept_in_graphs.on:
            return False
        workspace = self.of(index, stream)
        with workspace.lock:
            workspace.captured = workspace.captured or workspace.nbytes >= nbytes
            return workspace.nbytes >= nbytes

    def grow(self, workspace: Workspace, nbytes: int, framework: _frameworks.Framework, index: int,
             stream: int) -> None:
        """To at least `nbytes`; with its lock held."""
        nbytes = max(nbytes, 2 * workspace.nbytes, 1 << 16)
        if workspace.captured:
            self._of_graphs.append(workspace.owner)
            workspace.captured = False
        if isinstance(framework, _frameworks.Torch):
            # By its allocator, on this very stream: what is replaced may be used again behind the launches so far.
            owner, data = _kept_memory(framework, nbytes, index)
        else:
            if workspace.owner is not None:
                self._wait(stream)
            owner = self._allocate(nbytes, index)
            owner.upload(bytes(_abi.WORKSPACE_ZEROED_BYTES))
            data = owner.data
        workspace.owner, workspace.data, workspace.nbytes = owner, data, nbytes


def torch_memory(framework: _frameworks.Torch, nbytes: int, index: int) -> Tuple[Any, int]:
    torch = framework.torch
    memory = torch.empty(nbytes, dtype=torch.uint8, device=torch.device("cuda", index))
    memory[:_abi.WORKSPACE_ZEROED_BYTES].zero_()
    return memory, memory.data_ptr()


def _kept_memory(framework: _frameworks.Torch, nbytes: int, index: int) -> Tuple[Any, int]:
    """torch_memory of no pool that only this thread's allocations go to now: while a compiled graph warms up there is one
    that wants all of its memory back. A thread of its own allocates elsewhere."""
    torch = framework.torch
    stream = torch.cuda.current_stream(index)

    def make() -> Tuple[Any, int]:
        with torch.cuda.stream(stream):
            return torch_memory(framework, nbytes, index)

    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        return thread.submit(make).result()
