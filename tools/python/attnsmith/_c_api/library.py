"""Finds and opens libattnsmith, and turns its errors into exceptions."""

from __future__ import annotations

import ctypes
import json
import os
import pathlib
import threading
from ctypes import byref, c_void_p
from typing import Any, Callable, Dict, Iterator, Optional

from .. import errors
from . import abi

_PACKAGE = pathlib.Path(__file__).resolve().parents[1]
_REMEDY = ("install the wheel (pip install . in attnsmith's repository), or set ATTNSMITH_LIBRARY to the "
           "libattnsmith.so of a build or an installation")


def _candidates() -> Iterator[str]:
    """The files and names to try, in order; what is named by the user is the only one."""
    named = os.environ.get("ATTNSMITH_LIBRARY", "")
    if named:
        yield named
        return
    yield from (str(file) for file in sorted(_PACKAGE.glob("libattnsmith.so*")))
    from importlib import metadata  # importing it takes 13 ms; attnsmith takes 29 ms without it
    try:
        major, minor = metadata.version("attnsmith").split(".")[:2]
        yield f"libattnsmith.so.{major if major != '0' else f'0.{minor}'}"
    except metadata.PackageNotFoundError:  # used from its source folder
        pass
    yield "libattnsmith.so"


def address_of(function: Any) -> int:
    """Of a function of a library that ctypes opened."""
    return ctypes.cast(function, c_void_p).value or 0


class Library:
    """One opened libattnsmith: ``functions`` has those of the C ABI by their names."""

    def __init__(self, functions: Any, path: str) -> None:
        self.functions = functions
        self.path = path
        self._addresses: Dict[str, int] = {}
        self.version: str = functions.attnsmith_version().decode()

    def address(self, name: str) -> int:
        """Of a function."""
        found = self._addresses.get(name)
        if found is None:
            found = self._addresses[name] = address_of(getattr(self.functions, name))
        return found

    def error(self, code: int, error: Optional[int]) -> errors.Error:
        """The exception for a code and an attnsmith_error*, which is freed."""
        if not error:
            return errors.from_library(code, "", "")
        try:
            message = self.functions.attnsmith_error_message(error).decode(errors="replace")
            details = self.functions.attnsmith_error_details(error).decode(errors="replace")
        finally:
            self.functions.attnsmith_error_free(error)
        return errors.from_library(code, message, details)

    def call(self, function: Callable[..., int], *arguments: Any) -> None:
        """Calls a function that can fail, with its error** added. Raises what it fails with."""
        error = c_void_p()
        code = function(*arguments, byref(error))
        if code:
            raise self.error(code, error.value)

    def text(self, function: Callable[..., int], *arguments: Any) -> str:
        """The string that a function gives as its last argument, which is freed."""
        out = c_void_p()
        self.call(function, *arguments, byref(out))
        try:
            return ctypes.string_at(out).decode()
        finally:
            self.functions.attnsmith_string_free(out)

    def json(self, function: Callable[..., int], *arguments: Any) -> Any:
        return json.loads(self.text(function, *arguments))

    def features(self) -> "list[str]":
        """What the library has: "op:attention", "backend:mma", ..."""
        return list(json.loads(self.functions.attnsmith_features().decode()))


def _open(name: str) -> Library:
    """Raises OSError when it is no library, LookupError when it is another one or another version."""
    functions = ctypes.CDLL(name)
    try:
        functions.attnsmith_abi_version.restype = ctypes.c_int32
        version = functions.attnsmith_abi_version()
    except AttributeError:
        raise LookupError("it has no C ABI of attnsmith") from None
    if version != abi.ABI_VERSION:
        raise LookupError(f"its ABI version is {version}; this package needs {abi.ABI_VERSION}")
    try:
        abi.declare(functions)
    except AttributeError as error:
        raise LookupError(f"it is older than this package: {error}") from None
    return Library(functions, functions._name)


def open_library() -> Library:
    """Opens the first candidate that is a libattnsmith of this ABI. Raises LibraryMissing with all that was tried."""
    tried = []
    for name in _candidates():
        try:
            return _open(name)
        except (OSError, LookupError) as error:
            reason = str(error)
            tried.append(reason if name in reason else f"{name}: {reason}")
    message = f"libattnsmith could not be opened; tried {', '.join(tried)}; {_REMEDY}"
    raise errors.LibraryMissing(message, "libattnsmith", tried)


_lock = threading.Lock()
_library: Optional[Library] = None


def library() -> Library:
    """The library of this process, opened at the first use. A failure is tried again at the next."""
    global _library
    if _library is None:
        with _lock:
            if _library is None:
                _library = open_library()
    return _library
