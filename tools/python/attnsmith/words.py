"""The words of a request and of a model's options, with their types, for type checkers and editors.

    words: attnsmith.Request = {"dtype": "bf16", "head_dim": 128, "q_heads": 32, "kv_heads": 8, "mask": "causal"}
    attnsmith.plan(**words, sm=90)

At run time these are plain dicts, and the library itself checks them; a test holds this file against the library's own
table of fields. A word that is None is not given.
"""

from __future__ import annotations

import os
import warnings
from typing import (TYPE_CHECKING, Any, Collection, Iterable, Literal, Mapping, Optional, Protocol, SupportsFloat, SupportsIndex,
                    Tuple, Type, TypedDict, Union)


class DTypeObject(Protocol):
    """A dtype object of torch or numpy, such as torch.bfloat16, or a scalar class that has one."""

    @property
    def itemsize(self) -> int: ...


class ConfigObject(Protocol):
    """A config object of transformers: what AutoConfig.from_pretrained() returns, or a model's .config."""

    def to_dict(self) -> "dict[str, Any]": ...


Integer = SupportsIndex  #: an int, or what numpy has for one
Number = Union[SupportsFloat, SupportsIndex]
DType = Union[Literal["fp16", "bf16", "float16", "bfloat16"], DTypeObject, Type[DTypeObject]]
ODType = Union[DType, Literal["fp32", "float32"]]
KvDType = Union[DType, Literal["e4m3", "e5m2", "float8_e4m3fn", "float8_e5m2"]]
IndexDType = Union[Literal["int32", "int64"], DTypeObject, Type[DTypeObject]]
Op = Literal["attention", "mla", "merge", "append", "top_k"]
Mask = Literal["full", "causal"]
KvStorage = Literal["dense", "ragged", "paged"]
PageOrder = Literal["NHD", "HND"]
Precision = Literal["standard", "high"]
Consistency = Literal["standard", "bitwise"]
KvScale = Literal["none", "tensor", "head", "token_head", "block128"]
Slots = Literal["mapping", "table"]
Rope = Literal["none", "half", "interleaved"]
RopeTable = Literal["cos_sin", "frequencies"]
LogLevel = Literal["off", "error", "warn", "info", "debug"]
CacheTrust = Literal["owner", "group", "all"]
Toolchain = Literal["newest", "exact"]
OnMiss = Literal["compile", "error"]
CacheOperation = Literal["ls", "dir", "stat", "explain", "verify", "gc", "clear", "rm", "export", "import",
                         "push"]

Path = Union[str, "os.PathLike[str]"]
Window = Optional[Tuple[Optional[SupportsIndex], Optional[SupportsIndex]]]  #: (left, right)
OneSm = Union[SupportsIndex, str]  #: 90, "90", "90a", "sm_90", "9.0", or "native" for the GPU present
Sms = Union[OneSm, Iterable[OneSm]]  #: several of them, also as "80,90" and "all"


class _Sizes(TypedDict, total=False):
    batch: Optional[Integer]
    q_len: Optional[Integer]
    kv_len: Optional[Integer]


class _Choice(TypedDict, total=False):
    """What a model's config does not say: the program that runs it chooses."""

    dtype: Optional[DType]
    lse: Optional[bool]
    kv: Optional[KvStorage]
    page_order: Optional[PageOrder]
    page_size: Optional[Integer]
    index_dtype: Optional[IndexDType]
    alignment: Optional[Integer]
    o_dtype: Optional[ODType]
    kv_dtype: Optional[KvDType]
    kv_scale: Optional[KvScale]
    precision: Optional[Precision]
    consistency: Optional[Consistency]
    slots: Optional[Slots]
    rope_table: Optional[RopeTable]
    q_dtype: Optional[KvDType]
    check_slots: Optional[bool]


