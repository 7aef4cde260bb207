"""The plain functions as operators of torch.library, which torch.compile and torch.export keep in their graphs.

An attention function has four operators: torch.ops.attnsmith.NAME, which gives o; NAME_with_lse, which gives (o, lse);
and NAME_out and NAME_out_with_lse, which write o to their first argument and give nothing, or lse. merge_states has the
same, and append has append, which gives nothing: a q_out that is not given is made before. Their schemas follow from
the functions' signatures, and what they compute is what the functions do: a graph calls them with the tensors that it
has. Where there is the library of torch_kernels, it serves attention of known layouts. Under autocast q, k and v of fp32
are taken as of its dtype. Only attnsmith.torch imports this module before a function is traced.
"""

from __future__ import annotations

import inspect
from typing import Any, Callable, Dict, List, Optional, Tuple, cast

import torch

from .._base.options import pair
from .._calls.forms import latent_columns
from .._tensors import frameworks, views as _views
from ..errors import Unsupported
from .torch_operators import Operators, kernel_of, working_kernels
from .tracing import TRACEABLE

_NOT_TRACED = ("return_status", "stream")
# A word of Python, by its annotation, as the arguments of a schema.
_TYPES = {"bool": "bool", "Optional[int]": "SymInt?", "Optional[float]": "float?", "PageOrder": "str",
          "Precision": "str", "Consistency": "str", "Optional[ODType]": "str?", "Optional[KvDType]": "str?",
          "Optional[PageOrder]": "str?", "Optional[Rope]": "str?"}
_DTYPES = ("Optional[ODType]", "Optional[KvDType]")  # which may be torch's own
_WRITTEN = ("k_cache", "v_cache", "kpe_cache", "q_out", "k_scale", "v_scale")  # by append
_CAST = ("q", "k", "v", "q_pe", "kpe")  # by autocast
_WORDS = {dtype: _views.WORDS[kind] for dtype, kind in frameworks.Torch(torch).kinds.items()}
_OF_WORDS = {word: dtype for dtype, word in _WORDS.items()}
_registry: Any = torch.library  # whose functions say no types
_LIBRARY = _registry.Library("attnsmith", "DEF")
_core: Any = torch._C
_kernels = working_kernels()
_native = None if _kernels is None else Operators(_kernels, "attnsmith", "CUDA")


def _value_columns(tensors: Dict[str, Any]) -> Any:
    return tensors["v"].shape[-1]


def _cached_columns(tensors: Dict[str, Any]) -> Any:
    return (tensors["kv_cache"] if tensors["v_cache"] is None else tensors["v_cache"]).shape[-1]


def _latent_columns(tensors: Dict[str, Any]) -> Any:
    apart = [(name, tensors[name].shape[-1]) for name, position in (("q", "q_pe"), ("ckv", "kpe"))
             if tensors[position] is not None]
    return latent_columns(apart, tensors["head_dim_ckv"])[1]


# By function, the columns of o, from the arguments of its operators.
_COLUMNS: Dict[str, Callable[[Dict[str, Any]], Any]] = {
    "attention": _value_columns, "varlen_attention": _value_columns, "paged_attention": _cached_columns,
    "mla_attention": _latent_columns}


def word_of(dtype: Any) -> Any:
    """A dtype as a word: torch's own has one."""
    return _WORDS.get(dtype, dtype) if isinstance(dtype, torch.dtype) else dtype


def sides_of(window: Any) -> Any:
    """(left, right), which the operator's function checks. Raises InvalidRequest for what is no pair."""
    return window if isinstance(window, (tuple, list)) and len(window) == 2 else pair(window)


def states_of(tensor: Any) -> List[Any]:
    """The states of merge_states, which one tensor may have as an axis."""
    return list(tensor) if isinstance(tensor, (list, tuple)) else list(tensor.unbind(1))


