"""The library of torch_kernels: operators of torch in C++, for layouts that this package has served before."""

from __future__ import annotations

import ctypes
import os
import pathlib
from ctypes import POINTER, Structure, byref, c_char_p, c_int32, c_int64, c_size_t, c_uint64, c_void_p
from typing import Any, Dict, Iterable, List, Optional, Tuple

from .._base import reports
from .._c_api import abi
from .._c_api.library import address_of
from .._calls.dispatch import Recipe
from .._calls.lent import LAUNCHING, Lent, launching
from .._tensors import views as _views
from .._tensors.frameworks import Torch, met
from ..errors import Error

_BESIDE = pathlib.Path(__file__).resolve().parents[1] / "libattnsmith_torch.so"
_NUMBER, _TENSOR, _STRING, _MASK, _OTHER = range(5)  # ATTNSMITH_TORCH_NUMBER and so on
NONE, CUDNN, CUDNN_BACKWARD = range(3)  # ATTNSMITH_TORCH_NONE and so on
_FIELDS = (*abi.TENSOR_FIELDS, *abi.BATCH_FIELDS)
# Of arguments that are named otherwise.
_FIELD_OF = {"query": "q", "key": "k", "value": "v", "cum_seq_q": "q_indptr", "cum_seq_k": "kv_indptr",
             "seqused_k": "kv_lens", "out": "o", "kv_cache": "k", "v_cache": "v", "ckv": "k"}
_WORDS = {"str": _STRING, "int": _NUMBER, "SymInt": _NUMBER, "float": _NUMBER, "bool": _NUMBER}


class _Functions(Structure):
    """attnsmith_torch_functions."""

    _fields_ = [(name, c_size_t if name == "size" else c_void_p) for name in (
        "size", "torch_library", "cuda_library", *LAUNCHING, "is_capturing", "increment", "decrement", "lock",
        "unlock", "call", "fetch", "is_ready")]


class _Recipe(Structure):
    """attnsmith_torch_recipe."""

    _fields_ = [("size", c_size_t), ("kernel", c_void_p), ("tensors", c_void_p), ("batch", c_void_p),
                ("workspace_bytes", c_size_t), ("values_offset", c_int64), ("out_rank", c_size_t), ("lse_rank", c_size_t),
                ("out_is_fp32", c_int32), ("out_shape", POINTER(c_int64)), ("out_strides", POINTER(c_int64)),
                ("lse_shape", POINTER(c_int64))]


class _Argument(Structure):
    """attnsmith_torch_argument."""

    _fields_ = [("kind", c_int32), ("is_optional", c_int32), ("field", c_int32)]


class _Operator(Structure):
    """attnsmith_torch_operator."""

    _fields_ = [("size", c_size_t), ("space", c_char_p), ("name", c_char_p), ("other", c_char_p), ("arguments", POINTER(_Argument)),
                ("argument_count", c_size_t), ("results", c_char_p), ("refuses_gradients", c_int32), ("own", c_int32)]


def _argument(argument: Any, own: int) -> Tuple[int, int, int]:
    """Of torch's schema."""
    kind = str(argument.type)
    inside = kind[len("Optional["):-1] if kind.startswith("Optional[") else kind
    is_optional = int(inside != kind)
    if inside != "Tensor":
        return _WORDS[inside], is_optional, 0
    if own == CUDNN_BACKWARD:
        return _OTHER, is_optional, 0
    if argument.name == "attn_bias":
        return _MASK, is_optional, 0
    return _TENSOR, is_optional, _FIELDS.index(_FIELD_OF.get(argument.name, argument.name))


def _numbers(values: Any) -> Any:
    values = tuple(values)
    return (c_int64 * max(len(values), 1))(*values)


