"""The library of torch_kernels: torch's flash attention and attention by cuDNN in C++, for layouts that this package has
served before."""

from __future__ import annotations

import ctypes
import os
import pathlib
from ctypes import POINTER, Structure, byref, c_char_p, c_int32, c_int64, c_size_t, c_uint64, c_void_p
from typing import Any, Dict, Optional

from . import _reports
from ._dispatch import Recipe
from ._frameworks import Torch, met
from ._lent import LAUNCHING, Lent, launching
from ._library import address_of
from .errors import Error

_BESIDE = pathlib.Path(__file__).resolve().parent / "libattnsmith_torch.so"
#: By the library's numbers.
OPERATORS = ("_scaled_dot_product_flash_attention", "_flash_attention_forward", "_scaled_dot_product_cudnn_attention")


class _Functions(Structure):
    """attnsmith_torch_functions."""

    _fields_ = [(name, c_size_t if name == "size" else c_void_p) for name in (
        "size", "torch_library", "cuda_library", *LAUNCHING, "is_capturing", "increment", "decrement", "lock",
        "unlock")]


class _Recipe(Structure):
    """attnsmith_torch_recipe."""

    _fields_ = [("size", c_size_t), ("kernel", c_void_p), ("tensors", c_void_p), ("batch", c_void_p),
                ("workspace_bytes", c_size_t), ("out_rank", c_size_t), ("lse_rank", c_size_t),
                ("out_shape", POINTER(c_int64)), ("out_strides", POINTER(c_int64)), ("lse_shape", POINTER(c_int64))]


def _numbers(values: Any) -> Any:
    values = tuple(values)
    return (c_int64 * max(len(values), 1))(*values)


class Kernels:
    """The opened library."""

    is_tried = False  # whether exceptions come through it

    def __init__(self, opened: Any) -> None:
        self._library = opened
        for name, result, arguments in (
                ("activate", c_int32, [c_char_p]), ("deactivate", None, []), ("learn", None, [POINTER(_Recipe)]),
                ("set_workspace", None, [c_int32, c_void_p, c_void_p, c_size_t]), ("forget", None, []),
                ("served", c_uint64, [c_int32])):
            function = getattr(opened, f"attnsmith_torch_{name}")
            function.restype, function.argtypes = result, arguments
        # Called with the interpreter's lock held, which the others give away.
        self._fail = ctypes.PYFUNCTYPE(None, ctypes.py_object, ctypes.py_object, ctypes.py_object)(
            address_of(opened.attnsmith_torch_fail))
        self._lent = Lent(opened.attnsmith_torch_set_workspace, opened.attnsmith_torch_forget)
        self._counted = [0] * len(OPERATORS)

    def activate(self, key: str) -> bool:
        """Puts the library's kernels in the place of torch's. Whether torch took them."""
        return bool(self._library.attnsmith_torch_activate(key.encode()))

    def deactivate(self) -> None:
        self._library.attnsmith_torch_deactivate()
        self.forget()

    def forget(self) -> None:
        self._lent.take_back()

    def fail(self, error: BaseException) -> None:
        """Has the caller of the operator that this thread is in get this exception."""
        self._fail(type(error), error, error.__traceback__)

    def learn(self, recipe: Recipe, out: Any, lse: Any) -> None:
        """Has the next calls of this layout served without Python. For the operator that this thread is in, which made
        `out` and `lse` by this recipe."""
        torch = met("torch")
        assert isinstance(torch, Torch)
        self._lent.lend(recipe, torch, out.get_device(), lambda: self.teach(recipe, out, lse))

    def teach(self, recipe: Any, out: Any, lse: Any) -> None:
        """learn() of a recipe, a kernel and a workspace that are kept."""
        block = recipe.block()
        lse_shape = () if lse is None else lse.shape
        learnt = _Recipe(ctypes.sizeof(_Recipe), recipe.entry.pointer, block.tensors, block.batch, recipe.nbytes,
                         out.dim(), len(lse_shape), _numbers(out.shape), _numbers(out.stride()), _numbers(lse_shape))
        self._library.attnsmith_torch_learn(byref(learnt))
        recipe.blocks.append(block)

    def served(self) -> Dict[str, int]:
        """Calls that the library has served since reset()."""
        counts = {name: self._library.attnsmith_torch_served(number) - self._counted[number]
                  for number, name in enumerate(OPERATORS)}
        return {name: count for name, count in counts.items() if count}

    def reset(self) -> None:
        self._counted = [self._library.attnsmith_torch_served(number) for number in range(len(OPERATORS))]


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
    if torch.cuda.is_available():
        cuda, driver = ctypes.CDLL(str(folder / "libtorch_cuda.so")), ctypes.CDLL("libcuda.so.1")
    python = ctypes.pythonapi
    return _Functions(
        ctypes.sizeof(_Functions), of_torch._handle, cuda and cuda._handle, *launching(),
        driver and address_of(driver.cuStreamIsCapturing),
        *map(address_of, (python.Py_IncRef, python.Py_DecRef, python.PyGILState_Ensure, python.PyGILState_Release)))


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
        _reports.warn(f"{file} is not used, since torch {torch.__version__} lacks {missing.decode()}; calls are served in "
                      "Python")
    except (OSError, AttributeError, Error) as error:
        _reports.warn(f"{file} is not used: {error}; calls are served in Python")
    return None
