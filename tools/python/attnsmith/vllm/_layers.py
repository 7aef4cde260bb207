"""What a layer of vLLM asks attnsmith for: its cache's storage, and the requests whose kernels an engine prepares when it
starts. The calls in _dense.py and _mla.py need no others."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Dict, Iterable, Iterator, List, Literal, Mapping, Optional, Tuple

import torch
import vllm.envs as envs

from ..errors import Error, Unsupported
from ..kernels import KernelSet
from ..runtime import default_runtime
from ..words import Consistency

Words = Dict[str, Any]  # of a request
Float8 = Literal["e4m3", "e5m2"]

#: Words of vLLM's kv_cache_dtype, and what they store.
_FP8: Dict[str, Float8] = {"fp8": "e4m3", "fp8_e4m3": "e4m3", "fp8_e5m2": "e5m2"}
_PER_TOKEN: Dict[str, Float8] = {"fp8_per_token_head": "e4m3"}
_PLAIN = {"float16": torch.float16, "half": torch.float16, "bfloat16": torch.bfloat16}
KV_CACHE_DTYPES = ("auto", "float16", "bfloat16", *_FP8, *_PER_TOKEN)
_DTYPES = {torch.float16: "fp16", torch.bfloat16: "bf16"}
SCALE_BYTES = 4  # of a token and head, fp32


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


def storage_of(kv_cache_dtype: str) -> Storage:
    """Raises Unsupported for a kv_cache_dtype that no kernel reads."""
    if kv_cache_dtype in _FP8:
        return Storage(_FP8[kv_cache_dtype], "tensor")
    if kv_cache_dtype in _PER_TOKEN:
        return Storage(_PER_TOKEN[kv_cache_dtype], "token_head")
    if kv_cache_dtype == "auto" or kv_cache_dtype in _PLAIN:
        return Storage(None, "none")
    raise Unsupported(f"kv_cache_dtype {kv_cache_dtype!r}: attnsmith serves {', '.join(KV_CACHE_DTYPES)}")


def why_not_stored(kv_cache_dtype: Optional[str], dtype: torch.dtype) -> Optional[str]:
    """Why a model of `dtype` cannot have this cache; None if it can."""
    if kv_cache_dtype is None:
        return None
    try:
        storage_of(kv_cache_dtype)
    except Unsupported as error:
        return str(error)
    if _PLAIN.get(kv_cache_dtype, dtype) != dtype:
        return f"kv_cache_dtype {kv_cache_dtype} needs a model of that dtype, not {dtype}"
    return None


def consistency() -> Consistency:
    """That of all calls: vLLM says when it needs the same bits in every batch."""
    return "bitwise" if envs.VLLM_BATCH_INVARIANT else "default"


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


def requests_of(vllm_config: Any, layer_names: Iterable[str], page_size: int) -> Iterator[Tuple[str, Words]]:
    """What these layers prepare when the engine starts, each with the layer's name. Those of other backends prepare nothing."""
    layers = vllm_config.compilation_config.static_forward_context
    for name in layer_names:
        requests = getattr(getattr(layers.get(name), "impl", None), "requests", None)
        for what, words in requests(page_size, vllm_config) if requests is not None else ():
            yield f"{name}: {what}", words


def prepared(requests: Iterable[Tuple[str, Mapping[str, Any]]], device: torch.device) -> List[KernelSet]:
    """Every kernel that these requests may need, compiled or taken from the cache, and loaded. They stay loaded as long as the
    results live.

    requests: what each is for, and its words. Equal ones are prepared once, different ones in parallel.
    Raises Unsupported with what it is for, CompileError, KernelMissing, DriverError, LibraryMissing.
    """
    distinct: Dict[Tuple[Tuple[str, Any], ...], str] = {}
    for what, words in requests:
        distinct.setdefault(tuple(sorted(words.items())), what)
    index = torch.cuda.current_device() if device.index is None else device.index

    def prepare(words: Tuple[Tuple[str, Any], ...]) -> KernelSet:
        try:
            return default_runtime().prepare_set(device=index, **dict(words))
        except Unsupported as error:
            raise Unsupported(f"{distinct[words]}: {error}") from error

    if not distinct:
        return []
    with ThreadPoolExecutor(len(distinct)) as pool:  # all of them, so that a failed start has recorded what it asks for
        started = [pool.submit(prepare, words) for words in distinct]
    return [one.result() for one in started]


def why_not_planned(words: Mapping[str, Any], capability: Tuple[int, int]) -> Optional[str]:
    """Why no kernel serves a request on a GPU of this compute capability; None if one does. Compiles nothing."""
    try:
        default_runtime().plan(sm=f"{capability[0]}.{capability[1]}", **dict(words))
    except Error as error:
        return str(error).splitlines()[0]
    return None
