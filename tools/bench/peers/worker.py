"""A Session in a process of its own, asked in lines of JSON: it can crash, hang and be killed alone."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from typing import Any, Dict, Optional

ENTRY = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "peers.py")


class WorkerDied(Exception):
    """The process ended or had to be ended; status is crashed or timeout."""

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Worker:
    def __init__(self, argv: Optional[list] = None) -> None:
        environment = dict(os.environ)
        # Kernels that were compiled by one process are found by the next.
        environment.setdefault("FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED", "1")
        self._log = tempfile.TemporaryFile(mode="w+b")
        self._process = subprocess.Popen(argv or [sys.executable, ENTRY, "--worker"], stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE, stderr=self._log, env=environment,
                                         universal_newlines=True, start_new_session=True)
        self._answers: "queue.Queue[Optional[str]]" = queue.Queue()
        self._last = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put(None)

    def ask(self, op: str, timeout: float, **fields: Any) -> Dict[str, Any]:
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(dict(fields, op=op)) + "\n")
            self._process.stdin.flush()
            line = self._answers.get(timeout=timeout)
        except queue.Empty:
            self.close(at_once=True)
            raise WorkerDied("timeout", "no answer in %.0f s" % timeout) from None
        except OSError:
            line = None
        if line is None:
            self.close(at_once=True)
            raise WorkerDied("crashed", self._last_words())
        answer = json.loads(line)
        if "fatal" in answer:
            self.close(at_once=True)
            raise WorkerDied("crashed", answer["fatal"])
        return answer

    def _last_words(self) -> str:
        code = self._process.returncode
        how = "ended with %s" % code
        if code is not None and code < 0:
            how = "ended by %s" % signal.Signals(-code).name
        return how + (": " + self._last if self._last else "")

    def _end_of_log(self) -> str:
        if self._log.closed:
            return ""
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, self._log.tell() - 4096))
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return lines[-1][:200] if lines else ""

    def close(self, at_once: bool = False) -> None:
        if self._process.poll() is None:
            try:
                assert self._process.stdin is not None
                self._process.stdin.close()
                self._process.wait(timeout=0 if at_once else 10)
            except (subprocess.TimeoutExpired, OSError):
                kill_session(self._process.pid)
        self._process.wait()
        self._reader.join(timeout=10)
        self._last = self._last or self._end_of_log()
        for file in (self._process.stdin, self._process.stdout, self._log):
            try:
                if file is not None:
                    file.close()
            except OSError:  # what could not be written any more
                continue


def kill_session(leader: int) -> None:
    """Ends a process and the compilers that it started: ninja gives each a group of its own, but one session."""
    for entry in os.listdir("/proc"):
        try:
            if entry.isdigit() and os.getsid(int(entry)) == leader:
                os.kill(int(entry), signal.SIGKILL)
        except OSError:  # it has just ended
            continue


def serve() -> int:
    """What `peers.py --worker` does until its input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print goes to the log
    from .session import FatalError, Session

    session = None
    try:
        session = Session()  # before it is asked: processes that are started together get ready together
    except Exception:  # said when it is asked
        pass
    for line in sys.stdin:
        asked = json.loads(line)
        op = asked.pop("op")
        try:
            session = session or Session()
            answer = getattr(session, op)(**asked)
        except FatalError as error:
            answer = {"fatal": str(error)}
        except Exception as error:
            answer = {"fatal": "%s: %s" % (type(error).__name__, str(error).strip()[:240])}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    return 0
