"""What the attention functions have in common: how the tensors of a call describe a problem."""

from __future__ import annotations

from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Set, Tuple

from . import _abi, _views
from ._options import Options
from ._views import View
from .errors import InvalidRequest

LONGEST = 1 << 30
_FIELDS = _abi.TENSOR_FIELDS + _abi.BATCH_FIELDS

Views = List[Optional[View]]  # of the tensors of a form


class Problem(NamedTuple):
    """What a form makes of the views of its tensors: those have the axes of attnsmith_tensors here."""

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
    finish: Callable[[Any], Any] = lambda tensor: tensor  # of a new o


class Form:
    """One of the functions: the names of its tensors, q, k, v, out, sinks and alibi_slopes first, then some of the
    fields of attnsmith_batch; which must be given; and what they mean."""

    def __init__(self, names: Tuple[str, ...], required: Set[int],
                 resolve: Callable[[List[Any], Options], Problem]) -> None:
        self.names = names
        self.fields = (0, 1, 2, 3, 5, 6, *map(_FIELDS.index, names[6:]))
        self.required = required
        self.resolve = resolve


def batch_views(**views: Optional[View]) -> Tuple[Optional[View], ...]:
    """The fields of attnsmith_batch, by their names; None for those that are not given."""
    assert views.keys() <= set(_abi.BATCH_FIELDS), views.keys()
    return tuple(views.get(name) for name in _abi.BATCH_FIELDS)


def need_axes(name: str, view: View, accepted: str) -> None:
    if len(view[1]) != accepted.count(",") + 1:
        raise InvalidRequest(f"{name}.shape", str(tuple(view[1])), accepted)


def alignment_of(views: Sequence[View], pointer_bits: int = 0) -> int:
    """The class that bases (these, and what `pointer_bits` has set) and strides of the real tensors are of: 16, 8, 4 or
    2 bytes."""
    bits = (_views.reach_bits(views) | pointer_bits) & 15
    return max(bits & -bits, 2) if bits else 16
