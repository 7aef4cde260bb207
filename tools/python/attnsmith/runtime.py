"""Runtime: plans, prepares and pre-compiles kernels."""

from __future__ import annotations

import atexit
import ctypes
import inspect
import os
import threading
import traceback
import weakref
from ctypes import byref, c_char_p, c_int32, c_int64, c_void_p
from typing import (TYPE_CHECKING, Any, Callable, Dict, Iterable, List, Literal, Mapping, NamedTuple, Optional, Sequence,
                    Tuple, Union, cast, overload)

from ._base import reports
from ._base.arguments import by_name, check_callable, check_iterable, named, named_methods
from ._base.integers import fitting, shown
from ._base.options import flag, place
from ._c_api import abi, memory, nvrtc, requests as _requests
from ._c_api.handles import Closable, Shared, close_all
from ._c_api.interruptible import Interruptible, Progress
from ._c_api.library import library
from ._tensors import frameworks
from .buffers import Buffer
from .errors import InvalidRequest, Unsupported
from .kernels import Kernel, KernelSet, Pending, pendings
from .words import (CacheOperation, CacheTrust, Integer, LogLevel, Model, ModelChoices, ModelOptions, OnMiss, OneSm,
                    Path, Request, RequestChoices, Requests, Sms, Toolchain)

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .results import (CacheClearReport, CacheDirectories, CacheExplanations, CacheExportReport, CacheGcReport,
                          CacheImportReport, CacheListing, CachePushReport, CacheRemoveReport, CacheStatistics,
                          CacheVerification, CoverageReport, DeviceInfo, ModelPlans, ModelReport, ModelWarning, Phase, Plan,
                          PrewarmReport, PrewarmSummary, SkippedPart, UnsupportedPart)

Log = Callable[[str, str], None]

_MOST_EXIT_WAIT_S = 60.0  # a call may wait for work of the GPU that never ends

_runtimes: "weakref.WeakSet[Runtime]" = weakref.WeakSet()


class _Told(NamedTuple):
    """What coverages say besides their attentions."""

    unsupported: List[UnsupportedPart]
    skipped: List[SkippedPart]
    warnings: List[ModelWarning]


def _log_callback(log: Log) -> Any:
    def call(user: Optional[int], level: int, line: bytes) -> None:
        try:
            log(abi.LOG_LEVELS[level], line.decode(errors="replace"))
        except BaseException:  # nothing may pass into the library, which goes on
            traceback.print_exc()

    return abi.Log(call)


def _refuse_sm(words: Mapping[str, Any]) -> None:
    """What is prepared for a GPU is for the sm that it has, so that another one would be passed over."""
    if words.get("sm") is not None:
        raise InvalidRequest("sm", shown(words["sm"]), "nothing: it is the device's; plan() and prewarm() take others")


def _texts(name: str, paths: Any) -> List[Optional[bytes]]:
    listed = check_iterable(name, () if paths is None else paths, "a list of paths, or None")
    return [_requests.text(name, path) for path in listed]


def _place_or_default(name: str, value: Any, words: Sequence[str]) -> int:
    """The first of the words is that of the default, which no caller says."""
    return 0 if value is None else 1 + place(name, value, words[1:])