class _Choices(TypedDict, total=False):
    """Each of them one or several."""

    dtype: Union[None, DType, Collection[DType]]
    lse: Union[None, bool, Collection[bool]]
    kv: Union[None, KvStorage, Collection[KvStorage]]
    page_order: Union[None, PageOrder, Collection[PageOrder]]
    page_size: Union[None, Integer, Collection[Integer]]
    index_dtype: Union[None, IndexDType, Collection[IndexDType]]
    alignment: Union[None, Integer, Collection[Integer]]
    o_dtype: Union[None, ODType, Collection[ODType]]
    kv_dtype: Union[None, KvDType, Collection[KvDType]]
    kv_scale: Union[None, KvScale, Collection[KvScale]]
    precision: Union[None, Precision, Collection[Precision]]
    consistency: Union[None, Consistency, Collection[Consistency]]
    slots: Union[None, Slots, Collection[Slots]]
    rope_table: Union[None, RopeTable, Collection[RopeTable]]
    q_dtype: Union[None, KvDType, Collection[KvDType]]
    check_slots: Union[None, bool, Collection[bool]]


class _Attention(TypedDict, total=False):
    op: Optional[Op]
    head_dim: Optional[Integer]
    head_dim_qk: Optional[Integer]
    head_dim_vo: Optional[Integer]
    head_dim_ckv: Optional[Integer]
    head_dim_kpe: Optional[Integer]
    q_heads: Optional[Integer]
    kv_heads: Optional[Integer]
    mask: Optional[Mask]
    window_left: Optional[Integer]
    window_right: Optional[Integer]
    attention_chunk: Optional[Integer]
    causal_block: Optional[Integer]
    scale: Optional[Number]
    softcap: Optional[Number]
    alibi: Optional[bool]
    sink: Optional[bool]
    rope: Optional[Rope]
    rotary_dim: Optional[Integer]
    rope_factor: Optional[Number]
    q_norm: Optional[bool]
    k_norm: Optional[bool]
    v_norm: Optional[bool]
    norm_eps: Optional[Number]


