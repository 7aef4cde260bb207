"""What a layer of vLLM asks attnsmith for: its cache's storage, and the requests whose kernels an engine prepares when it
starts. The calls in _dense.py and _mla.py need no others."""

from __future__ import annotations

import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Dict, Iterable, Iterator, List, Literal, Mapping, NoReturn, Optional, Sequence, Tuple

import torch
import vllm.envs as envs

from ..errors import Error, Unsupported
from ..kernels import KernelSet
from ..runtime import default_runtime
from ..words import Consistency

Words = Dict[str, Any]  # of a request
Key = Tuple[Tuple[str, Any], ...]  # the same, hashable
Float8 = Literal["e4m3", "e5m2"]

#: Words of vLLM's kv_cache_dtype, and what they store.
_FP8: Dict[str, Float8] = {"fp8": "e4m3", "fp8_e4m3": "e4m3", "fp8_e5m2": "e5m2"}
_PER_TOKEN: Dict[str, Float8] = {"fp8_per_token_head": "e4m3"}
_PLAIN = {"float16": torch.float16, "half": torch.float16, "bfloat16": torch.bfloat16}
KV_CACHE_DTYPES = ("auto", "float16", "bfloat16", *_FP8, *_PER_TOKEN)
_DTYPES = {torch.float16: "fp16", torch.bfloat16: "bf16"}
SCALE_BYTES = 4  # of a token and head, fp32
PAGE_SIZE = 16  # vLLM's default
#: What begin() started, by device and request, as long as a layer keeps it: layers of one kind share it.
_begun: weakref.WeakValueDictionary[Tuple[int, Key], Begun] = weakref.WeakValueDictionary()
_beginning = threading.Lock()


@dataclass(frozen=True)
class Storage:
    """How a cache stores keys and values.

    kv_dtype: "e4m3" or "e5m2"; None: the model's own.
    kv_scale: "none", "tensor", or "token_head": an fp32 scale follows the columns of each head of each token.
    """

    kv_dtype: Optional[Float8]
    kv_scale: str

    @property
    def is_per_token(self) -> bool:
        return self.kv_scale == "token_head"


def _not_served(kv_cache_dtype: str, served: Sequence[str]) -> str:
    return f"kv_cache_dtype {kv_cache_dtype!r}: attnsmith serves {', '.join(served)}"


def storage_of(kv_cache_dtype: str) -> Storage:
    """Raises Unsupported for a kv_cache_dtype that no kernel reads."""
    if kv_cache_dtype in _FP8:
        return Storage(_FP8[kv_cache_dtype], "tensor")
    if kv_cache_dtype in _PER_TOKEN:
        return Storage(_PER_TOKEN[kv_cache_dtype], "token_head")
    if kv_cache_dtype == "auto" or kv_cache_dtype in _PLAIN:
        return Storage(None, "none")
    raise Unsupported(_not_served(kv_cache_dtype, KV_CACHE_DTYPES))


def why_not_stored(kv_cache_dtype: Optional[str], dtype: torch.dtype, served: Sequence[str] = KV_CACHE_DTYPES) -> Optional[str]:
    """Why a model of `dtype` cannot have this cache; None if it can. `served`: what the backend has."""
    if kv_cache_dtype is None:
        return None
    if kv_cache_dtype not in served:
        return _not_served(kv_cache_dtype, served)
    if _PLAIN.get(kv_cache_dtype, dtype) != dtype:
        return f"kv_cache_dtype {kv_cache_dtype} needs a model of that dtype, not {dtype}"
    return None


def consistency() -> Consistency:
    """That of all calls: vLLM says when it needs the same bits in every batch."""
    return "bitwise" if envs.VLLM_BATCH_INVARIANT else "standard"


def dtype_word(dtype: torch.dtype) -> str:
    """Raises Unsupported."""
    try:
        return _DTYPES[dtype]
    except KeyError:
        raise Unsupported(f"a model of {dtype}: attnsmith serves float16 and bfloat16") from None


def cache_words(storage: Storage, page_size: int) -> Words:
    """The words that attention and append share about the cache."""
    words: Words = {"kv": "paged", "page_order": "HND", "page_size": page_size}
    if storage.kv_dtype is not None:
        words.update(kv_dtype=storage.kv_dtype, kv_scale=storage.kv_scale)
    return words