@named_methods
class Runtime(Closable):
    """Plans, compiles, caches and loads attention kernels. It opens the driver and NVRTC only when it needs them. Any
    number of threads may use it.

    cache_dirs: a folder or several. The first is written to; the others are read. After the folders there may be bundles,
        and addresses of remotes (https://, http://, s3://). None: the variable ATTNSMITH_CACHE_DIR, else the user's cache
        folder.
    use_cache: False neither reads nor writes a folder.
    nvrtc_path: a file or folder. None: the variable ATTNSMITH_NVRTC_PATH, else an NVRTC wheel, else the usual places.
    driver_path: the file of the CUDA driver. None: the usual places.
    keep_source_dir: a folder where generated sources are kept; they are then compiled with -lineinfo. None keeps none.
    compile_threads: how many kernels are compiled at a time; 0 is the number of cores.
    log_level: "off", "error", "warn", "info" or "debug". None: the variable ATTNSMITH_LOG, else "warn".
    log: a function that is called with (level, line) from any thread. None: standard error.
    cache_trust: whose folders are used: "owner" (only you or root can write to them), "group" (a group that you are in can,
        too) or "all". Other folders are skipped with a warning.
    cache_max_bytes: how many bytes the writable folder may take on its disk; the entries that were not used for the longest
        time are deleted first. 0 is no limit.
    cache_source: True stores the source of each kernel in its entry, for people to read.
    toolchain: whose kernels may be taken from the cache: "newest" (those of any NVRTC, the newest first; none is needed) or
        "exact" (those of the present NVRTC only).
    record_file: a file that gets one line for each spec that is prepared, for prewarm(recorded=...). Any number of
        processes may share it. None: the variable ATTNSMITH_RECORD, else none.
    on_miss: what to do if no cache has a kernel: "compile", or "error", which raises KernelMissing, opens no NVRTC and
        waits for no other process. None: the variable ATTNSMITH_ON_MISS, else "compile". prewarm() compiles in any case.
    trust_key_files: files of public keys. If there are any, bundles and remotes are used only where one of these keys
        signed their contents. None: the files of ATTNSMITH_CACHE_TRUST_KEYS; without them remotes need cache_trust="all".
    sign_key_file: the file of a secret key, which signs what is pushed. None: that of ATTNSMITH_CACHE_SIGN_KEY.
    push_compiled: True puts each kernel that is compiled here to the remotes, too. False: only if ATTNSMITH_CACHE_PUSH is
        1.
    tuning_files: tuning tables; the first one that has an entry wins. None: those of ATTNSMITH_TUNING, read when the
        runtime is made.
    use_environment: False reads no environment variable, neither those of attnsmith nor HOME, XDG_CACHE_HOME or those of
        AWS. An option that is None is then off: no folder, key, recording, tuning table or push.
    allocate, free: functions for the device memory of workspaces and buffers; give both or neither. allocate(bytes, device)
        returns an address, a multiple of 256, or None; free(address, bytes, device) takes it back. Both are called from any
        thread. PyTorch's allocator is allocate=torch.cuda.caching_allocator_alloc, free=lambda address, nbytes, device:
        torch.cuda.caching_allocator_delete(address). None: the driver's.

    Raises LibraryMissing if libattnsmith is not found, InvalidRequest.
    """

    _elsewhere = "make one there, with the same options; the cache's folders are shared"

    @by_name("use_cache", "nvrtc_path", "driver_path", "keep_source_dir", "compile_threads", "log_level", "log",
             "cache_trust", "cache_max_bytes", "cache_source", "toolchain", "record_file", "on_miss", "tuning_files",
             "allocate", "free", "trust_key_files", "sign_key_file", "push_compiled")
    def __init__(self, cache_dirs: Union[None, Path, Sequence[Path]] = None, *, use_cache: bool = True,
                 nvrtc_path: Optional[Path] = None, driver_path: Optional[Path] = None,
                 keep_source_dir: Optional[Path] = None, compile_threads: int = 0, log_level: Optional[LogLevel] = None,
                 log: Optional[Log] = None, cache_trust: CacheTrust = "owner",
                 cache_max_bytes: int = 2 << 30, cache_source: bool = True, toolchain: Toolchain = "newest",
                 record_file: Optional[Path] = None, on_miss: Optional[OnMiss] = None,
                 tuning_files: Optional[Sequence[Path]] = None, allocate: Optional[memory.Allocate] = None,
                 free: Optional[memory.Free] = None, trust_key_files: Optional[Sequence[Path]] = None,
                 sign_key_file: Optional[Path] = None, push_compiled: bool = False, use_environment: bool = True) -> None:
        self._library = library()
        if isinstance(cache_dirs, (str, os.PathLike)):
            cache_dirs = [cache_dirs]
        folders = _texts("cache_dirs", cache_dirs)
        tables = _texts("tuning_files", tuning_files)
        keys = _texts("trust_key_files", trust_key_files)
        check_callable("log", log, "(level, line)")
        memory_allocate, memory_free = memory.callbacks(allocate, free)
        if nvrtc_path is None and not (flag("use_environment", use_environment) and os.environ.get("ATTNSMITH_NVRTC_PATH")):
            nvrtc_path = nvrtc.of_a_wheel()
        self._log = _log_callback(log) if log is not None else abi.Log()  # the library calls it as long as it lives
        options = abi.RuntimeOptions(
            cache_dirs=(c_char_p * len(folders))(*folders), cache_dir_count=len(folders),
            nvrtc_path=_requests.text("nvrtc_path", nvrtc_path),
            driver_path=_requests.text("driver_path", driver_path),
            keep_source_dir=_requests.text("keep_source_dir", keep_source_dir), log_line=self._log,
            log_level=_place_or_default("log_level", log_level, abi.LOG_LEVELS), no_cache=int(not flag("use_cache", use_cache)),
            compile_threads=fitting("compile_threads", compile_threads, c_int32, 0),
            cache_trust=place("cache_trust", cache_trust, abi.CACHE_TRUSTS),
            toolchain=place("toolchain", toolchain, abi.TOOLCHAINS),
            cache_max_bytes=fitting("cache_max_bytes", cache_max_bytes, c_int64, 0) or -1,
            no_cache_source=int(not flag("cache_source", cache_source)), tuning_files=(c_char_p * len(tables))(*tables),
            tuning_file_count=len(tables), record_file=_requests.text("record_file", record_file),
            on_miss=_place_or_default("on_miss", on_miss, abi.ON_MISSES), allocate_memory=memory_allocate,
            release_memory=memory_free,
            trust_key_files=(c_char_p * len(keys))(*keys), trust_key_file_count=len(keys),
            sign_key_file=_requests.text("sign_key_file", sign_key_file), push_compiled=int(flag("push_compiled", push_compiled)),
            no_environment=int(not flag("use_environment", use_environment)))
        out = c_void_p()
        self._library.call(self._library.functions.attnsmith_runtime_create, byref(options), byref(out))
        self._handle = Shared(out.value or 0, self._library.functions.attnsmith_runtime_free,
                              "this attnsmith.Runtime is closed")
        _runtimes.add(self)

    # ---- Plans and models: none of these needs a GPU when `sm` is given

    def plan(self, *, sm: Optional[OneSm] = None, **words: Unpack[Request]) -> Plan:
        """Returns the plan for a request (schema attnsmith.plan/1): which kernels serve it, why, and what was refused.

        words: the words of attnsmith.Request, which says what each means; they are also the fields of a JSON request. A
            word that is None is not given.
        sm: a compute capability: 90, "90a", "sm_90" or "9.0". None and "native" are that of the current device. The suffix
            of "90f" has no effect; a UserWarning says so, here and wherever an sm is taken.

        Raises InvalidRequest, which names the word, Unsupported.
        """
        spec, sizes = _requests.parse(self._library, words)
        numbers = [] if sm is None else _requests.compute_capabilities(sm)
        if len(numbers) > 1:
            raise InvalidRequest("sm", shown(sm), "one compute capability; plan() gives one plan")
        number = numbers[0] if numbers else 0
        if not numbers and not self.devices():
            raise InvalidRequest("sm", "nothing", "a compute capability such as sm=90, since no GPU is present")
        plan: Plan = self._json(self._library.functions.attnsmith_plan_json, byref(spec), byref(sizes), number)
        return plan

    def model(self, config: Model, **options: Unpack[ModelOptions]) -> ModelReport:
        """Returns the distinct attentions of a Hugging Face config.json, with what is not supported, and warnings about
        what the plans may not contain: an unknown model_type, a field about attention that is not read, a part that is not
        planned or is planned only approximately.

        config: a file, a model's folder, the text, a dict, or a config object of transformers (or any object with
            to_dict()).
        options: the words of attnsmith.ModelOptions: dtype, lse, kv, page_size, page_order, index_dtype, alignment,
            o_dtype, kv_dtype, kv_scale, precision, consistency, slots, rope_table, q_dtype, check_slots, batch, q_len,
            kv_len, tensor_parallel, and strict, with which an unsupported part or a warning raises Unsupported, with refusals.

        Raises InvalidRequest, Unsupported.
        """
        model: ModelReport = self._library.json(self._library.functions.attnsmith_model_json,
                                                _requests.model_text(config), _requests.to_json(options))
        return model

    def coverage(self, request: Union[None, Request, RequestChoices] = None, *, model: Optional[Model] = None,
                 **words: Any) -> CoverageReport:
        """Returns the attentions of a request, or of a model, in which the words that a program chooses may be lists:
        dtype, lse, kv, page_order, page_size, index_dtype, alignment, o_dtype, kv_dtype, kv_scale, precision, consistency,
        slots, rope_table, q_dtype and check_slots. The result has the attentions of all combinations, each once, and under "skipped" the combinations that
        do not exist.

        request: a dict of words. words: more of them, by name; with a model, its options. model: a config as model() takes
            it.

        Raises InvalidRequest.
        """
        if request is not None and not _requests.is_one_request(request):
            raise InvalidRequest("request", shown(request), "a dict of words; a model is given by model=...")
        given: Dict[str, Any] = {**(request or {}), **words}
        if model is not None:
            return self._coverage_of_model(model, given)
        _requests.check_words(given)
        return self._covered(None, given)

    @by_name("sm")
    def plan_model(self, config: Model, *, sm: Optional[Sms] = None, strict: bool = False,
                   **options: Unpack[ModelChoices]) -> ModelPlans:
        """Returns one plan for each distinct attention of a model, phase and SM (schema attnsmith.plans/1).

        config, options: as model() takes them; options may be lists, as coverage() takes them.
        sm: one or several compute capabilities, [80, 90], "80,90" or "all". None and "native" are that of the current
            device.
        strict: True raises Unsupported for an unsupported part or a warning. Without it, parts that no kernel serves are in
            "unsupported".

        Raises InvalidRequest.
        """
        strict = flag("strict", strict)
        model = self._coverage_of_model(config, options)
        plans: List[Plan] = []
        unsupported = list(model["unsupported"])
        sms: List[int] = _requests.compute_capabilities(sm) if sm is not None else []
        for one in sms or (None,):
            for attention in model["attentions"]:
                try:
                    plan = self.plan(sm=one, **_words_of(attention["request"]))
                except Unsupported as error:
                    refused: UnsupportedPart = {"name": attention["name"], "reason": str(error)}
                    if one is not None:
                        refused["sm"] = one
                    unsupported.append(refused)
                else:
                    plan["model"] = {"name": attention["name"], "phase": cast("Phase", attention["phase"]),
                                     "layers": attention["layers"], "notes": attention["notes"]}
                    plans.append(plan)
        if strict:
            reports.refuse_doubts(unsupported, model["warnings"])
        return {"schema": "attnsmith.plans/1", "plans": plans, "unsupported": unsupported, "skipped": model["skipped"],
                "warnings": model["warnings"]}

    # ---- The cache

    def prewarm(self, requests: Requests = (), *, models: Union[Model, Iterable[Model]] = (),
                recorded: Union[Path, Iterable[Path]] = (), sm: Optional[Sms] = None, jobs: int = 0,
                progress: Optional[Progress] = None, strict: bool = False, push: bool = False, compile: bool = True,
                **model_options: Unpack[ModelChoices]) -> PrewarmReport:
        """Compiles into the cache every kernel that planning could choose. Needs no GPU if `sm` is given.

        requests: a dict of the words of plan(), or several. Words that a program chooses may be lists, kv=["paged",
            "dense"]: all combinations are compiled.
        models: a config as model() takes it, or a list of them. model_options: as model() takes its options; they may be
            lists.
        recorded: a file that programs recorded (record_file of Runtime), or several: exactly these requests, for any SM.
        sm: one or several compute capabilities, [80, 90], "80,90" or "all". None and "native" are those of the GPUs
            present.
        jobs: how many kernels are compiled at a time; 0 is the number of cores.
        progress: a function that is called with (kernel, done, total) on another thread, one call at a time; kernel is an
            attnsmith.results.PrewarmedKernel. An exception that it raises cancels the kernels that are not being compiled
            yet, and is raised here. So is KeyboardInterrupt.
        strict: True raises Unsupported for an unsupported part or a warning of a model, when everything else is in the
            cache.
        push: True puts kernels that remotes do not have there, too.
        compile: False compiles nothing and needs no NVRTC: a kernel that neither the cache nor a remote has is "missing".

        Returns the report (schema attnsmith.prewarm/1). Kernels that failed are in it, and a RuntimeWarning says why the
        first one did. Raises InvalidRequest, CacheError, and LibraryMissing if there is no NVRTC and a kernel is not in the
        cache.
        """
        strict, push, compile = flag("strict", strict), flag("push", push), flag("compile", compile)
        specs, names, told = self._specs(requests, models, recorded, model_options)
        sms = _requests.compute_capabilities(sm) if sm is not None else []
        sms = sms or sorted({device["sm"] for device in self.devices()})
        if not sms:
            raise InvalidRequest("sm", "nothing", "compute capabilities such as sm=[80, 90], since no GPU is present")
        prewarmed = self._prewarm(specs, sms, jobs, progress, push, compile)
        unsupported = list(told.unsupported)
        for one in prewarmed["unsupported"]:  # a place in the list of specs says nothing to the caller
            unsupported.append({"name": names[one["spec"]], "reason": one["reason"], "sm": one["sm"]})
        summary: PrewarmSummary = prewarmed["summary"]
        summary["unsupported"] = len(unsupported)
        summary["ok"] = summary["ok"] and not unsupported
        report: PrewarmReport = {"schema": prewarmed["schema"], "summary": summary, "kernels": prewarmed["kernels"],
                                 "unsupported": unsupported, "skipped": told.skipped, "warnings": told.warnings}
        reports.warn_of_failures(report)
        if strict:
            reports.refuse_doubts(unsupported, told.warnings)
        return report

    @overload
    def cache(self, operation: Literal["stat"] = "stat") -> CacheStatistics: ...
    @overload
    def cache(self, operation: Literal["ls"]) -> CacheListing: ...
    @overload
    def cache(self, operation: Literal["dir"]) -> CacheDirectories: ...
    @overload
    def cache(self, operation: Literal["explain"], *, key: str) -> CacheExplanations: ...
    @overload
    def cache(self, operation: Literal["explain"], *, request: Mapping[str, Any]) -> CacheExplanations: ...
    @overload
    def cache(self, operation: Literal["verify"]) -> CacheVerification: ...
    @overload
    def cache(self, operation: Literal["gc"], *, max_bytes: Optional[Integer] = None) -> CacheGcReport: ...
    @overload
    def cache(self, operation: Literal["clear"]) -> CacheClearReport: ...
    @overload
    def cache(self, operation: Literal["rm"], *, key: str) -> CacheRemoveReport: ...
    @overload
    def cache(self, operation: Literal["export"], *, file: Path, sm: Optional[Sms] = None, model: Optional[Model] = None,
              model_options: Optional[ModelChoices] = None) -> CacheExportReport: ...
    @overload
    def cache(self, operation: Literal["export"], *, oci: Path, tag: Optional[str] = None, sm: Optional[Sms] = None,
              model: Optional[Model] = None, model_options: Optional[ModelChoices] = None) -> CacheExportReport: ...
    @overload
    def cache(self, operation: Literal["import"], *, file: Path) -> CacheImportReport: ...
    @overload
    def cache(self, operation: Literal["push"], *, sm: Optional[Sms] = None, model: Optional[Model] = None,
              model_options: Optional[ModelChoices] = None) -> CachePushReport: ...

    def cache(self, operation: CacheOperation = "stat", **options: Any) -> Any:
        """Returns the JSON of `attnsmith cache OPERATION --json`, for the runtime's folders.

        operation: "ls", "dir", "stat", "explain", "verify", "gc", "clear", "rm", "export", "import" or "push".
        options: "gc" takes max_bytes=N, how many bytes the folder may take on its disk; None is the runtime's limit.
            "explain" takes key=HEX (or the beginning of a key), or request={...} with its sm. "rm" takes key=HEX, or the
            beginning of a key. "export" takes file=PATH, or oci=DIR and maybe tag=NAME for an image for containers; with
            sm=[...], model=... (as model() takes it) and model_options={...} it exports only the kernels for these.
            "import" takes file=PATH. "push" puts all kernels to the remotes, or those for sm, model and model_options.

        Raises InvalidRequest, CacheError.
        """
        return self._json(self._library.functions.attnsmith_cache, _requests.cache_operation(operation),
                          _requests.cache_options(options))

    # ---- Kernels and devices

    def prepare(self, *, device: Optional[int] = None, **words: Unpack[Request]) -> Kernel:
        """Returns the kernel for a request. The first call plans, reads the cache or compiles, and loads; later calls look
        it up.

        words: the words of plan(), without sm. device: the ordinal of a GPU; None is that of the current context, else 0.

        Raises InvalidRequest, Unsupported, CompileError, DriverError, LibraryMissing, KernelMissing.
        """
        _refuse_sm(words)
        return self._prepare(*_requests.parse(self._library, words), _ordinal(device))

    def prepare_async(self, *, device: Optional[int] = None, **words: Unpack[Request]) -> Pending:
        """Prepares the kernel for a request in the background, and returns a Pending.

        words: the words of plan(), without sm. device: the ordinal of a GPU; None is that of the current context, else 0.

        Raises InvalidRequest here; what prepare() raises comes from Pending.result().
        """
        _refuse_sm(words)
        spec, sizes = _requests.parse(self._library, words)
        pointer = self._made(self._library.functions.attnsmith_prepare_async, spec, sizes, _ordinal(device))
        return Pending(self._library, pointer, self._log)

    def prepare_set(self, *, device: Optional[int] = None, **words: Unpack[Request]) -> KernelSet:
        """Returns every kernel that planning could choose for a request, whatever its sizes, compiled or taken from the
        cache, and loaded.

        words: the words of plan(), without batch, q_len, kv_len and sm. device: the ordinal of a GPU; None is that of the
            current context, else 0.

        Raises InvalidRequest, Unsupported, CompileError, DriverError, LibraryMissing, KernelMissing.
        """
        for name in ("batch", "q_len", "kv_len"):
            if name in words:
                raise InvalidRequest(name, shown(words.get(name)), "no sizes: KernelSet.pick() takes them")
        _refuse_sm(words)
        spec, _ = _requests.parse(self._library, words)
        ordinal, out = _ordinal(device), c_void_p()
        self._call(self._library.functions.attnsmith_prepare_set, byref(spec),
                   abi.CURRENT_DEVICE if ordinal is None else ordinal, byref(out))
        return KernelSet(self._library, out.value or 0)

    def devices(self) -> List[DeviceInfo]:
        """Returns the GPUs, as dicts of "device" (the ordinal), "name", "sm", "sm_count" and "memory_bytes". The list is
        empty if there is no driver. Raises DriverError."""
        devices: List[DeviceInfo] = self._json(self._library.functions.attnsmith_devices_json)
        return devices

    def allocate(self, nbytes: int, device: int = 0) -> Buffer:
        """Allocates `nbytes` bytes of device memory on the GPU whose ordinal is `device`. The address is a multiple of 256.
        The contents are undefined.

        Raises InvalidRequest, DriverError, LibraryMissing.
        """
        with self._open() as pointer:
            return Buffer(self._library, pointer, device, nbytes)

    def synchronize(self, stream: Any = None) -> None:
        """Waits until all work that `stream` was given is done. `stream`: a CUstream as a number, or a stream of torch,
        CuPy, Numba or anything with __cuda_stream__; None and 0 are the default stream of the current device.
        Call.synchronize() waits for the stream that a launch without a stream goes to.

        Raises InvalidRequest, DriverError, LibraryMissing.
        """
        self._call(self._library.functions.attnsmith_synchronize, 0 if stream is None else frameworks.raw_stream(stream))

    def close(self) -> None:
        """Ends the runtime. Its kernels and calls stay usable. Calls of its own methods that are running in other threads
        come to their end, and the last of them frees it; later calls raise Error. It is called at the latest when the
        interpreter ends, which waits at most a minute for running calls, those of daemon threads too."""
        self._close()

    def __enter__(self) -> "Runtime":
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()

    # ---- Inside

    def _call(self, function: Any, *arguments: Any) -> None:
        with self._open() as pointer:
            self._library.call(function, pointer, *arguments)

    def _json(self, function: Any, *arguments: Any) -> Any:
        with self._open() as pointer:
            return self._library.json(function, pointer, *arguments)

    def _prepare(self, spec: abi.Spec, sizes: abi.Sizes, device: Optional[int]) -> Kernel:
        return Kernel(self._library, self._made(self._library.functions.attnsmith_prepare, spec, sizes, device))

    def _made(self, function: Any, spec: abi.Spec, sizes: abi.Sizes, device: Optional[int]) -> int:
        out = c_void_p()
        ordinal = abi.CURRENT_DEVICE if device is None else device
        self._call(function, byref(spec), byref(sizes), ordinal, byref(out))
        return out.value or 0

    def _specs(self, requests: Any, models: Any, recorded: Any,
               options: Mapping[str, Any]) -> Tuple[List[abi.Spec], List[str], _Told]:
        """Each distinct spec once, the name of the first attention that has it, and what is to be told."""
        models = list(_requests.each("models", models, _requests.is_one_model))
        _requests.check_options(options, bool(models), _arguments_of(Runtime.prewarm))
        requests = list(_requests.each("requests", requests, _requests.is_one_request))
        _requests.check_requests(requests)
        covered = [self.coverage(words) for words in requests]
        covered += [self._coverage_of_model(config, options) for config in models]
        covered += [self._recorded(file) for file in _requests.several(recorded)]
        if not covered:
            raise InvalidRequest("requests", "nothing", "requests, models or recorded")
        distinct: Dict[bytes, Tuple[abi.Spec, str]] = {}
        for attention in (attention for one in covered for attention in one["attentions"]):
            spec, _ = _requests.parse(self._library, _words_of(attention["request"]))
            distinct.setdefault(bytes(spec), (spec, attention["name"] or attention["request"]["op"]))
        told = _Told(reports.each_once(one["unsupported"] for one in covered),
                     reports.each_once(one["skipped"] for one in covered),
                     reports.each_once(one["warnings"] for one in covered))
        return [spec for spec, _ in distinct.values()], [name for _, name in distinct.values()], told

    def _coverage_of_model(self, config: Any, options: Mapping[str, Any]) -> CoverageReport:
        return self._covered(_requests.model_text(config), options)

    def _covered(self, config: Optional[bytes], words: Mapping[str, Any]) -> CoverageReport:
        functions, given = self._library.functions, _requests.to_json(words)
        covered: CoverageReport
        if config is None:
            covered = self._library.json(functions.attnsmith_request_coverage_json, given)
        else:
            covered = self._library.json(functions.attnsmith_model_coverage_json, config, given)
        return covered

    def _recorded(self, file: Any) -> CoverageReport:
        recorded: CoverageReport = self._library.json(self._library.functions.attnsmith_recorded_coverage_json,
                                                      _requests.recorded_text(file), os.fsencode(file))
        return recorded

    def _prewarm(self, specs: Sequence[abi.Spec], sms: Sequence[int], jobs: int,
                 progress: Optional[Progress], push: bool, compiles: bool) -> Dict[str, Any]:
        """The report as the library gives it."""
        pointers = (c_void_p * len(specs))(*[ctypes.addressof(spec) for spec in specs])
        numbers = (c_int32 * len(sms))(*sms)
        check_callable("progress", progress, "(kernel, done, total)")
        work = Interruptible(progress)
        options = abi.PrewarmOptions(progress=work.callback, jobs=fitting("jobs", jobs, c_int32, 0), push=int(push),
                                     no_compile=int(not compiles))
        report: Dict[str, Any] = work.run(lambda: self._json(
            self._library.functions.attnsmith_prewarm, ctypes.addressof(pointers), len(specs),
            ctypes.addressof(numbers), len(sms), byref(options)))
        return report


