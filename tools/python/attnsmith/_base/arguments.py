"""Calls whose arguments do not fit the function: an error that names the argument, and the right word for a near miss.

Every public function and class of attnsmith has named(), named_methods(), checks_itself() or traceable(), so a wrong argument
is always an InvalidRequest. The functions of attnsmith.compat raise TypeError instead, as their originals do."""

from __future__ import annotations

import difflib
import functools
import inspect
from typing import Any, Callable, Dict, Iterable, NoReturn, TypeVar, cast

from ..errors import InvalidRequest
from . import reports
from .integers import shown

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Class = TypeVar("_Class", bound=type)

# Words that are not near by their letters, with what they stand for.
_SYNONYMS = {"cache": "cache_dirs", "cache_path": "cache_dirs", "sm_scale": "scale", "softmax_scale": "scale",
             "window_size": "window", "is_causal": "causal", "logits_soft_cap": "softcap", "block_table": "page_table",
             "cu_seqlens_q": "q_indptr", "cu_seqlens_k": "kv_indptr", "max_seqlen_q": "max_q_len",
             "max_seqlen_k": "max_kv_len", "cache_seqlens": "kv_lens", "seq_lens": "kv_lens", "s_aux": "sinks",
             "dry_run": "compile=False", "specs": "requests"}
# Arguments that other functions have: not a near miss where they are not taken.
_ELSEWHERE = frozenset(("k_scale", "v_scale", "kv_dtype", "return_status", "out", "stream"))


def named(function: _Function) -> _Function:
    """The function, whose errors about unknown, missing and surplus arguments are InvalidRequest. A call that fits costs
    nothing more than one of Python's functions does."""
    @functools.wraps(function)
    def call(*arguments: Any, **words: Any) -> Any:
        try:
            return function(*arguments, **words)
        except TypeError:
            check_fit(function, arguments, words)
            raise

    return cast(_Function, call)


def named_methods(kind: _Class) -> _Class:
    """named() of a class's public methods, and of what makes its objects."""
    for name, member in list(vars(kind).items()):
        is_public = name == "__init__" or not name.startswith("_")
        if inspect.isfunction(member) and is_public and not hasattr(member, "__signature__"):
            setattr(kind, name, named(member))
    return kind


def by_name(*names: str) -> Callable[[_Function], _Function]:
    """Decorates a function whose keyword parameters `names` could once be given by position, in this order. They still can be,
    with a DeprecationWarning."""
    def decorate(function: _Function) -> _Function:
        kinds = [one.kind for one in inspect.signature(function).parameters.values()]
        most = kinds.count(inspect.Parameter.POSITIONAL_OR_KEYWORD)

        @functools.wraps(function)
        def call(*arguments: Any, **words: Any) -> Any:
            surplus = arguments[most:]
            if surplus and len(surplus) <= len(names):
                given = dict(zip(names, surplus))
                for name in given.keys() & words.keys():
                    raise InvalidRequest(name, "given by position and by name", "one of them")
                title = function.__qualname__.replace(".__init__", "")
                reports.warn(f"{title}() takes {', '.join(given)} by name", DeprecationWarning)
                arguments, words = arguments[:most], {**given, **words}
            return function(*arguments, **words)

        return cast(_Function, call)

    return decorate


def checks_itself(function: _Function) -> _Function:
    """For a function that is called too often for the wrapper of named(): it takes surplus and unknown arguments, and passes
    them to check_fit(). Its signature is the one without them."""
    signature = inspect.signature(function)
    cast(Any, function).__signature__ = signature.replace(parameters=[
        one for one in signature.parameters.values() if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)])
    return function


def check_fit(function: Callable[..., Any], arguments: "tuple[Any, ...]", words: Dict[str, Any]) -> None:
    """Raises InvalidRequest where a call with these arguments does not fit the function."""
    signature = inspect.signature(function)
    try:
        signature.bind(*arguments, **words)
    except TypeError:
        kinds = {parameter.kind for parameter in signature.parameters.values()}
        known = {name: parameter for name, parameter in signature.parameters.items() if name != "self"
                 and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)}
        title = function.__qualname__.replace(".__init__", "")
        for name in words:
            if name not in known and inspect.Parameter.VAR_KEYWORD not in kinds:
                refuse_unknown(name, title, known)
        at_most = len(arguments) - ("self" in signature.parameters)
        for i, (name, parameter) in enumerate(known.items()):
            is_given = name in words or (i < at_most and parameter.kind is parameter.POSITIONAL_OR_KEYWORD)
            if parameter.default is parameter.empty and not is_given:
                raise InvalidRequest(name, "nothing", f"it: {title}() needs it") from None
            if name in words and i < at_most and parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
                raise InvalidRequest(name, "given by position and by name", "one of them") from None
        raise InvalidRequest("arguments", f"{at_most} without a name", f"fewer for {title}(): words are given by name") from None


def refuse_unknown(name: str, title: str, known: Iterable[str]) -> NoReturn:
    known = list(known)
    near = _SYNONYMS.get(name)
    if near is None or near.partition("=")[0] not in known:
        near = None if name in _ELSEWHERE else next(iter(difflib.get_close_matches(name, known, 1)), None)
    raise InvalidRequest(name, f"an argument of {title}()", f"{near} (did you mean that?)" if near else
                         f"one of {', '.join(known)}") from None


def check_callable(name: str, value: Any, arguments: str) -> None:
    """Raises InvalidRequest for what is not to be called, and is not None. `arguments`: what it is called with."""
    if value is not None and not callable(value):
        raise InvalidRequest(name, shown(value), f"something to call with {arguments}, or None")


def check_iterable(name: str, value: Any, accepted: str) -> "list[Any]":
    """A list of what is one. Raises InvalidRequest."""
    if isinstance(value, (str, bytes)) or not is_iterable(value):
        raise InvalidRequest(name, shown(value), accepted)
    return list(value)


def is_iterable(value: Any) -> bool:
    """False for arrays without axes, too, which have __iter__ as all arrays have it."""
    try:
        iter(value)
    except TypeError:
        return False
    return True