def into(out: Any, inputs: Tuple[Any, ...], compute: Callable[[Any], Any]) -> Any:
    """compute(out), or that of other memory and a copy, where `out` has memory of an input: a compiler takes a copy of a tensor
    for the tensor itself where it sees no use of that any more, the operator's own not counted."""
    memory = out.untyped_storage().data_ptr()
    for given in inputs:
        for tensor in given if isinstance(given, list) else (given,):
            if tensor is not None and tensor.untyped_storage().data_ptr() == memory:
                apart = torch.empty_like(out)
                result = compute(apart)
                out.copy_(apart)
                return result
    return compute(out)


def refuse(name: str) -> None:
    raise Unsupported(f"{name} is not taken while torch.compile or torch.export traces a call: leave it out there")


def _fake_attention(name: str, given: Dict[str, Any], with_lse: bool) -> Tuple[Any, Any]:
    q = given["q"]
    dtype = torch.float32 if given["o_dtype"] in ("fp32", "float32") else q.dtype
    o = q.new_empty((*q.shape[:-1], _COLUMNS[name](given)), dtype=dtype)
    rows = q.shape[:-1]
    if given["lse_order"] == "HND" and (len(rows) == 3 or given.get("q_indptr") is not None):
        rows = (*rows[:-2], rows[-1], rows[-2])
    return o, q.new_empty(rows, dtype=torch.float32) if with_lse else None


def _fake_merge(name: str, given: Dict[str, Any], with_lse: bool) -> Tuple[Any, Any]:
    state = given["o_states"][0]
    return state.new_empty(state.shape), state.new_empty(state.shape[:-1], dtype=torch.float32) if with_lse else None


def _is_native(name: str, computed: Callable[..., Any], results: str) -> bool:
    """Has the library serve an operator, over its function. Whether it does."""
    if _native is None:
        return False

    def kernel(keys: Any, *arguments: Any) -> Tuple[Any, ...]:
        given = computed(*arguments)
        return given if isinstance(given, tuple) else (given,)[:len(results)]

    return _native.add(getattr(torch.ops.attnsmith, name).default._schema, kernel, results, refuses_gradients=True)


