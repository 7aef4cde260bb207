"""Engines of vLLM in processes of their own, so that two backends can take turns on one GPU, each with its own state."""

import itertools
import json
import os
import pathlib
import subprocess
import sys

#: From where each engine looks for a free port, so that engines that start together do not find the same one.
_PORTS = itertools.count(20000 + os.getpid() % 100 * 100, 20)
_WORKER = pathlib.Path(__file__).with_name("vllm_worker.py")


class Failed(RuntimeError):
    """What a worker says of a command that failed, or that it ended."""


class Engine:
    """engine = Engine(model=FOLDER, backend="FLASH_ATTN", ...); engine.generate(prompts=..., tokens=...) and the other methods
    of Worker. options: those of vllm.LLM, "sinks_std" and "planted". environment: variables besides this process's."""

    def __init__(self, log=None, environment=None, worker=_WORKER, **options):
        self.options = options
        self._log = open(log, "w") if log else subprocess.DEVNULL
        self._process = subprocess.Popen([sys.executable, str(worker), json.dumps(options)], stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE, stderr=self._log, text=True,
                                         env={**os.environ, "VLLM_PORT": str(next(_PORTS)), **(environment or {})})
        self.start = None

    def wait(self):
        """Until the engine has started. Gives what Worker.describe() says."""
        if self.start is None:
            self.start = self._answer()
        return self.start

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)

        def call(**words):
            self.wait()
            self._process.stdin.write(json.dumps({"do": name, **words}) + "\n")
            self._process.stdin.flush()
            return self._answer()

        return call

    def _answer(self):
        line = self._process.stdout.readline()
        if not line:
            raise Failed(f"the engine ended with {self._process.wait()}; its log tells why")
        answer = json.loads(line)
        if "error" in answer:
            raise Failed(answer["error"])
        return answer["ok"]

    def close(self):
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()


def our_name():
    """attnsmith's name in the vLLM that is installed, without importing the engine's parts."""
    code = ("import attnsmith_vllm; attnsmith_vllm.register()\n"
            "from vllm.v1.attention.backends.registry import AttentionBackendEnum as names\n"
            "print(attnsmith_vllm.NAME if attnsmith_vllm.NAME in names.__members__ else 'CUSTOM')")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()[-1]
