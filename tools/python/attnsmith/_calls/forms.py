"""What the attention functions have in common: how the tensors of a call describe a problem."""

from __future__ import annotations

from typing import Any, Callable, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from .._base.integers import shown
from .._base.options import Options
from .._c_api import abi
from .._tensors import views as _views
from .._tensors.views import View
from ..errors import Error, InvalidRequest

LONGEST = 1 << 30
_USUAL_LATENT = 512  # columns, of DeepSeek's models and most others; MiniCPM3 has 256
_FIELDS = abi.TENSOR_FIELDS + abi.BATCH_FIELDS
_ALIGNED = frozenset(map(_FIELDS.index, ("q", "k", "v", "o", "q_pe", "kpe")))  # a kernel is made for their alignment

Views = List[Optional[View]]  # of the tensors of a form


class Problem(NamedTuple):
    """What a form makes of the views of its tensors: those have the axes of attnsmith_tensors here. Of op mla k
    has the latents, and v is the columns of k that are the values."""

    q: View
    k: View
    v: View
    batch_views: Tuple[Optional[View], ...]  # the fields of attnsmith_batch
    kv: str
    page_order: Optional[str]
    batch: int
    max_q_len: int
    max_kv_len: int
    options: Options  # the common ones
    rows: Sequence[int]  # the shape of a new o, less its last axis
    as_kernel: Callable[[View], View] = lambda view: view  # of o and lse
    o_strides: Optional[Tuple[int, ...]] = None  # of a new o, which only torch makes of any but row-major ones
    head_dim_kpe: Optional[int] = None  # of op mla alone: what says that it is this op
    q_pe: Optional[View] = None
    kpe: Optional[View] = None
    kv_dtype: Any = None  # what the caller says of k and v; None: their own dtype
    k_scale: Optional[View] = None
    v_scale: Optional[View] = None

    @property
    def op(self) -> str:
        return "attention" if self.head_dim_kpe is None else "mla"

    @property
    def inputs(self) -> List[View]:
        """Those that a kernel loads by their alignment."""
        return [view for view in (self.q, self.k, self.v, self.q_pe, self.kpe) if view is not None]


class Form:
    """One of the functions: the names of its tensors, q, k, v, out, sinks and alibi_slopes first, then some of the
    other fields of attnsmith_tensors and attnsmith_batch; which must be given; what they mean; and of tensors whose
    errors would name what the caller has never seen, the argument by the library's name."""

    def __init__(self, names: Tuple[str, ...], required: Set[int], resolve: Callable[[List[Any], Options], Problem],
                 arguments: Optional[Mapping[str, str]] = None) -> None:
        self.names = names
        self.fields = (0, 1, 2, 3, 5, 6, *map(_FIELDS.index, names[6:]))
        self.aligned = tuple([field in _ALIGNED for field in self.fields])
        self.required = required
        self.resolve = resolve
        self.arguments = arguments or {}
        self._scaled: Optional[Form] = None

    def scaled(self, tensors: Tuple[Any, ...], options: Options, k_scale: Any, v_scale: Any,
               kv_dtype: Any) -> Tuple[Form, Tuple[Any, ...], Options]:
        """The same of keys and values of 8 bits that are multiplied by scales, or whose dtype the caller says: another
        form, so that calls without these have no more tensors to look at. Op mla has k_scale alone. Raises
        InvalidRequest."""
        try:
            hash(kv_dtype)
        except TypeError:
            raise InvalidRequest("kv_dtype", shown(kv_dtype), "a word") from None
        if self._scaled is None:
            self._scaled = Form((*self.names, "k_scale", "v_scale"), self.required, self._resolve_scaled, self.arguments)
        return self._scaled, (*tensors, k_scale, v_scale), (*options, kv_dtype)

    def _resolve_scaled(self, views: List[Any], options: Options) -> Problem:
        *others, k_scale, v_scale = views
        return self.resolve(others, options[:-1])._replace(
            kv_dtype=options[-1], k_scale=k_scale and _views.as_vector(k_scale),
            v_scale=v_scale and _views.as_vector(v_scale))

    def named(self, error: Error) -> Error:
        """An error of the library about a tensor as one about the argument."""
        if not isinstance(error, InvalidRequest):
            return error
        name, dot, part = error.field.partition(".")
        if name not in self.arguments:
            return error
        return InvalidRequest(f"{self.arguments[name]}{dot}{part}", error.value, error.accepted)


def batch_views(**views: Optional[View]) -> Tuple[Optional[View], ...]:
    """The fields of attnsmith_batch, by their names; None for those that are not given."""
    assert views.keys() <= set(abi.BATCH_FIELDS), views.keys()
    return tuple(views.get(name) for name in abi.BATCH_FIELDS)


def need_axes(name: str, view: View, accepted: str) -> None:
    if len(view[1]) != accepted.count(",") + 1:
        raise InvalidRequest(f"{name}.shape", str(tuple(view[1])), accepted)


def need_same_tokens(k: View, v: View, axis: int) -> None:
    """For views that are joined before the library compares them, or that have other axes there. `axis`: that of tokens."""
    if v[1][axis] != k[1][axis]:
        raise InvalidRequest("v.shape", str(tuple(v[1])), f"{k[1][axis]} tokens, as k has")


def alignment_of(views: Sequence[View], pointer_bits: int = 0) -> int:
    """The class that bases (these, and what `pointer_bits` has set) and strides of the real tensors are of: 16, 8, 4 or
    2 bytes."""
    bits = (_views.reach_bits(views) | pointer_bits) & 15
    return max(bits & -bits, 2) if bits else 16


def latent_columns(apart: List[Tuple[str, int]], given: Optional[int]) -> Tuple[str, int]:
    """What says head_dim_ckv, and what it is. `apart`: the tensors whose columns are those of latents alone."""
    if given is not None:
        return "head_dim_ckv", given
    if apart:
        return f"as {apart[0][0]} has", apart[0][1]
    return "unless head_dim_ckv is given", _USUAL_LATENT