def _ordinal(device: Optional[int]) -> Optional[int]:
    return None if device is None else fitting("device", device, c_int32, 0)


def _arguments_of(method: Callable[..., Any]) -> List[str]:
    """The names that its signature has, without self and those of options."""
    parameters = inspect.signature(method).parameters.values()
    return [one.name for one in parameters if one.name != "self" and one.kind is not one.VAR_KEYWORD]


def _words_of(request: Mapping[str, Any]) -> Dict[str, Any]:
    return {name: value for name, value in request.items() if name != "sm"}


_lock = threading.Lock()
_default: Optional[Runtime] = None
on_default_change: List[Callable[[], None]] = []  # called when what the plain functions use is another runtime


@named
def default_runtime() -> Runtime:
    """The runtime that the plain functions use. It is made with its defaults at the first use."""
    global _default
    if _default is None:
        with _lock:
            if _default is None:
                _default = Runtime()
    return _default


@named
def set_default_runtime(runtime: Optional[Runtime]) -> None:
    """Makes the plain functions use this runtime from now on. None: a new one with its defaults. Raises InvalidRequest."""
    global _default
    if runtime is not None and not isinstance(runtime, Runtime):
        raise InvalidRequest("runtime", shown(runtime), "an attnsmith.Runtime, or None")
    with _lock:
        _default = runtime
    for tell in on_default_change:
        tell()


@atexit.register
def _close_all() -> None:
    """No thread of the library may call a Python log once the interpreter is being taken down."""
    close_all([*pendings(), *_runtimes], _MOST_EXIT_WAIT_S)
