"""The words of the plain functions that are no tensors, each as a value of one type: what was worked out for a call is
looked up by them, and to a dict 1, 1.0 and True are one."""

from __future__ import annotations

import numbers
import operator
import sys
from typing import Any, Optional, Sequence, Tuple

from ..errors import InvalidRequest
from .arguments import is_iterable
from .integers import shown

Options = Tuple[Any, ...]
# What every attention function has, in the order of Options; a function's own words come behind.
_NAMES = ("causal", "window", "attention_chunk", "softcap", "scale", "return_lse", "precision", "consistency",
          "o_dtype")
COMMON = len(_NAMES)
RETURN_LSE = _NAMES.index("return_lse")
O_DTYPE = _NAMES.index("o_dtype")
HEADS_FIRST = ("HND",)  # of return_lse, instead of True: the axis of the heads lies before that of the tokens


def ordered_lse(return_lse: Any, lse_order: Any) -> Any:
    """The word return_lse of Options, where lse_order is not plainly "NHD". Raises InvalidRequest."""
    check_order("lse_order", lse_order)
    return HEADS_FIRST if flag("return_lse", return_lse) and lse_order == "HND" else return_lse


def check_order(name: str, value: Any) -> None:
    """Raises InvalidRequest for what is no order of axes; comparing an array to a word may fail."""
    if not isinstance(value, str) or value not in ("NHD", "HND"):
        raise InvalidRequest(name, shown(value), '"NHD" or "HND"')


def flag(name: str, value: Any) -> bool:
    """A bool, of Python or numpy. Raises InvalidRequest for all else, 0 and 1 too, as torch does."""
    if isinstance(value, bool):
        return value
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.bool_):
        return bool(value)
    raise InvalidRequest(name, shown(value), "True or False")


def place(name: str, value: Any, words: Sequence[str]) -> int:
    """Where a word stands among those that there are. Raises InvalidRequest."""
    if not isinstance(value, str) or value not in words:
        raise InvalidRequest(name, shown(value), ", ".join(words))
    return words.index(value)


def number(name: str, value: Any) -> Optional[float]:
    """A number as a float, or None. Raises InvalidRequest."""
    if value is None or value.__class__ is float:
        return value
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            pass
    raise InvalidRequest(name, shown(value), "a number, or None")


def pair(window: Any) -> "Tuple[Optional[int], Optional[int]]":
    """(left, right), each as the library takes it: None or -1 is no bound. Raises InvalidRequest."""
    if isinstance(window, (str, bytes)) or not hasattr(window, "__len__") or not is_iterable(window) or len(window) != 2:
        remedy = f", such as ({shown(window - 1)}, 0)" if isinstance(window, int) and window > 0 else ""
        raise InvalidRequest("window", shown(window), "a pair (left, right), with None for no bound; a sliding window "
                             f"of W tokens is (W - 1, 0){remedy}")
    left, right = window
    return _bound("window_left", left), _bound("window_right", right)


def causal_from_the_top(q_len: int, kv_len: int) -> Tuple[int, bool, Optional[Tuple[Any, Any]]]:
    """torch's is_causal, by which query i sees the keys up to i, as how many keys count, causal and window. Ours are counted
    from the ends, the two being aligned, so that query i lies at key i + kv_len - q_len."""
    if q_len > kv_len:  # query i lies q_len - kv_len keys too early, and looks as far ahead
        return kv_len, False, (None, q_len - kv_len)
    return q_len, True, None  # no query sees the keys from q_len on: without them the lengths are equal


def to_either_side(reach: Optional[int], causal: bool) -> "Optional[Tuple[int, Optional[int]]]":
    """The window of a number that reaches as far to either side, which a causal mask ends at the query: with it a bound to
    the right is refused. None is no window."""
    return None if reach is None else (reach, None if causal else reach)


def is_pair(window: Any) -> bool:
    """Whether it is what pair() gives: a quick look for what is seldom anything else."""
    if window.__class__ is not tuple or len(window) != 2:
        return False
    left, right = window
    return (left is None or left.__class__ is int) and (right is None or right.__class__ is int)


def plain(options: Options) -> Options:
    """The first of these are those of _NAMES. Raises InvalidRequest naming the word."""
    causal, window, chunk, softcap, scale, return_lse, *words = options
    return (flag("causal", causal), None if window is None else pair(window), _chunk(chunk), number("softcap", softcap),
            number("scale", scale), return_lse if return_lse is HEADS_FIRST else flag("return_lse", return_lse), *words)


def is_plain(options: Options) -> bool:
    """Whether they are what plain() gives: a quick look for what is seldom anything else."""
    causal, window, chunk, softcap, scale, return_lse = options[:6]
    return ((causal is True or causal is False) and (return_lse is False or return_lse is True or return_lse is HEADS_FIRST)
            and (window is None or is_pair(window)) and (chunk is None or chunk.__class__ is int)
            and (softcap is None or softcap.__class__ is float) and (scale is None or scale.__class__ is float))


def refuse_unhashable(options: Options) -> None:
    """Names the word that made a look-up fail; nothing where it was none of these."""
    for name, value in zip(_NAMES, options):
        try:
            hash(value)
        except TypeError:
            raise InvalidRequest(name, shown(value), "a word") from None


def _bound(name: str, value: Any) -> Optional[int]:
    return _integer(name, value, "an integer from 0; -1 or None for no bound")


def _chunk(value: Any) -> Optional[int]:
    return _integer("attention_chunk", value, "an integer from 1; 0 or None for no chunks")


def _integer(name: str, value: Any, accepted: str) -> Optional[int]:
    if value is None or value.__class__ is int:
        return value
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise InvalidRequest(name, shown(value), accepted) from None