def alignment_of(*columns: int, item: int) -> int:
    """The bytes that all rows begin at multiples of, to 16, if the first row does and rows lie one after the other."""
    alignment = 16
    for count in columns:
        while count * item % alignment:
            alignment //= 2
    return alignment


def impls_of(vllm_config: Any, layer_names: Iterable[str]) -> Iterator[Tuple[str, Any]]:
    """attnsmith's implementation of each of these layers that has one, with the layer's name."""
    layers = vllm_config.compilation_config.static_forward_context
    for name in layer_names:
        impl = getattr(layers.get(name), "impl", None)
        if hasattr(impl, "requests"):
            yield name, impl


def requests_of(vllm_config: Any, layer_names: Iterable[str], page_size: int) -> Iterator[Tuple[str, Words]]:
    """What these layers prepare when the engine starts, each with the layer's name. Those of other backends prepare nothing."""
    for name, impl in impls_of(vllm_config, layer_names):
        for what, words in impl.requests(page_size, vllm_config):
            yield f"{name}: {what}", words


class Begun:
    """Kernels that a thread prepares, so that they compile while the engine loads its weights. They stay loaded as long as this
    lives; prepared() waits for them."""

    def __init__(self, device: int, words: Words) -> None:
        self._kernels: Optional[KernelSet] = None
        # The end of the process waits for what compiles, for a limited time: see Runtime.close().
        self._thread = threading.Thread(target=self._prepare, args=(device, words), name="attnsmith: kernels", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        self._thread.join()

    def _prepare(self, device: int, words: Words) -> None:
        try:
            self._kernels = default_runtime().prepare_set(device=device, **words)
        except Exception:
            pass  # prepared() asks for the same, and raises it


def begin(impl: Any, vllm_config: Optional[Any]) -> List[Begun]:
    """What to keep with a layer. The page size may turn out to be another multiple of 16; kernels do not depend on which one.
    Raises nothing: what cannot be prepared is told by prepared()."""
    begun: List[Begun] = []
    cuda: Any = torch.cuda
    if vllm_config is None or not cuda.is_initialized():  # no engine, or its process has not chosen a GPU
        return begun
    try:
        device = torch.cuda.current_device()
        for _, words in impl.requests(vllm_config.cache_config.block_size or PAGE_SIZE, vllm_config):
            with _beginning:
                one = _begun.get((device, _key_of(words)))
                if one is None:
                    one = _begun[device, _key_of(words)] = Begun(device, words)
            begun.append(one)
    except Exception:
        pass  # of a request, or of a thread that cannot start
    return begun


def prepared(requests: Iterable[Tuple[str, Words]], device: torch.device) -> List[KernelSet]:
    """Every kernel that these requests may need, compiled or taken from the cache, and loaded. They stay loaded as long as the
    results live.

    requests: what each is for, and its words. Equal ones are prepared once, different ones in parallel.
    Raises Unsupported with what it is for, CompileError, KernelMissing, DriverError, LibraryMissing.
    """
    for one in list(_begun.values()):  # also those of other page sizes: no module is loaded while a graph is captured
        one.wait()
    distinct: Dict[Key, str] = {}
    for what, words in requests:
        distinct.setdefault(_key_of(words), what)
    index = torch.cuda.current_device() if device.index is None else device.index

    def prepare(words: Key) -> KernelSet:
        try:
            return default_runtime().prepare_set(device=index, **dict(words))
        except Unsupported as error:
            raise Unsupported(f"{distinct[words]}: {error}") from error

    if not distinct:
        return []
    with ThreadPoolExecutor(len(distinct)) as pool:  # all of them, so that a failed start has recorded what it asks for
        started = [pool.submit(prepare, words) for words in distinct]
    return [one.result() for one in started]


def _key_of(words: Words) -> Key:
    return tuple(sorted(words.items()))


def refuse_causal_by_request() -> NoReturn:
    """Of diffusion language models. Raises NotImplementedError."""
    raise NotImplementedError("attnsmith: a mask that is causal for some requests only is not supported; choose another attention "
                              "backend for this model or speculative method")


def why_not_planned(words: Mapping[str, Any], capability: Tuple[int, int]) -> Optional[str]:
    """Why no kernel serves a request on a GPU of this compute capability; None if one does. Compiles nothing."""
    try:
        default_runtime().plan(sm=f"{capability[0]}.{capability[1]}", **dict(words))
    except Error as error:
        return str(error).splitlines()[0]
    return None
