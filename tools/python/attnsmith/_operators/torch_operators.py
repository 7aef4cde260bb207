"""Operators of torch with kernels in C++, over operators in Python that have the calls that these do not serve."""

from __future__ import annotations

import ctypes
from typing import Any, Callable, Dict, List, Optional

import torch
from torch.utils._python_dispatch import _disable_current_modes

from .._base import reports
from .._calls.attend import recipes_of_calls
from ..errors import Unsupported
from . import torch_kernels
from .torch_kernels import Kernels

_registry: Any = torch.library  # whose functions say no types


class Operators:
    """Operators of one namespace, for a dispatch key such as "CUDA". Those in Python are in the namespace attnsmith, with a name
    that begins with one underscore more, if it is that namespace."""

    def __init__(self, native: Kernels, space: str, key: str) -> None:
        self._native, self._space, self._key = native, space, key
        self._numbers: Dict[str, int] = {}
        self._counted: Dict[str, int] = {}

    def add(self, schema: Any, kernel: Callable[..., Any], results: str, refuses_gradients: bool = False,
            own: int = torch_kernels.NONE) -> bool:
        """`schema`: the operator's. `kernel(keys, *arguments)`: its kernel in Python, which gives its results; those that are
        tensors go on. `results`, `own`: as interface.h has them. Whether torch takes it."""
        name = schema.name.rpartition("::")[2]
        other = f"_{name}" if self._space == "attnsmith" else name
        tensors = [i for i, letter in enumerate(results) if letter not in "qk"]
        words = [i for i, argument in enumerate(schema.arguments) if "str" in str(argument.type)]
        gives = ", ".join(["Tensor"] * len(tensors))
        _define(f"{other}({_listed(schema.arguments)}) -> {gives if len(tensors) == 1 else f'({gives})'}", self._key,
                _or_fail(self._native, _learning(self._native, kernel, results, refuses_gradients), tensors, words))
        number = self._native.add(self._space, schema, f"attnsmith::{other}", results, self._key, refuses_gradients, own)
        if number is None:
            return False
        hold(f"{self._space}::{name}", self._key)
        self._numbers[name] = number
        self._counted[name] = self._native.served(number)
        return True

    def remove(self) -> None:
        """Puts back what was there before."""
        for number in self._numbers.values():
            self._native.remove(number)
        self._native.forget()

    def served(self) -> Dict[str, int]:
        """Calls that no Python has seen since reset()."""
        counts = {name: self._native.served(number) - self._counted[name] for name, number in self._numbers.items()}
        return {name: count for name, count in counts.items() if count}

    def reset(self) -> None:
        self._counted = {name: self._native.served(number) for name, number in self._numbers.items()}


_held: List[Any] = []
_defined: Dict[str, Any] = {}  # by schema and key: the library, which stays
_calls: Dict[str, Callable[..., Any]] = {}  # what an operator in Python does now


def kernel_of(name: str, key: str) -> Any:
    """That of an operator now; None before torch 2.10."""
    get_kernel = getattr(_registry, "get_kernel", None)
    return get_kernel and get_kernel(name, key)


def hold(name: str, key: str) -> None:
    """Keeps the kernel that an operator has now: torch would free it when it is replaced, also where a thread is in it."""
    _held.append(kernel_of(name, key))


def _define(schema: str, key: str, call: Callable[..., Any]) -> None:
    """An operator of the namespace attnsmith, which stays: a thread may be in it whenever it is not wanted any more."""
    name = f"{schema} {key}"
    _calls[name] = call
    if name not in _defined:
        library = _defined[name] = _registry.Library("attnsmith", "FRAGMENT")
        if not any(other.startswith(f"{schema} ") for other in _defined if other != name):
            library.define(schema)
        library.impl(schema.partition("(")[0], lambda keys, *arguments, **options: _calls[name](keys, *arguments, **options), key,
                     with_keyset=True)


def _listed(arguments: List[Any]) -> str:
    """Arguments as a schema has them, without defaults, and with the addresses of words."""
    listed = []
    for argument in arguments:
        if argument.kwarg_only and "*" not in listed:
            listed.append("*")
        kind = str(argument.type)
        if kind.startswith("Optional["):
            kind = kind[len("Optional["):-1] + "?"
        listed.append(f"{'int' if kind.startswith('str') else kind} {argument.name}")
    return ", ".join(listed)


def _learning(native: Kernels, kernel: Callable[..., Any], results: str, refuses_gradients: bool) -> Callable[..., Any]:
    """Has the library learn the layouts that a kernel serves by one call. o that is not among the results is the first argument."""
    def call(keys: Any, *arguments: Any, **options: Any) -> Any:
        if refuses_gradients and torch.is_grad_enabled():  # where the library serves nothing
            return kernel(keys, *arguments, **options)
        with recipes_of_calls() as seen:
            given = kernel(keys, *arguments, **options)
        if len(seen) == 1:
            o = given[results.index("o")] if "o" in results else arguments[0]
            native.learn(seen[0], o, given[results.index("l")] if "l" in results else None)
        return given

    return call


def _or_fail(native: Kernels, kernel: Callable[..., Any], tensors: List[int], words: List[int]) -> Callable[..., Any]:
    """Gives those of the results that are `tensors`; of the arguments `words` have addresses. torch's C interface would print an
    exception and lose it: the library gets it apart, and throws it."""
    nothing = [torch.empty(0, device="cpu") for _ in tensors]

    def call(keys: Any, *arguments: Any, **options: Any) -> Any:
        try:
            if words:
                given = list(arguments)
                for i in words:
                    given[i] = ctypes.string_at(given[i]).decode() if given[i] else None
                arguments = tuple(given)
            results = kernel(keys, *arguments, **options)
            given = [results[i] for i in tensors]
        except BaseException as error:
            if not native.fail(error):  # called by its name
                raise
            given = nothing
        return given[0] if len(given) == 1 else tuple(given) if given else None

    return call


def working_kernels() -> Optional[Kernels]:
    """The library, if an exception of Python comes through it and through torch, which is tried once."""
    native = torch_kernels.kernels(torch)
    if native is None or native.is_tried:
        return native
    thrown = Unsupported("a trial")

    def throw(*arguments: Any) -> Any:
        raise thrown

    space = _registry.Library("attnsmith", "FRAGMENT")
    operators = Operators(native, "attnsmith", "CPU")
    try:
        with _disable_current_modes():  # such as that of fake tensors
            space.define("_trial(Tensor q) -> Tensor")
            if operators.add(torch.ops.attnsmith._trial.default._schema, throw, "o"):
                torch.ops.attnsmith._trial(torch.empty(1, device="cpu"))
    except Unsupported as error:
        native.is_tried = error is thrown
    except Exception:
        pass
    finally:
        operators.remove()
    if native.is_tried:
        return native
    reports.warn(f"exceptions do not come through torch {torch.__version__} from C++: calls are served in Python")
    torch_kernels.give_up(native)
    return None
