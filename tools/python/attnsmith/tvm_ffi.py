"""attnsmith for tvm-ffi: the functions of libattnsmith_tvm_ffi, which callers in any language reach by apache-tvm-ffi.

    import attnsmith.tvm_ffi
    module = attnsmith.tvm_ffi.load()
    module.attention(q, k, v, out)

They write to tensors that the caller passes, on the current stream of tvm-ffi's environment, which is that of PyTorch
for PyTorch's tensors. Arguments go by position; ``module.get_function_doc("attention")`` has their order, and
docs/tvm-ffi.md what they mean.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import pathlib
from typing import Any

from ._base.extras import missing
from ._c_api import nvrtc as _nvrtc
from ._c_api.library import library
from .errors import LibraryMissing

__all__ = ["library_path", "load"]

_BESIDE = pathlib.Path(__file__).resolve().parent / "libattnsmith_tvm_ffi.so"
_REMEDY = "install attnsmith's wheel, or set ATTNSMITH_TVM_FFI_LIBRARY to the libattnsmith_tvm_ffi.so of a build"


def library_path() -> str:
    """The file that programs in other languages open, such as by ``tvm::ffi::Module::LoadFromFile``."""
    return os.environ.get("ATTNSMITH_TVM_FFI_LIBRARY") or str(_BESIDE)


def load() -> Any:
    """The functions, as a tvm_ffi.Module. They are also global functions of tvm-ffi from then on, "attnsmith.attention"
    and so on, which C++ and Rust of this process find by their names. May be called again.

    Kernels are prepared by a runtime that the library makes at the first call, with the settings of the environment's
    variables; set_default_runtime() does not change it.

    Raises ImportError without apache-tvm-ffi, LibraryMissing.
    """
    try:
        tvm_ffi = importlib.import_module("tvm_ffi")
    except ImportError as error:
        raise missing("attnsmith.tvm_ffi", "apache-tvm-ffi", "apache-tvm-ffi", error) from error
    _prepare(library_path())
    tvm_ffi.register_error("NotImplementedError", NotImplementedError)  # what no kernel serves
    module = tvm_ffi.load_module(library_path())
    module.register_global_functions()
    return module


def _prepare(file: str) -> None:
    """Has the library use this package's libattnsmith and the NVRTC of the environment. Raises LibraryMissing."""
    nvrtc = None if os.environ.get("ATTNSMITH_NVRTC_PATH") else _nvrtc.of_a_wheel()
    try:
        use = ctypes.CDLL(file).attnsmith_tvm_ffi_use
    except (OSError, AttributeError) as error:
        raise LibraryMissing(f"libattnsmith_tvm_ffi could not be opened: {error}; {_REMEDY}", "libattnsmith_tvm_ffi",
                             [file]) from None
    use(library().path.encode(), nvrtc and nvrtc.encode(), None)
