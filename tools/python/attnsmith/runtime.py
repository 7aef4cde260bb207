"""Runtime: plans, prepares and pre-compiles kernels."""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import pathlib
import re
import sys
import threading
import traceback
import weakref
from ctypes import byref, c_char_p, c_int32, c_void_p
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, Union

from . import _abi, _requests
from ._library import library
from .buffers import Buffer
from .errors import Error, InvalidRequest, Unsupported
from .kernels import Kernel, Pending, close_pendings

Path = Union[str, "os.PathLike[str]"]
Log = Callable[[str, str], None]
Progress = Callable[[Dict[str, Any], int, int], Any]

_runtimes: "weakref.WeakSet[Runtime]" = weakref.WeakSet()


def _nvrtc_wheel() -> Optional[str]:
    """The newest NVRTC of a wheel, which is where PyTorch has it too; the library itself looks in no such place."""
    found = [file for folder in sys.path if os.path.isabs(folder)
             for file in pathlib.Path(folder).glob("nvidia/*/lib/libnvrtc.so.*")]
    return str(max(found, key=lambda file: [int(n) for n in re.findall(r"\d+", file.name)])) if found else None


def _log_callback(log: Log) -> Any:
    def call(user: Optional[int], level: int, line: bytes) -> None:
        try:
            log(_abi.LOG_LEVELS[level], line.decode(errors="replace"))
        except BaseException:  # nothing may pass into the library, which goes on
            traceback.print_exc()

    return _abi.Log(call)


