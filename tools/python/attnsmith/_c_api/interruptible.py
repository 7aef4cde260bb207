"""Work of the library that calls back, and that Ctrl-C and exceptions of the callback cancel."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any, Callable, Dict, Optional

from . import abi

if TYPE_CHECKING:  # making these types takes 2 ms
    from ..results import PrewarmedKernel

Progress = Callable[["PrewarmedKernel", int, int], Any]  #: (kernel, done, total)


class Interruptible:
    """Runs a prewarm on a thread of its own, so that Ctrl-C comes through here, and cancels it."""

    def __init__(self, progress: Optional[Progress]) -> None:
        self._progress = progress
        self._cancelled = False
        self._failure: Optional[BaseException] = None  # of the progress callback
        self.callback = abi.Progress(self._on_progress)

    def _on_progress(self, user: Optional[int], kernel: bytes, done: int, total: int) -> int:
        try:
            if self._progress is not None and not self._cancelled:
                self._progress(json.loads(kernel.decode(errors="replace")), done, total)
        except BaseException as error:  # nothing may pass into the library
            self._failure, self._cancelled = error, True
        return int(self._cancelled)

    def run(self, work: Callable[[], Any]) -> Any:
        outcome: Dict[str, Any] = {}
        done = threading.Event()

        def body() -> None:
            try:
                outcome["result"] = work()
            except BaseException as error:
                outcome["error"] = error
            finally:
                done.set()

        threading.Thread(target=body, name="attnsmith-prewarm").start()
        interrupt: Optional[BaseException] = None
        while not done.is_set():
            try:
                done.wait(0.1)  # a signal that another thread got is seen between waits alone
            except BaseException as error:  # of a signal: what is being compiled is waited for all the same
                interrupt, self._cancelled = error, True
        for failure in (interrupt, self._failure, outcome.get("error")):
            if failure is not None:
                raise failure
        return outcome["result"]
