"""The plain functions as operators of torch.library, which torch.compile and torch.export keep in their graphs.

Each function has two operators, torch.ops.attnsmith.NAME, which gives o, and NAME_with_lse, which gives (o, lse). Their
schemas follow from the functions' signatures. What they compute is what the functions do: a graph calls them with the
tensors that it has. Nothing imports this module before a function is traced.
"""

from __future__ import annotations

import inspect
from typing import Any, Callable, Dict, List, cast

import torch

from . import _frameworks, _views, functions
from .errors import Unsupported

_NOT_TRACED = ("out", "return_status", "stream")
# A word of Python, by its annotation, as the arguments of a schema.
_TYPES = {"bool": "bool", "Optional[int]": "SymInt?", "Optional[float]": "float?", "PageOrder": "str",
          "Precision": "str", "Consistency": "str", "Optional[ODType]": "str?", "Optional[KvDType]": "str?"}
_WORDS = {dtype: _views.WORDS[kind] for dtype, kind in _frameworks.Torch(torch).kinds.items()}
_registry: Any = torch.library  # whose functions say no types
_LIBRARY = _registry.Library("attnsmith", "DEF")


def _value_columns(tensors: Dict[str, Any]) -> Any:
    return tensors["v"].shape[-1]


def _cached_columns(tensors: Dict[str, Any]) -> Any:
    return (tensors["kv_cache"] if tensors["v_cache"] is None else tensors["v_cache"]).shape[-1]


def _latent_columns(tensors: Dict[str, Any]) -> Any:
    apart = [(name, tensors[name].shape[-1]) for name, position in (("q", "q_pe"), ("ckv", "kpe"))
             if tensors[position] is not None]
    return functions.latent_columns(apart, tensors["head_dim_ckv"])[1]


# By function, the columns of o, from the arguments of its operators.
_COLUMNS: Dict[str, Callable[[Dict[str, Any]], Any]] = {
    "attention": _value_columns, "varlen_attention": _value_columns, "paged_attention": _cached_columns,
    "mla_attention": _latent_columns}


def word_of(dtype: Any) -> Any:
    """A dtype as a word: torch's own has one."""
    return _WORDS.get(dtype, dtype) if isinstance(dtype, torch.dtype) else dtype


def refuse(name: str) -> None:
    raise Unsupported(f"{name} is not taken while torch.compile or torch.export traces a call: leave it out there")