class Request(_Attention, _Choice, _Sizes, total=False):
    """The words of plan(), prepare() and prewarm(). q_heads is required except by op "top_k", and so is head_dim, or
    head_dim_qk with head_dim_vo; op "mla" requires head_dim_ckv, head_dim_kpe and scale instead.

    op: "attention" (the default); "mla", latent attention; "merge", of partial results; "append", which writes keys and
        values of new tokens into a cache; or "top_k", which selects the largest scores of rows.
    dtype: the dtype of q, and of k, v and o unless kv_dtype and o_dtype are given; "bf16" unless given. It may be a
        torch.dtype.
    head_dim: the columns of q, k, v and o. Or head_dim_qk, those of q and k, and head_dim_vo, those of v and o.
    head_dim_ckv, head_dim_kpe: for op "mla", and for "append" of latents in the place of head_dim: the columns of the
        latent and of o, and those of the rotary position, or 0.
    q_heads, kv_heads: numbers of heads. kv_heads divides q_heads. It is q_heads unless given, and 1 for op "mla".
    mask: "full" (the default), or "causal": the last query sees the last key.
    window_left, window_right: how many keys before and after its own position a query sees; all unless given. A sliding
        window of W tokens is window_left = W - 1.
    attention_chunk: the length of a chunk in tokens, from 1. Among the keys that mask and windows allow, the query at
        position i sees key j only if i // attention_chunk == j // attention_chunk.
    causal_block: the length of a block in tokens, from 1, with mask "causal": a query sees the keys up to the end of its own
        block: the query at position i sees key j only if j // causal_block <= i // causal_block.
    scale: the factor of q k^T; 1 / sqrt(head_dim_qk) unless given. Op "mla" has no default: it follows from the model's
        head dims before W_UK was absorbed.
    softcap: logits become softcap * tanh(logit / softcap). It is off unless given.
    alibi: True adds slope[q_head] * (key position - query position) to each logit.
    sink: True adds exp(sink[q_head]) to the denominator of each row.
    lse: True also writes the log-sum-exp of each row.
    kv: how keys and values are stored: "dense" (the default), "ragged" or "paged", which requires page_size, in tokens.
    page_order: the order of a page's axes: "NHD" (the default) or "HND".
    index_dtype: the dtype of offsets, lengths and page tables; "int32" unless given.
    alignment: the number of bytes that every base and stride is a multiple of: 16 (the default), 8, 4 or 2.
    o_dtype: the dtype of o: that of q unless given, or "fp32", which is not rounded.
    kv_dtype: the dtype of k and v: that of q unless given, or "e4m3" or "e5m2", floats of 8 bits (torch.float8_e4m3fn and
        torch.float8_e5m2), whose head dims are multiples of 16.
    kv_scale: the scales of a kv_dtype of 8 bits, which each stored key and value is multiplied by: "none" (the default),
        one scale ("tensor"), one for each KV head ("head"), one for each head of each token ("token_head"), or one for each
        128 columns of that ("block128"; for head dims up to 128 and for latents).
    precision: "standard", or "high", which keeps products and probabilities in fp32.
    consistency: "standard", or "bitwise", with which the bits of a row depend on neither batch nor phase.
    slots: for op "append": "mapping" (the default), a slot for each token, or "table": slots follow from the lengths after
        the append and the pages.
    rope: for op "append": "none" (the default), "half" (GPT-NeoX, Llama), which rotates columns that are half of rotary_dim
        apart, or "interleaved" (GPT-J), which rotates neighbours. rotary_dim: how many columns, from the first, are
        rotated; all unless given.
    rope_table: for op "append": "cos_sin" (the default), a table by position, or "frequencies" in radians a position, whose
        cosines and sines are multiplied by rope_factor; 1 unless given.
    q_norm, k_norm, v_norm: for op "append": True applies an RMS norm to each head before the rotation, with weights except
        for v; for latents k_norm is that of the head_dim_ckv columns. norm_eps: is added to the mean of squares; 1e-6
        unless given.
    q_dtype: for op "append": the dtype of the q that is written: that of q unless given, or "e4m3" or "e5m2".
    check_slots: for op "append" with slots "mapping": True makes the status report two tokens of one launch with one slot.
    batch, q_len, kv_len: the sizes to plan for, which are no limits: the number of sequences, and of the queries and keys
        of the longest; 1 unless given.
    """


class RequestChoices(_Attention, _Choices, _Sizes, total=False):
    """A Request in which dtype, lse, kv, page_order, page_size, index_dtype, alignment, o_dtype, kv_dtype, kv_scale,
    precision, consistency and slots may be lists: it stands for the requests of all combinations."""


class ModelOptions(_Choice, _Sizes, total=False):
    """The options of Runtime.model(): the words of a Request that a config leaves open. kv is "paged" and page_size 16
    unless given; slots adds the appends of the model's layers, which rope_table, q_dtype and check_slots are about.

    tensor_parallel: how many GPUs the heads are divided among; 1 unless given.
    strict: True makes a warning or an unsupported part an error.
    """

    tensor_parallel: Optional[Integer]
    strict: Optional[bool]


class ModelChoices(_Choices, _Sizes, total=False):
    """The options of plan_model() and prewarm(): ModelOptions in which the choices of the program may be lists."""

    tensor_parallel: Optional[Integer]


Requests = Union[Request, RequestChoices, Iterable[Union[Request, RequestChoices]]]
#: A config.json: its file, its folder, its text, a dict of it, or a config object of transformers.
Model = Union[str, "os.PathLike[str]", bytes, Mapping[str, Any], ConfigObject]

_DEPRECATED = {"Coverage": "RequestChoices", "ModelCoverage": "ModelChoices"}

if not TYPE_CHECKING:  # a type checker would take any name for one of the module's

    def __getattr__(name: str) -> Any:
        if name not in _DEPRECATED:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        warnings.warn(f"attnsmith: {name} is now called {_DEPRECATED[name]}", DeprecationWarning, stacklevel=2)
        return globals()[_DEPRECATED[name]]
