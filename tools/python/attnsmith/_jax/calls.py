"""What a call of attnsmith.jax asks for, from shapes and dtypes alone: it is traced before there is any memory."""

from __future__ import annotations

import functools
import math
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from .. import functions
from .._base.options import HEADS_FIRST, O_DTYPE, RETURN_LSE, Options
from .._c_api import requests
from .._calls.dispatch import dispatch_now, new_lse_view, new_view, request_words
from .._calls.forms import Form, Problem, alignment_of
from .._tensors import interface, views as _views
from .._tensors.frameworks import KINDS_BY_NAME
from .._tensors.views import View
from ..errors import InvalidRequest

#: The forms of the functions, by their names.
FORMS: Dict[str, Form] = {"attention": functions._DENSE, "varlen_attention": functions._RAGGED,
                          "paged_attention": functions._PAGED_PAIR, "paged_attention of joined pages": functions._PAGED}

# Where tensors are taken to lie, so that a view of a part of one tells where in it the part begins. XLA aligns what it
# hands to a call to 16 bytes at least.
_BASE = 1 << 40

Shaped = Tuple[Tuple[int, ...], str]  # shape and the dtype's name


class Asked(NamedTuple):
    """`request`: of the kernel, as the text that the handler knows it by. `layouts`: of each tensor of the call its
    number among the fields of attnsmith_tensors and attnsmith_batch, that of its buffer among those of the operands and
    results, its first byte there, its dtype as DLPack has it, its rank, its shape and its strides."""

    request: str
    layouts: Tuple[int, ...]
    results: Tuple[Shaped, ...]  # o, and lse where it is asked for
    batch: int
    q_tokens: int
    max_q_len: int
    max_kv_len: int


@functools.lru_cache(maxsize=4096)
def asked(function: str, given: Tuple[str, ...], shaped: Tuple[Shaped, ...], options: Options) -> Asked:
    """`given`: the names of the tensors, in the order of the form's, and `shaped` what these are. Raises InvalidRequest
    naming the tensor or word, Unsupported."""
    form = FORMS[function]
    if options[RETURN_LSE] == HEADS_FIRST:
        options = (*options[:RETURN_LSE], HEADS_FIRST, *options[RETURN_LSE + 1:])  # which is told by its identity
    of_name = {name: _view(name, *one) for name, one in zip(given, shaped)}
    views = [of_name.get(name) for name in form.names]
    problem = form.resolve(views, options)
    dispatch = dispatch_now()
    o_kind = dispatch.output_kinds.of(problem.q, None, problem.options[O_DTYPE])
    results = [((*problem.rows, problem.v[1][-1]), _NAMES[o_kind])]
    o, lse = problem.as_kernel(new_view(results[0][0], o_kind, problem.q)), None
    if problem.options[RETURN_LSE]:
        shape, lse = new_lse_view(problem)
        results.append((tuple(shape), "float32"))
    alignment = alignment_of((*problem.inputs, o))
    words = request_words(problem, o_kind, alignment, views[4] is not None, views[5] is not None)
    requests.parse(dispatch.library, words)
    _check(form, problem, of_name)
    return Asked(requests.to_json(words).decode(), _layouts(form, given, problem, o, lse, views), tuple(results),
                 problem.batch, math.prod(problem.q[1][:-2]), problem.max_q_len, problem.max_kv_len)


_NAMES = {kind: name for name, kind in KINDS_BY_NAME.items()}


def _view(name: str, shape: Tuple[Any, ...], dtype: str) -> View:
    if dtype not in KINDS_BY_NAME:
        interface.refuse_dtype(name, dtype)
    if not all(extent.__class__ is int for extent in shape):
        raise InvalidRequest(f"{name}.shape", str(shape), "extents that are numbers when the call is traced")
    return _BASE, shape, _views.compact_strides(shape), KINDS_BY_NAME[dtype], _views.on_device(0)


def _layouts(form: Form, given: Tuple[str, ...], problem: Problem, o: View, lse: Optional[View],
             views: Sequence[Optional[View]]) -> Tuple[int, ...]:
    name_of = dict(zip(form.fields, form.names))
    if name_of[2] not in given:  # v is in one tensor with k
        name_of[2] = name_of[1]
    described: List[int] = []
    fields = (problem.q, problem.k, problem.v, o, lse, views[4], views[5], None, None, None, None, *problem.batch_views)
    for field, view in enumerate(fields):
        if view is None:
            continue
        pointer, shape, strides, kind, _ = view
        is_result = field in (3, 4)  # o and lse
        buffer = len(given) + field - 3 if is_result else given.index(name_of[field])
        described += (field, buffer, 0 if is_result else pointer - _BASE, kind >> 32, len(shape), *shape, *strides)
    return tuple(described)


def _check(form: Form, problem: Problem, of_name: Dict[str, View]) -> None:
    """Refuses, by name, what the library would refuse when it binds the tensors, which is when the program runs: here
    the caller still sees where it comes from."""
    q, k, v = problem.q, problem.k, problem.v
    k_name, v_name = form.names[1], form.names[2] if form.names[2] in of_name else form.names[1]
    for name, view in ((k_name, k), (v_name, v)):
        if view[3] != q[3]:
            raise InvalidRequest(f"{name}.dtype", _views.WORDS[view[3]], f"{_views.WORDS[q[3]]}, as q")
    _check_shape(k_name, k, (problem.batch if problem.kv == "dense" else None, *[None] * (len(k[1]) - 2), q[1][-1]))
    _check_shape(v_name, v, (*k[1][:-1], None))
    for name in ("sinks", "alibi_slopes"):
        if name in of_name:
            if of_name[name][3] != _views.FP32:
                raise InvalidRequest(f"{name}.dtype", _views.WORDS[of_name[name][3]], "fp32")
            _check_shape(name, of_name[name], (q[1][-2],))
    index = None
    rows = None if "table_rows" in of_name else problem.batch
    for name, shape in (("q_lens", (problem.batch,)), ("kv_lens", (problem.batch,)), ("table_rows", (problem.batch,)),
                        ("q_indptr", (problem.batch + 1,)), ("kv_indptr", (problem.batch + 1,)),
                        ("page_table", (rows, None))):
        if name in of_name:
            index = index or (name, of_name[name][3])
            if of_name[name][3] not in (_views.INT32, _views.INT64) or of_name[name][3] != index[1]:
                others = "int32 or int64" if index[0] == name else f"{_views.WORDS[index[1]]}, as {index[0]}"
                raise InvalidRequest(f"{name}.dtype", _views.WORDS[of_name[name][3]], others)
            _check_shape(name, of_name[name], shape)


def _check_shape(name: str, view: View, wanted: Sequence[Optional[int]]) -> None:
    """None is any extent."""
    shape = tuple(view[1])
    if len(shape) != len(wanted) or any(want not in (None, extent) for want, extent in zip(wanted, shape)):
        text = ", ".join("any" if want is None else str(want) for want in wanted)
        raise InvalidRequest(f"{name}.shape", str(shape), f"[{text}]")