class _Operators:
    """What one function has: its schema, and the code that goes from the one to the other."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.function = getattr(functions, name).__wrapped__
        self.schema: List[str] = []  # of the operators' arguments
        self.names: List[str] = []
        self.parameters: List[str] = []  # the same with their defaults, which torch leaves to the callee
        self.passed: List[str] = []  # what an operator hands to the function
        self.prepared: List[str] = []  # statements before
        signature: List[str] = []
        behind = False
        for parameter in inspect.signature(self.function).parameters.values():
            if parameter.kind is parameter.KEYWORD_ONLY and not behind:
                signature.append("*")
                behind = True
            default = "" if parameter.default is parameter.empty else f"={parameter.default!r}"
            signature.append(parameter.name + default)
            if parameter.name in _NOT_TRACED:
                self.prepared.append(f"if {parameter.name} is not None and {parameter.name} is not False: "
                                     f"refuse({parameter.name!r})")
            elif parameter.name != "return_lse":
                self.add(parameter.name, str(parameter.annotation), default)
        self.traced = self.compiled(f"traced({', '.join(signature)})", [
            *self.prepared, f"if return_lse: return with_lse({', '.join(self.names)})",
            f"return plain({', '.join(self.names)})"])

    def add(self, name: str, annotation: str, default: str) -> None:
        if name == "kv_cache":  # one tensor of both, or a pair
            self.prepared.append("kv_cache, v_cache = kv_cache if isinstance(kv_cache, (tuple, list)) else "
                                 "(kv_cache, None)")
            self.put("kv_cache", "Tensor")
            self.put("v_cache", "Tensor?", "=None")
            self.passed.append("kv_cache=kv_cache if v_cache is None else (kv_cache, v_cache)")
        elif annotation == "Window":
            self.prepared.append("window_left, window_right = (None, None) if window is None else window")
            self.put("window_left", "SymInt?", "=None")
            self.put("window_right", "SymInt?", "=None")
            self.passed.append("window=None if window_left is None and window_right is None else "
                               "(window_left, window_right)")
        elif annotation == "Any":
            self.put(name, "Tensor" + ("?" if default else ""), default)
            self.passed.append(f"{name}={name}")
        else:
            if annotation in ("Optional[ODType]", "Optional[KvDType]"):
                self.prepared.append(f"{name} = word_of({name})")
            self.put(name, _TYPES[annotation], default.replace("'", '"'))
            self.passed.append(f"{name}={name}")

    def put(self, name: str, kind: str, default: str = "") -> None:
        self.schema.append(f"{kind} {name}{default}")
        self.names.append(name)
        self.parameters.append(name + default)

    def compiled(self, head: str, lines: List[str], **names: Any) -> Callable[..., Any]:
        """Written out, since a call by keywords costs less than one that collects them, and Dynamo traces it."""
        space: Dict[str, Any] = {"refuse": refuse, "word_of": word_of, "function": self.function, **names}
        space.update(plain=lambda *arguments: self.operator(False)(*arguments),
                     with_lse=lambda *arguments: self.operator(True)(*arguments))
        exec(f"def {head}:\n    " + "\n    ".join(lines), space)
        return cast(Callable[..., Any], space[head.partition("(")[0]])

    def taking_all(self, take: Callable[..., Any]) -> Callable[..., Any]:
        """take(*all arguments of an operator), of which torch leaves out the last that are as their defaults."""
        return self.compiled(f"call({', '.join(self.parameters)})", [f"return take({', '.join(self.names)})"], take=take)

    def operator(self, with_lse: bool) -> Any:
        return getattr(torch.ops.attnsmith, self.name + "_with_lse" * with_lse).default

    def define(self, with_lse: bool) -> None:
        name = self.name + "_with_lse" * with_lse
        given = "(Tensor, Tensor)" if with_lse else "Tensor"
        _LIBRARY.define(f"{name}({', '.join(self.schema)}) -> {given}")
        head = f"run({', '.join(self.parameters)})"
        run = self.compiled(head, [f"return function({', '.join(self.passed)}, return_lse={with_lse})"])
        for backend in ("CUDA", "CPU"):  # whose tensors the function refuses by name
            _LIBRARY.impl(name, run, backend)

        def fake(*arguments: Any) -> Any:
            given = dict(zip(self.names, arguments))
            q = given["q"]
            dtype = torch.float32 if given["o_dtype"] in ("fp32", "float32") else q.dtype
            o = q.new_empty((*q.shape[:-1], _COLUMNS[self.name](given)), dtype=dtype)
            if not with_lse:
                return o
            rows = q.shape[:-1]
            has_tokens = len(rows) == 3 or given.get("q_indptr") is not None
            if given["lse_order"] == "HND" and has_tokens:
                rows = (*rows[:-2], rows[-1], rows[-2])
            return o, q.new_empty(rows, dtype=torch.float32)

        def of_gradients(*arguments: Any) -> Any:
            if torch.is_grad_enabled():
                for argument, of_name in zip(arguments, self.names):
                    if isinstance(argument, torch.Tensor) and argument.requires_grad:
                        _frameworks.refuse_gradient(of_name)
            with torch._C._AutoDispatchBelowAutograd():
                return self.operator(with_lse)(*arguments)

        def mapped(info: Any, dims: Any, *arguments: Any) -> Any:
            raise Unsupported(f"torch.vmap over attnsmith.{self.name} is not supported: give the batch an axis of q, k "
                              "and v")

        _registry.register_fake(f"attnsmith::{name}", self.taking_all(fake), lib=_LIBRARY)
        _registry.register_vmap(f"attnsmith::{name}", mapped, lib=_LIBRARY)
        _LIBRARY.impl(name, self.taking_all(of_gradients), "Autograd")


def _traced(name: str) -> Callable[..., Any]:
    operators = _Operators(name)
    for with_lse in (False, True):
        operators.define(with_lse)
    return operators.traced


#: What a traced call of each function runs.
TRACED: Dict[str, Callable[..., Any]] = {name: _traced(name) for name in _COLUMNS}