class Runtime:
    """Plans, compiles, caches and loads attention kernels. Opens neither the driver nor NVRTC before it needs to. For
    any number of threads.

    cache_dirs: a folder or several, the writable one first; None: ATTNSMITH_CACHE_DIR, else the user's cache folder.
    use_cache: False neither reads nor writes a folder.
    nvrtc_path: a file or folder; None: ATTNSMITH_NVRTC_PATH, else an NVRTC wheel, else the usual places.
    driver_path: the CUDA driver's file; None: the usual places.
    keep_source_dir: generated sources are kept there, and compiled with -lineinfo.
    compile_threads: 0 is the number of cores.
    log_level: "off", "error", "warn", "info" or "debug"; None: ATTNSMITH_LOG, else "warn".
    log: called with (level, line), from any thread; None: standard error.
    cache_trust: whose folders are used: "owner" (only you or root can write to them), "group" (a group that you are
        in too), "all". Others are passed over, with a warning.
    cache_max_bytes: the most that the writable folder may take on its disk; the kernels that were not used for longest
        go first. 0: no limit.
    cache_source: entries hold their kernels' sources, for people.
    toolchain: which NVRTC's kernels may be taken from the cache: "newest" (any, the newest first, with no NVRTC
        needed) or "exact" (the one at hand's only).
    Tuning tables are those of ATTNSMITH_TUNING, as it is when this is made.

    Raises LibraryMissing when libattnsmith is not found, InvalidRequest.
    """

    def __init__(self, cache_dirs: Union[None, Path, Sequence[Path]] = None, use_cache: bool = True,
                 nvrtc_path: Optional[Path] = None, driver_path: Optional[Path] = None,
                 keep_source_dir: Optional[Path] = None, compile_threads: int = 0, log_level: Optional[str] = None,
                 log: Optional[Log] = None, cache_trust: str = "owner",
                 cache_max_bytes: int = 2 << 30, cache_source: bool = True, toolchain: str = "newest") -> None:
        self._pointer: Optional[int] = None
        self._library = library()
        if isinstance(cache_dirs, (str, os.PathLike)):
            cache_dirs = [cache_dirs]
        folders = [_requests.text("cache_dirs", folder) for folder in cache_dirs or ()]
        if nvrtc_path is None and not os.environ.get("ATTNSMITH_NVRTC_PATH"):
            nvrtc_path = _nvrtc_wheel()
        if log_level is not None and log_level not in _abi.LOG_LEVELS[1:]:
            raise InvalidRequest("log_level", repr(log_level), ", ".join(_abi.LOG_LEVELS[1:]))
        if not 0 <= cache_max_bytes < 1 << 63:
            raise InvalidRequest("cache_max_bytes", repr(cache_max_bytes), "a number of bytes, or 0 for no limit")
        if cache_trust not in _abi.CACHE_TRUSTS:
            raise InvalidRequest("cache_trust", repr(cache_trust), ", ".join(_abi.CACHE_TRUSTS))
        if toolchain not in _abi.TOOLCHAINS:
            raise InvalidRequest("toolchain", repr(toolchain), ", ".join(_abi.TOOLCHAINS))
        self._log = _log_callback(log) if log is not None else _abi.Log()  # the library calls it as long as it lives
        options = _abi.RuntimeOptions(
            cache_dirs=(c_char_p * len(folders))(*folders), cache_dir_count=len(folders),
            nvrtc_path=_requests.text("nvrtc_path", nvrtc_path),
            driver_path=_requests.text("driver_path", driver_path),
            keep_source_dir=_requests.text("keep_source_dir", keep_source_dir), log=self._log,
            log_level=0 if log_level is None else _abi.LOG_LEVELS.index(log_level), no_cache=int(not use_cache),
            compile_threads=compile_threads, cache_trust=_abi.CACHE_TRUSTS.index(cache_trust),
            toolchain=_abi.TOOLCHAINS.index(toolchain), cache_max_bytes=cache_max_bytes or -1, no_cache_source=int(not cache_source))
        out = c_void_p()
        self._library.call(self._library.functions.attnsmith_runtime_create, byref(options), byref(out))
        self._pointer = out.value
        _runtimes.add(self)

    # ---- Plans and models: none of these needs a GPU when `sm` is given

    def plan(self, *, sm: Union[None, int, str] = None, **words: Any) -> Dict[str, Any]:
        """The plan for a request (schema attnsmith.plan/1): which kernels, why, and what was refused.

        The words are the fields of a JSON request: dtype, head_dim (or head_dim_qk and head_dim_vo), q_heads,
        kv_heads, mask, window_left, window_right, scale, softcap, alibi, sink, lse, kv, page_size, page_order,
        index_dtype, alignment, precision, consistency, batch, q_len, kv_len. None stands for a word not given.
        sm: a compute capability such as 90; None is the current device's.

        Raises InvalidRequest naming the word, Unsupported.
        """
        spec, sizes = _requests.parse(self._library, words)
        number = _requests.compute_capabilities(sm)[0] if sm is not None else 0
        plan: Dict[str, Any] = self._library.json(self._library.functions.attnsmith_plan_json, self._handle(),
                                                  byref(spec), byref(sizes), number)
        return plan

    def model(self, config: Any, **options: Any) -> Dict[str, Any]:
        """The distinct attentions of a Hugging Face config.json: {"model_type", "attentions": [{"name", "phase",
        "layers", "notes", "request"}], "unsupported": [{"name", "reason"}]}.

        config: a dict, a file, a model's folder, or the text. options: any of dtype, kv, page_size, page_order,
        index_dtype, batch, q_len, kv_len, tensor_parallel. Raises InvalidRequest.
        """
        model: Dict[str, Any] = self._library.json(self._library.functions.attnsmith_model_json,
                                                   _requests.model_text(config), _requests.to_json(options))
        return model

    def plan_model(self, config: Any, sm: Any = None, **options: Any) -> Dict[str, Any]:
        """One plan for each distinct attention of a model, phase and SM (schema attnsmith.plans/1): {"plans": [...],
        "unsupported": [{"name", "reason", "sm"}]}. Takes what model() takes."""
        model = self.model(config, **options)
        plans: List[Dict[str, Any]] = []
        unsupported = list(model["unsupported"])
        for one in [None] if sm is None else _requests.compute_capabilities(sm):
            for attention in model["attentions"]:
                try:
                    plan = self.plan(sm=one, **_words_of(attention["request"]))
                except Unsupported as error:
                    refused = {"name": attention["name"], "reason": str(error)}
                    unsupported.append(refused if one is None else {**refused, "sm": one})
                else:
                    plan["model"] = {name: attention[name] for name in ("name", "phase", "layers", "notes")}
                    plans.append(plan)
        return {"schema": "attnsmith.plans/1", "plans": plans, "unsupported": unsupported}

    # ---- The cache

    def prewarm(self, requests: Union[Mapping[str, Any], Iterable[Mapping[str, Any]]] = (), *, models: Any = (),
                sm: Any = None, jobs: int = 0, progress: Optional[Progress] = None,
                **model_options: Any) -> Dict[str, Any]:
        """Compiles into the cache every kernel that planning could choose. Needs no GPU when `sm` is given.

        requests: a dict of the words of plan(), or several. models: a config as model() takes it, or a list of such;
        model_options as there. sm: one or several compute capabilities; None is that of the GPUs present.
        jobs: kernels to compile at a time; 0 is the number of cores.
        progress: called with (kernel, done, total), on another thread, one call at a time; kernel is a dict of
        "name", "sm", "key", "state", "ms", "cubin_bytes" and, of a failed one, "error". What it raises cancels what
        is not being compiled yet, and is raised here; so does Ctrl-C.

        Gives the report (schema attnsmith.prewarm/1). Kernels that failed are in it. Raises InvalidRequest, CacheError.
        """
        specs, names, unsupported = self._specs(requests, models, model_options)
        sms = _requests.compute_capabilities(sm) if sm is not None else sorted({d["sm"] for d in self.devices()})
        if not sms:
            raise InvalidRequest("sm", "nothing", "compute capabilities such as [80, 90], since no GPU is present")
        report = self._prewarm(specs, sms, jobs, progress)
        for refused in report["unsupported"]:  # a place in the list of specs says nothing to the caller
            unsupported.append({"name": names[refused["spec"]], "reason": refused["reason"], "sm": refused["sm"]})
        report["unsupported"] = unsupported
        report["summary"]["unsupported"] = len(unsupported)
        return report

    def cache(self, operation: str = "stat", **options: Any) -> Dict[str, Any]:
        """"ls", "dir", "stat", "explain", "verify", "gc", "clear", "rm", "export" or "import" on the runtime's folders:
        the JSON of `attnsmith cache OPERATION --json`.

        "gc" may take max_bytes=N: what the folder may take on its disk, whatever the runtime's limit. "explain" takes
        key=HEX (or how it begins), or request={...} with its sm. "rm" takes key=HEX likewise. "export" takes file=PATH, and may take sm=[...],
        model=... (as model() takes it) and model_options={...}: only the kernels for these, and only those that the
        model needs. "import" takes file=PATH.

        Raises InvalidRequest, CacheError.
        """
        result: Dict[str, Any] = self._library.json(self._library.functions.attnsmith_cache, self._handle(),
                                                    _requests.text("operation", operation),
                                                    _requests.cache_options(options))
        return result

    # ---- Kernels and devices

    def prepare(self, *, device: Optional[int] = None, **words: Any) -> Kernel:
        """The kernel for a request, whose words are those of plan(), on `device` (an ordinal; None: that of the
        current context, else 0). The first call plans, reads the cache or compiles, and loads; later ones look up.

        Raises InvalidRequest, Unsupported, CompileError, DriverError, LibraryMissing.
        """
        return self._prepare(*_requests.parse(self._library, words), device)

    def prepare_async(self, *, device: Optional[int] = None, **words: Any) -> Pending:
        """The same in the background. Raises InvalidRequest here, the rest from result()."""
        spec, sizes = _requests.parse(self._library, words)
        return Pending(self._library, self._made(self._library.functions.attnsmith_prepare_async, spec, sizes, device))

    def devices(self) -> List[Dict[str, Any]]:
        """The GPUs: dicts of "index", "name", "sm", "sm_count", "memory_bytes". Empty where there is no driver."""
        devices: List[Dict[str, Any]] = self._library.json(self._library.functions.attnsmith_devices_json,
                                                           self._handle())
        return devices

    def allocate(self, nbytes: int, device: int = 0) -> Buffer:
        """Device memory. Raises DriverError."""
        return Buffer(self._library, self._handle(), device, nbytes)

    def synchronize(self, stream: int = 0) -> None:
        """Waits for a stream; 0 is the default stream of the current device."""
        self._library.call(self._library.functions.attnsmith_synchronize, self._handle(), stream)

    def close(self) -> None:
        """Ends the runtime. Kernels and calls stay usable. Called at the latest when the interpreter ends."""
        pointer, self._pointer = self._pointer, None
        if pointer:
            self._library.functions.attnsmith_runtime_free(pointer)

    def __enter__(self) -> "Runtime":
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_pointer", None):
            self.close()

    # ---- Inside

    def _handle(self) -> int:
        if self._pointer is None:
            raise Error("this attnsmith.Runtime is closed")
        return self._pointer

    def _prepare(self, spec: _abi.Spec, sizes: _abi.Sizes, device: Optional[int]) -> Kernel:
        return Kernel(self._library, self._made(self._library.functions.attnsmith_prepare, spec, sizes, device))

    def _made(self, function: Any, spec: _abi.Spec, sizes: _abi.Sizes, device: Optional[int]) -> int:
        out = c_void_p()
        ordinal = _abi.CURRENT_DEVICE if device is None else device
        self._library.call(function, self._handle(), byref(spec), byref(sizes), ordinal, byref(out))
        return out.value or 0

    def _specs(self, requests: Any, models: Any,
               options: Mapping[str, Any]) -> Tuple[List[_abi.Spec], List[str], List[Any]]:
        """Each distinct spec once, the name of the first attention that has it, and what cannot be planned."""
        asked = [("attention", words) for words in ([requests] if isinstance(requests, Mapping) else requests)]
        unsupported: List[Any] = []
        one_model = isinstance(models, (str, bytes, os.PathLike, Mapping))
        for config in [models] if one_model else models:
            model = self.model(config, **options)
            asked += [(attention["name"], _words_of(attention["request"])) for attention in model["attentions"]]
            unsupported += model["unsupported"]
        if options and not models:
            raise InvalidRequest(next(iter(options)), "an option of a model", "requests, models, sm, jobs or progress; "
                                 "the options of a model need models=")
        if not asked and not unsupported:
            raise InvalidRequest("requests", "nothing", "requests or models")
        distinct: Dict[bytes, Tuple[_abi.Spec, str]] = {}
        for name, words in asked:
            spec, _ = _requests.parse(self._library, words)
            distinct.setdefault(bytes(spec), (spec, name))
        return [spec for spec, _ in distinct.values()], [name for _, name in distinct.values()], unsupported

    def _prewarm(self, specs: Sequence[_abi.Spec], sms: Sequence[int], jobs: int,
                 progress: Optional[Progress]) -> Dict[str, Any]:
        pointers = (c_void_p * len(specs))(*[ctypes.addressof(spec) for spec in specs])
        numbers = (c_int32 * len(sms))(*sms)
        work = _Interruptible(progress)
        options = _abi.PrewarmOptions(progress=work.callback, jobs=jobs)
        report: Dict[str, Any] = work.run(lambda: self._library.json(
            self._library.functions.attnsmith_prewarm, self._handle(), ctypes.addressof(pointers), len(specs),
            ctypes.addressof(numbers), len(sms), byref(options)))
        return report


class _Interruptible:
    """Runs a prewarm on a thread of its own, so that Ctrl-C comes through here, and cancels it."""

    def __init__(self, progress: Optional[Progress]) -> None:
        self._progress = progress
        self._cancelled = False
        self._failure: Optional[BaseException] = None  # of the progress callback
        self.callback = _abi.Progress(self._on_progress)

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


def _words_of(request: Mapping[str, Any]) -> Dict[str, Any]:
    return {name: value for name, value in request.items() if name != "sm"}


_lock = threading.Lock()
_default: Optional[Runtime] = None


def default_runtime() -> Runtime:
    """The runtime of the plain functions, made with its defaults at the first use."""
    global _default
    if _default is None:
        with _lock:
            if _default is None:
                _default = Runtime()
    return _default


def set_default_runtime(runtime: Optional[Runtime]) -> None:
    """The plain functions use this runtime from now on; None: a new one with its defaults."""
    global _default
    with _lock:
        _default = runtime


@atexit.register
def _close_all() -> None:
    close_pendings()
    for runtime in list(_runtimes):
        runtime.close()
