"""The errors that attnsmith raises. All derive from :class:`Error`; ``str(error)`` is one line to act on."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Sequence, cast

if TYPE_CHECKING:  # making these types takes 2 ms
    from .results import ErrorDetails, Refusal

_MOST_SHOWN, _OF_THE_END = 80, 25  # characters of a value; the end of a path says most


def shortened(text: str) -> str:
    """A text of any length as messages have it."""
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN - _OF_THE_END]}...{text[-_OF_THE_END:]}"


class Error(Exception):
    """Any failure of attnsmith.

    ``details`` is a dict of the same facts for programs: ``code`` (``"invalid_request"``), ``message``, and the
    fields of the class.
    """

    details: ErrorDetails

    def __init__(self, message: str, details: Optional[Mapping[str, Any]] = None) -> None:
        super().__init__(message)
        self.details = cast("ErrorDetails", {"message": message, **(details or {})})


class InvalidRequest(Error, ValueError):
    """The request itself is wrong: ``field`` has a ``value`` that is not among what is ``accepted``. The value is
    "nothing" where the field is missing; a long one is shortened."""

    def __init__(self, field: str, value: str, accepted: str, message: Optional[str] = None,
                 details: Optional[Mapping[str, Any]] = None) -> None:
        if message is None:
            field, value = shortened(field), shortened(value)
        facts = {"code": "invalid_request", "field": field, "value": value, "accepted": accepted}
        said = f"{field} is missing" if value == "nothing" else f"{field}: {value} is not accepted"
        line = message or f"{said}; expected {accepted}"
        super().__init__(line, {**facts, **(details or {})})
        self.field = field
        self.value = value
        self.accepted = accepted

    def __reduce__(self) -> Any:
        return type(self), (self.field, self.value, self.accepted, str(self), self.details)


class Unsupported(Error, NotImplementedError):
    """The request is meaningful, but nothing serves it. ``refusals``: dicts of ``candidate`` and ``reason``."""

    refusals: List[Refusal]

    def __init__(self, message: str, refusals: Sequence[Refusal] = (),
                 details: Optional[Mapping[str, Any]] = None) -> None:
        self.refusals = [cast("Refusal", dict(refusal)) for refusal in refusals]
        super().__init__(message, {"code": "unsupported", "refusals": self.refusals, **(details or {})})

    def __reduce__(self) -> Any:
        return type(self), (str(self), self.refusals, self.details)


class CompileError(Error):
    """NVRTC refused the generated source: ``log``, ``options`` (a list) and ``numbered_source``."""

    def __init__(self, message: str, log: str = "", options: Sequence[str] = (), numbered_source: str = "",
                 details: Optional[Mapping[str, Any]] = None) -> None:
        super().__init__(message, {"code": "compile_error", **(details or {})})
        self.log = log
        self.options: List[str] = list(options)
        self.numbered_source = numbered_source

    def __reduce__(self) -> Any:
        return type(self), (str(self), self.log, self.options, self.numbered_source, self.details)


class DriverError(Error):
    """A call into the CUDA driver failed: ``call``, ``code`` (the CUresult) and its ``meaning``."""

    def __init__(self, message: str, call: str = "", code: int = 0, meaning: str = "",
                 details: Optional[Mapping[str, Any]] = None) -> None:
        super().__init__(message, {"code": "driver_error", **(details or {})})
        self.call = call
        self.code = code
        self.meaning = meaning

    def __reduce__(self) -> Any:
        return type(self), (str(self), self.call, self.code, self.meaning, self.details)


class LibraryMissing(Error):
    """libattnsmith, NVRTC or the CUDA driver could not be opened: ``library``, and what was ``tried``, in order."""

    def __init__(self, message: str, library: str = "", tried: Sequence[str] = (),
                 details: Optional[Mapping[str, Any]] = None) -> None:
        self.library = library
        self.tried: List[str] = list(tried)
        facts = {"code": "library_missing", "library": library, "tried": self.tried}
        super().__init__(message, {**facts, **(details or {})})

    def __reduce__(self) -> Any:
        return type(self), (str(self), self.library, self.tried, self.details)


class CacheError(Error):
    """An explicit operation on the cache failed. Preparing and launching never fail because of the cache."""


class KernelMissing(Error):
    """No cache has a kernel that is needed, and on_miss="error" keeps it from being compiled: the ``request`` (a dict
    of its words, without sizes), ``sm``, ``key`` (in the cache) and the ``command`` that would have built it."""

    def __init__(self, message: str, request: Optional[Mapping[str, Any]] = None, sm: int = 0, key: str = "",
                 command: str = "", details: Optional[Mapping[str, Any]] = None) -> None:
        self.request: Dict[str, Any] = dict(request or {})
        self.sm = sm
        self.key = key
        self.command = command
        facts = {"code": "kernel_missing", "request": self.request, "sm": sm, "key": key, "command": command}
        super().__init__(message, {**facts, **(details or {})})

    def __reduce__(self) -> Any:
        return type(self), (str(self), self.request, self.sm, self.key, self.command, self.details)


class OutOfMemory(Error, MemoryError):
    """The host has no memory left."""


def _as_arguments(text: str) -> str:
    """The library's tensors of a batch are members of a struct in C, and arguments by themselves in Python."""
    return re.sub(r"\bbatch\.(?=[a-z_])", "", text)


def from_library(code: int, message: str, details_json: str) -> Error:
    """The exception for an ``attnsmith_code`` with its error's message and details."""
    try:
        details = json.loads(details_json or "{}")
    except ValueError:  # an error must come out, whatever its details are
        details = {}

    message = _as_arguments(message)
    details = {name: _as_arguments(value) if name in ("field", "accepted", "message") and isinstance(value, str) else value
               for name, value in details.items()}

    def of(name: str) -> str:
        return str(details.get(name, ""))

    if code == 1:
        return InvalidRequest(of("field"), of("value"), of("accepted"), message, details)
    if code == 2:
        return Unsupported(message, details.get("refusals", ()), details)
    if code == 3:
        return CompileError(message, of("log"), details.get("options", ()), of("numbered_source"), details)
    if code == 4:
        return DriverError(message, of("call"), int(details.get("driver_code", 0)), of("meaning"), details)
    if code == 5:
        return LibraryMissing(message, of("library"), details.get("tried", ()), details)
    if code == 9:
        return KernelMissing(message, details.get("request", {}), int(details.get("sm", 0)), of("key"), of("command"),
                             details)
    kinds = {6: CacheError, 7: OutOfMemory}
    return kinds.get(code, Error)(message or f"attnsmith failed with code {code}", details)
