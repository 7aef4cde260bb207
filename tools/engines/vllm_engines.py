"""Engines of vLLM in processes of their own, so that two backends can take turns on one GPU, each with its own state."""

import functools
import importlib
import itertools
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

#: From where each engine looks for a free port, so that engines that start together do not find the same one.
_PORTS = itertools.count(20000 + os.getpid() % 100 * 100, 20)
_WORKER = pathlib.Path(__file__).with_name("vllm_worker.py")


class Failed(RuntimeError):
    """What a worker says of a command that failed, or that it ended."""


class Engine:
    """engine = Engine(model=FOLDER, backend="FLASH_ATTN", ...); engine.generate(prompts=..., tokens=...) and the other methods
    of Worker. options: those of vllm.LLM, "sinks_std" and "planted". environment: variables besides this process's."""

    def __init__(self, log, environment=None, worker=_WORKER, **options):
        self.options, self.log = options, pathlib.Path(log)
        self._log = open(log, "w")
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
            self._process.stdin.write(json.dumps({"do": name, "words": words}) + "\n")
            self._process.stdin.flush()
            return self._answer()

        return call

    def _answer(self):
        line = self._process.stdout.readline()
        if not line:
            raise Failed(f"the engine ended with {self._process.wait()}; see {self.log}")
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
            self._process.wait()
        self._process.stdout.close()
        self._log.close()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()


@functools.lru_cache(maxsize=None)  # vLLM takes long to import
def our_name():
    """attnsmith's name in the vLLM that is installed, without importing the engine's parts. Raises Failed."""
    code = "import attnsmith_vllm; attnsmith_vllm.register(); print(attnsmith_vllm.backend_name())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["no error"]
        raise Failed(f"vLLM and attnsmith are needed in {sys.executable}: {last[0]}")
    return done.stdout.split()[-1]


def matching(pattern, names, flag):
    """The names that the regular expression finds. Raises Failed if there are none."""
    found = [name for name in names if re.search(pattern, name)]
    if not found:
        raise Failed(f"{flag}: nothing matches {pattern!r}; there are {', '.join(names)}")
    return found


def positive(text):
    """Of argparse."""
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def run_tool(main):
    """Runs the main function of a command. What it needs and lacks is one line and exit code 2."""
    try:
        sys.exit(main())
    except Failed as error:
        print(f"{pathlib.Path(sys.argv[0]).name}: {error}", file=sys.stderr)
        sys.exit(2)


def needs(name):
    """A module that the tools need. Raises Failed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise Failed(f"{name} is needed in {sys.executable}: {error}") from error


def folder_of_logs(given, gpus=1):
    """Where engines log: `given`, or a temporary folder. Raises Failed for what an engine needs and lacks."""
    need_gpu(gpus)
    our_name()
    folder = given or pathlib.Path(tempfile.mkdtemp(prefix="attnsmith-vllm-logs-"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def need_gpu(count=1):
    """Raises Failed where torch does not see so many GPUs."""
    found = needs("torch").cuda.device_count()
    if found < count:
        raise Failed(f"{count} GPU{'s are' if count > 1 else ' is'} needed; torch sees {found}")