class _Operators:
    """What one function has: the schema of its operators, and the code that goes from the one to the other."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.function = TRACEABLE[name]
        self.schema: List[str] = []  # of the operators' arguments
        self.names: List[str] = []
        self.parameters: List[str] = []  # the same with their defaults, which torch leaves to the callee
        self.passed: List[str] = []  # what an operator hands to the function
        self.prepared: List[str] = []  # statements before
        self.signature: List[str] = []  # of what is traced
        self.tensors: List[str] = []  # the names of arguments that are tensors, or lists of them
        behind = False
        for parameter in inspect.signature(self.function).parameters.values():
            if parameter.kind is parameter.KEYWORD_ONLY and not behind:
                self.signature.append("*")
                behind = True
            default = "" if parameter.default is parameter.empty else f"={parameter.default!r}"
            self.signature.append(parameter.name + default)
            if parameter.name in _NOT_TRACED:
                self.prepared.append(f"if {parameter.name} is not None and {parameter.name} is not False: "
                                     f"refuse({parameter.name!r})")
            elif parameter.name not in ("return_lse", "out"):
                self.add(parameter.name, str(parameter.annotation), default)

    def add(self, name: str, annotation: str, default: str) -> None:
        if name == "kv_cache":  # one tensor of both, or a pair
            self.prepared.append("kv_cache, v_cache = kv_cache if isinstance(kv_cache, (tuple, list)) else "
                                 "(kv_cache, None)")
            self.put("kv_cache", "Tensor")
            self.put("v_cache", "Tensor?", "=None")
            self.passed.append("kv_cache=kv_cache if v_cache is None else (kv_cache, v_cache)")
        elif name in ("o_states", "lse_states"):
            self.prepared.append(f"{name} = states_of({name})")
            self.put(name, "Tensor[]")
            self.passed.append(f"{name}={name}")
        elif annotation == "Window":
            self.prepared.append("window_left, window_right = (None, None) if window is None else sides_of(window)")
            self.put("window_left", "SymInt?", "=None")
            self.put("window_right", "SymInt?", "=None")
            self.passed.append("window=None if window_left is None and window_right is None else "
                               "(window_left, window_right)")
        elif annotation == "Any":
            written = f"({chr(ord('a') + len(self.names))}!)" if self.name == "append" and name in _WRITTEN else ""
            self.put(name, f"Tensor{written}" + ("?" if default else ""), default)
            self.passed.append(f"{name}={name}")
        else:
            if annotation in _DTYPES:
                self.prepared.append(f"{name} = word_of({name})")
            self.put(name, _TYPES[annotation], default.replace("'", '"'))
            self.passed.append(f"{name}={name}")

    def put(self, name: str, kind: str, default: str = "") -> None:
        if kind.startswith("Tensor"):
            self.tensors.append(name)
        self.schema.append(f"{kind} {name}{default}")
        self.names.append(name)
        self.parameters.append(name + default)

    def compiled(self, head: str, lines: List[str], **names: Any) -> Callable[..., Any]:
        """Written out, since a call by keywords costs less than one that collects them, and Dynamo traces it."""
        space: Dict[str, Any] = {"refuse": refuse, "word_of": word_of, "states_of": states_of, "sides_of": sides_of,
                                 "into": into, "function": self.function, **names}
        exec(f"def {head}:\n    " + "\n    ".join(lines), space)
        return cast(Callable[..., Any], space[head.partition("(")[0]])

    def define(self, suffix: str, gives: str, run: str, fake: Callable[[Dict[str, Any]], Any], out: bool = False,
               results: Optional[str] = None) -> None:
        """An operator, which does what the statement `run` does, and without a GPU gives what `fake` does. out: its first
        argument is a tensor to write to. results: by letters, where calls of known layouts need no Python."""
        name = self.name + suffix
        schema, names, parameters = self.schema, self.names, self.parameters
        if out:
            schema, names, parameters = ["Tensor(o!) out", *schema], ["out", *names], ["out", *parameters]
        writes = [of_name for of_name, argument in zip(names, schema) if "!" in argument]
        _LIBRARY.define(f"{name}({', '.join(schema)}) -> {gives}")
        computed = self.compiled(f"run({', '.join(parameters)})", [run])
        _LIBRARY.impl(name, computed, "CPU")  # whose tensors the function refuses by name
        if results is None or not _is_native(name, computed, results):
            _LIBRARY.impl(name, computed, "CUDA")

        def taking_all(take: Callable[..., Any]) -> Callable[..., Any]:
            """take(all arguments by name), of which torch leaves out the last that are as their defaults."""
            given = ", ".join(f"{name}={name}" for name in names)
            return self.compiled(f"call({', '.join(parameters)})", [f"return take(dict({given}))"], take=take)

        def again(given: Dict[str, Any]) -> Any:
            return getattr(torch.ops.attnsmith, name).default(*given.values())

        def without_a_gpu(given: Dict[str, Any]) -> Any:
            if torch.is_grad_enabled():  # the functions see to that where there is one
                for of_name, argument in given.items():
                    for tensor in argument if isinstance(argument, list) else [argument]:
                        if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
                            frameworks.refuse_gradient(of_name)
            return fake(given)

        def writing(given: Dict[str, Any]) -> Any:
            torch.autograd.graph.increment_version([given[of_name] for of_name in writes if given[of_name] is not None])
            with _core._AutoDispatchBelowADInplaceOrView():
                return again(given)

        def of_autocast(given: Dict[str, Any]) -> Any:
            dtype = torch.get_autocast_dtype("cuda")
            for of_name in _CAST:
                tensor = given.get(of_name)
                if tensor is not None and tensor.dtype == torch.float32:
                    given[of_name] = tensor.to(dtype)
            with _core._ExcludeDispatchKeyGuard(_core.DispatchKeySet(_core.DispatchKey.AutocastCUDA)):
                return again(given)

        def transformed(keys: Any, *arguments: Any, **words: Any) -> Any:
            kind = _core._functorch.peek_interpreter_stack().key()
            if kind == _core._functorch.TransformType.Functionalize and before is not None:
                return before.call_boxed(keys, *arguments, **words)
            if kind == _core._functorch.TransformType.Vmap:
                mapped(None, None)
            raise Unsupported(f"torch.func's transforms of attnsmith.{self.name}, such as grad and jvp, are not supported: it has no "
                              "backward")

        def mapped(info: Any, dims: Any, *arguments: Any) -> Any:
            raise Unsupported(f"torch.vmap over attnsmith.{self.name} is not supported: give the batch an axis of q, k "
                              "and v")

        _registry.register_fake(f"attnsmith::{name}", taking_all(without_a_gpu), lib=_LIBRARY)
        _registry.register_vmap(f"attnsmith::{name}", mapped, lib=_LIBRARY)
        # Below such a transform no tensor says that its gradient is wanted, and torch would take it for zero.
        before = kernel_of(f"attnsmith::{name}", "FuncTorchDynamicLayerFrontMode")
        _LIBRARY.impl(name, transformed, "FuncTorchDynamicLayerFrontMode", with_keyset=True)
        # Nothing of Python's on the way, which would cost as much as all the rest.
        _LIBRARY.impl(name, _registry.fallthrough_kernel, "Autograd")
        if writes:
            _LIBRARY.impl(name, taking_all(writing), "ADInplaceOrView")
        _LIBRARY.impl(name, taking_all(of_autocast), "AutocastCUDA")

    def calling(self, suffix: str) -> Callable[..., Any]:
        name = self.name + suffix
        return lambda *arguments: getattr(torch.ops.attnsmith, name).default(*arguments)


def _traced_attention(name: str, fake: Callable[[str, Dict[str, Any], bool], Tuple[Any, Any]],
                      native: bool = True) -> Callable[..., Any]:
    operators = _Operators(name)

    def results(letters: str) -> Optional[str]:
        return letters if native else None

    passed = ", ".join(operators.passed)
    operators.define("", "Tensor", f"return function({passed}, return_lse=False)", lambda given: fake(name, given, False)[0],
                     results=results("o"))
    operators.define("_with_lse", "(Tensor, Tensor)", f"return function({passed}, return_lse=True)",
                     lambda given: fake(name, given, True), results=results("ol"))
    inputs = ", ".join(operators.tensors)
    operators.define("_out", "()", f"into(out, ({inputs},), lambda out: function({passed}, return_lse=False, out=out))",
                     lambda given: None, out=True, results=results(""))
    operators.define("_out_with_lse", "Tensor", f"return into(out, ({inputs},), lambda out: function({passed}, return_lse=True, "
                     "out=out)[1])", lambda given: fake(name, given, True)[1], out=True, results=results("l"))
    names = ", ".join(operators.names)
    return operators.compiled(f"traced({', '.join(operators.signature)})", [
        *operators.prepared,
        "if out is None:",
        f"    return with_lse({names}) if return_lse else plain({names})",
        f"if return_lse: return out, out_with_lse(out, {names})",
        f"to_out(out, {names})",
        "return out"], plain=operators.calling(""), with_lse=operators.calling("_with_lse"), to_out=operators.calling("_out"),
        out_with_lse=operators.calling("_out_with_lse"))


def _traced_append() -> Callable[..., Any]:
    operators = _Operators("append")
    passed, names = ", ".join(operators.passed), ", ".join(operators.names)

    def new_q_out(q: Any, q_dtype: Any) -> Any:
        return q.new_empty(q.shape, dtype=_OF_WORDS.get(q_dtype, q.dtype))

    operators.define("", "()", f"function({passed})", lambda given: None)
    return operators.compiled(f"traced({', '.join(operators.signature)})", [
        *operators.prepared,
        "if q is not None and q_out is None: q_out = new_q_out(q, q_dtype)",
        f"plain({names})",
        "return q_out"], plain=operators.calling(""), new_q_out=new_q_out)


#: What a traced call of each function runs.
TRACED: Dict[str, Callable[..., Any]] = {name: _traced_attention(name, _fake_attention) for name in _COLUMNS}
TRACED["merge_states"] = _traced_attention("merge_states", _fake_merge, native=False)
TRACED["append"] = _traced_append()