class Kernels:
    """The opened library."""

    is_tried = False  # whether exceptions come through it

    def __init__(self, opened: Any) -> None:
        self._library = opened
        for name, result, arguments in (
                ("add", c_int32, [POINTER(_Operator), c_char_p]), ("remove", None, [c_int32]), ("learn", None, [POINTER(_Recipe)]),
                ("set_workspace", None, [c_int32, c_void_p, c_void_p, c_size_t]), ("forget", None, []),
                ("served", c_uint64, [c_int32])):
            function = getattr(opened, f"attnsmith_torch_{name}")
            function.restype, function.argtypes = result, arguments
        # Called with the interpreter's lock held, which the others give away.
        self._fail = ctypes.PYFUNCTYPE(c_int32, ctypes.py_object, ctypes.py_object, ctypes.py_object)(
            address_of(opened.attnsmith_torch_fail))
        self._lent = Lent(opened.attnsmith_torch_set_workspace, opened.attnsmith_torch_forget)

    def add(self, space: str, schema: Any, other: str, results: str, key: str, refuses_gradients: bool = False,
            own: int = NONE) -> Optional[int]:
        """Has a kernel of the library serve the operator of this schema, for a dispatch key. `other`: the operator of Python that
        has the calls that it does not serve. `results`, `own`: as interface.h has them. Its number, or None where torch refuses."""
        arguments = [_Argument(*_argument(argument, own)) for argument in schema.arguments]
        described = _Operator(ctypes.sizeof(_Operator), space.encode(), schema.name.rpartition("::")[2].encode(), other.encode(),
                              (_Argument * len(arguments))(*arguments), len(arguments), results.encode(), refuses_gradients, own)
        number = int(self._library.attnsmith_torch_add(byref(described), key.encode()))
        return None if number < 0 else number

    def remove(self, number: int) -> None:
        self._library.attnsmith_torch_remove(number)

    def forget(self) -> None:
        self._lent.take_back()

    def fail(self, error: BaseException) -> bool:
        """Has the caller of the operator that this thread is in get this exception. False where it is in none."""
        return bool(self._fail(type(error), error, error.__traceback__))

    def learn(self, seen: Tuple[Recipe, List[int]], out: Any, lse: Any) -> None:
        """Has the next calls of this layout served without Python. For the operator that this thread is in, which made
        `out` and `lse` by this recipe, with these pointers."""
        torch, (recipe, pointers) = met("torch"), seen
        assert isinstance(torch, Torch)
        self._lent.lend(recipe, torch, out.get_device(), lambda: self.teach(recipe, pointers, out, lse))

    def teach(self, recipe: Any, pointers: Iterable[int], out: Any, lse: Any) -> None:
        """learn() of a recipe, a kernel and a workspace that are kept."""
        block = recipe.block()
        for slot, pointer in zip(recipe.slots, pointers):
            block.words[slot] = pointer
        lse_shape = () if lse is None else lse.shape
        learnt = _Recipe(ctypes.sizeof(_Recipe), recipe.entry.pointer, block.tensors, block.batch, recipe.nbytes,
                         -1 if recipe.v_offset is None else recipe.v_offset, out.dim(), len(lse_shape),
                         recipe.kind == _views.FP32, _numbers(out.shape), _numbers(out.stride()), _numbers(lse_shape))
        self._library.attnsmith_torch_learn(byref(learnt))
        recipe.blocks.append(block)

    def served(self, number: int) -> int:
        """Calls that the kernel of this number has served so far."""
        return int(self._library.attnsmith_torch_served(number))


_opened: Dict[str, Optional[Kernels]] = {}


def kernels(torch: Any) -> Optional[Kernels]:
    """The library, opened once; None where this package has none or this torch lacks what it needs, which is
    reported."""
    file = os.environ.get("ATTNSMITH_TORCH_LIBRARY") or str(_BESIDE)
    if file not in _opened:
        _opened[file] = _open(file, torch)
    return _opened[file]


def functions_for(torch: Any) -> _Functions:
    """What the library needs of this torch, of Python and of attnsmith. Raises OSError, AttributeError."""
    folder = pathlib.Path(torch.__file__).parent / "lib"
    of_torch = ctypes.CDLL(str(folder / "libtorch_cpu.so"))
    cuda = driver = None
    if torch.version.cuda is not None:
        try:  # which initializes nothing
            driver = ctypes.CDLL("libcuda.so.1")
            cuda = ctypes.CDLL(str(folder / "libtorch_cuda.so"))
        except OSError:
            pass
    python = ctypes.pythonapi
    return _Functions(
        ctypes.sizeof(_Functions), of_torch._handle, cuda and cuda._handle, *launching(),
        driver and address_of(driver.cuStreamIsCapturing),
        *map(address_of, (python.Py_IncRef, python.Py_DecRef, python.PyGILState_Ensure, python.PyGILState_Release,
                          python.PyObject_CallFunctionObjArgs, python.PyErr_Fetch)), id(_is_ready))


def _is_ready(frames: int = 40) -> None:
    """Raises what waits for this thread, and RecursionError where an operator of this package would not have room."""
    if frames:
        _is_ready(frames - 1)


def use(opened: Any, functions: _Functions) -> Optional[bytes]:
    """Gives them to the library. What is missing, or None."""
    opened.attnsmith_torch_open.restype, opened.attnsmith_torch_open.argtypes = c_char_p, [POINTER(_Functions)]
    missing: Optional[bytes] = opened.attnsmith_torch_open(byref(functions))
    return missing


def give_up(given: Kernels) -> None:
    """Has kernels() give None from now on."""
    for file, opened in _opened.items():
        if opened is given:
            _opened[file] = None


def _open(file: str, torch: Any) -> Optional[Kernels]:
    if not os.path.exists(file) and file == str(_BESIDE):
        return None  # built without it
    try:
        opened = ctypes.CDLL(file)
        missing = use(opened, functions_for(torch))
        if missing is None:
            return Kernels(opened)
        reports.warn(f"{file} is not used, since torch {torch.__version__} lacks {missing.decode()}; calls are served in "
                     "Python")
    except (OSError, AttributeError, Error) as error:
        reports.warn(f"{file} is not used: {error}; calls are served in Python")
    return None
