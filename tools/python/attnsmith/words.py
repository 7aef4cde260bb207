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
    """A dtype as torch and numpy have them, such as torch.bfloat16, or a number that has one, whose class stands for it."""

    @property
    def itemsize(self) -> int: ...


class ConfigObject(Protocol):
    """A config as transformers has it: what AutoConfig.from_pretrained() gives, or a model's .config."""

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
    rope_table: Optional[RopeTable]
    rope_factor: Optional[Number]
    q_norm: Optional[bool]
    k_norm: Optional[bool]
    v_norm: Optional[bool]
    norm_eps: Optional[Number]
    q_dtype: Optional[KvDType]
    check_slots: Optional[bool]


class Request(_Attention, _Choice, _Sizes, total=False):
    """The words of plan(), prepare() and prewarm(). q_heads is needed but for op "top_k", and either head_dim or head_dim_qk; of op "mla"
    head_dim_ckv, head_dim_kpe and scale instead.

    op: "attention" (the default), "mla", latent attention, "merge", of partial results, "append", which writes keys
        and values of new tokens into a cache, or "top_k", which selects the largest scores of rows.
    dtype: of q, and of k, v and o unless kv_dtype and o_dtype are given; "bf16" unless given. A torch.dtype will do.
    head_dim: of q, k, v and o; or head_dim_qk of q and k, and head_dim_vo of v and o.
    head_dim_ckv, head_dim_kpe: of op "mla", and of "append" with latents in place of head_dim: columns of the latent and
        of o, and of the rotary position, or 0.
    q_heads, kv_heads: heads; kv_heads divides q_heads, and is q_heads unless given, but 1 of op "mla".
    mask: "full" (the default), or "causal": the last query sees the last key.
    window_left, window_right: keys seen before and after a query's own; all unless given. A sliding window of W tokens
        is window_left = W - 1.
    attention_chunk: tokens, from 1; a query sees the keys of its own chunk alone, of those that mask and windows let through: the
        query at position i sees key j only where i // attention_chunk == j // attention_chunk.
    causal_block: tokens, from 1, with mask "causal"; a query sees the keys up to the end of its own block: the query at position i
        sees key j only where j // causal_block <= i // causal_block.
    scale: of q k^T; 1 / sqrt(head_dim_qk) unless given. Op "mla" has no default: the model's head dims before W_UK was
        absorbed tell it.
    softcap: logits become softcap * tanh(logit / softcap); off unless given.
    alibi: slope[q_head] * (key position - query position) is added to each logit.
    sink: exp(sink[q_head]) is added to each row's denominator.
    lse: the log-sum-exp of each row is written, too.
    kv: how keys and values are stored, "dense" unless given; "paged" needs page_size, in tokens.
    page_order: of a page's axes: "NHD" (the default) or "HND".
    index_dtype: of offsets, lengths and page tables; "int32" unless given.
    alignment: bytes that every base and stride is a multiple of: 16 (the default), 8, 4 or 2.
    o_dtype: of o: that of q unless given, or "fp32", which is not rounded.
    kv_dtype: of k and v: that of q unless given, or "e4m3" or "e5m2", floats of 8 bits (torch.float8_e4m3fn and
        torch.float8_e5m2), whose head dims are multiples of 16.
    kv_scale: of a kv_dtype of 8 bits: what each stored key and value is multiplied by to give its number: nothing
        ("none", the default), one scale ("tensor"), one of each KV head ("head"), one of each head of each token
        ("token_head"), or one of each 128 columns of that ("block128"; of head dims to 128 and of latents).
    precision: "standard", or "high": products and probabilities stay in fp32.
    consistency: "standard", or "bitwise": a row's bits depend on neither batch nor phase.
    slots: from here on of op "append" alone: "mapping" (the default), a slot for each token, or "table": by the lengths
        after the append and the pages, behind the keys of each sequence.
    rope: "none" (the default), or what is rotated with what: "half" (GPT-NeoX, Llama), columns half of rotary_dim
        apart, or "interleaved" (GPT-J), neighbours. rotary_dim: the first columns, which are rotated; all unless given.
    rope_table: "cos_sin" (the default), of each position, or "frequencies", in radians a position, whose cosines and
        sines are multiplied by rope_factor, 1 unless given.
    q_norm, k_norm, v_norm: RMS norm of each head, before it is rotated, with weights but for v; of latents k_norm is
        that of the head_dim_ckv columns. norm_eps: is added to the mean of squares; 1e-6 unless given.
    q_dtype: of the q that is written: that of q unless given, or "e4m3" or "e5m2". check_slots: of slots
        "mapping", the status tells of two tokens of one launch with one slot.
    batch, q_len, kv_len: sizes to plan for, not limits: sequences, and the queries and keys of the longest; 1 unless
        given.
    """


class RequestChoices(_Attention, _Choices, _Sizes, total=False):
    """A Request whose dtype, lse, kv, page_order, page_size, index_dtype, alignment, o_dtype, kv_dtype, kv_scale, precision,
    consistency and slots may each be several: it stands for the requests of all combinations."""


class ModelOptions(_Choice, _Sizes, total=False):
    """What model() takes beside a config: the words of a Request that it leaves open (of which kv is "paged" and
    page_size 16 unless given, and slots asks for the appends of the model's layers, too), tensor_parallel, over how many
    GPUs the heads are divided, and strict, which makes a warning or an unsupported part an error."""

    tensor_parallel: Optional[Integer]
    strict: Optional[bool]


class ModelChoices(_Choices, _Sizes, total=False):
    """What plan_model() and prewarm() take: ModelOptions where the program's choices may be several."""

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
