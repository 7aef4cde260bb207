"""The module _native (tools/python/native), and what stands in its place: methods of Python. It is missing for PyPy, for
free-threaded Python, in a build without Python's headers and in a second interpreter of a process."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
from typing import Any, Callable, TypeVar, cast

from .._base import reports

_NAME = importlib.util.resolve_name(".._native", __package__)
_Function = TypeVar("_Function", bound=Callable[..., Any])


def load() -> Any:
    """That of the wheel, or of a build. Raises ImportError and others."""
    file = os.environ.get("ATTNSMITH_NATIVE_MODULE")
    if file is None:
        return importlib.import_module(_NAME)
    spec = importlib.util.spec_from_file_location(_NAME, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is no Python extension module")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _loaded() -> Any:
    try:  # another version's module may fail in any way
        module = load()
        if not hasattr(module, "launch_method"):
            raise ImportError("it is older than this package")
        return module
    except Exception as error:
        refuse(error)
        return None


def refuse(error: Exception) -> None:
    """Tells of it where the module was asked for."""
    if "ATTNSMITH_NATIVE_MODULE" in os.environ:
        reports.warn(f"ATTNSMITH_NATIVE_MODULE is not used: {error!r}; calls are served in Python")


#: None where all is done in Python.
native = _loaded()


def natively(maker: str, *arguments: Any) -> Callable[[_Function], _Function]:
    """Has the module's method of that name serve plain calls, and the function itself all others. What help() says is of the
    function, which is its `__wrapped__`."""
    def decorate(function: _Function) -> _Function:
        if native is None:
            return function
        method = getattr(native, maker)(function, *arguments)
        return cast(_Function, functools.update_wrapper(method, function, updated=()))

    return decorate
