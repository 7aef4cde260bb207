"""Which dtype the output of the plain functions has."""

from __future__ import annotations

from typing import Any, Dict, Optional, Tuple

from .._c_api import requests
from .._c_api.library import Library
from .._tensors import views as _views
from .._tensors.views import View
from ..errors import InvalidRequest


def dtype_of(q: View) -> str:
    """The word for what q is made of. Raises InvalidRequest for integers."""
    dtype = _views.WORDS[q[3]]
    if dtype not in ("fp16", "bf16", "fp32"):  # the library says what is not supported
        raise InvalidRequest("q.dtype", dtype, "fp16 or bf16")
    return dtype


class OutputKinds:
    """The library says which words there are for dtypes, and which of them o may have. Its answers are kept."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._known: Dict[Tuple[int, Any], int] = {}

    def of(self, q: View, out: Optional[View], o_dtype: Any) -> int:
        """The kind of o: what `o_dtype` says, else that of `out`, else that of q. Raises InvalidRequest naming the word
        or the tensor."""
        if o_dtype is not None:
            kind = self._kind(q, o_dtype)
            if out is not None and out[3] != kind:
                raise InvalidRequest("out.dtype", _views.WORDS[out[3]],
                                     f"{_views.WORDS[kind]}, as o_dtype says; without o_dtype, out decides")
            return kind
        if out is None or out[3] == q[3]:
            return q[3]
        try:
            return self._kind(q, _views.WORDS[out[3]])
        except InvalidRequest as error:
            if error.field != "o_dtype":
                raise
            raise InvalidRequest("out.dtype", _views.WORDS[out[3]], error.accepted) from None

    def _kind(self, q: View, o_dtype: Any) -> int:
        kind = self._known.get((q[3], o_dtype))
        if kind is None:
            word = requests.filled_in(self._library, "o_dtype", dtype=dtype_of(q), o_dtype=o_dtype)
            kind = self._known[q[3], o_dtype] = _views.KINDS[word]
        return kind
