"""Device memory for programs without a framework of their own, and the arrays in which results come to them."""

from __future__ import annotations

import math
import sys
from ctypes import byref, c_int32, c_int64, c_size_t, c_void_p, create_string_buffer
from typing import Any, Optional, Sequence, Tuple

from ._base.arguments import check_iterable, named_methods
from ._base.integers import fitting, shown
from ._c_api.handles import Owner
from ._c_api.library import Library
from ._tensors import dlpack, views as _views
from .errors import InvalidRequest

_TYPESTRS = {_views.FP16: "<f2", _views.FP32: "<f4", _views.INT32: "<i4", _views.INT64: "<i8", _views.UINT8: "|u1"}


@named_methods
class Buffer(Owner):
    """Device memory that is freed with the object, made by Runtime.allocate(). `data` is its address, a multiple of 256,
    `nbytes` its size in bytes, and `device` the ordinal of its GPU."""

    _another = "allocate() another, and upload() what this one's download() gives"
    _elsewhere = "send what download() gives"
    _pointer: Optional[int] = None

    def __init__(self, library: Library, runtime: int, device: int, nbytes: int) -> None:
        self._library = library
        device, nbytes = fitting("device", device, c_int32, 0), fitting("nbytes", nbytes, c_size_t)
        out = c_void_p()
        library.call(library.functions.attnsmith_buffer_allocate, runtime, device, nbytes, byref(out))
        self._pointer = out.value
        self.device: int = device
        self.data: int = library.functions.attnsmith_buffer_data(out) or 0
        self.nbytes: int = library.functions.attnsmith_buffer_bytes(out)

    def upload(self, host: Any, offset: int = 0) -> None:
        """Copies a bytes-like object to the device, and waits for the copy.

        host: the object. offset: where it goes in the buffer, in bytes.

        Raises InvalidRequest if it would end past the end of the buffer, DriverError.
        """
        try:
            data = host if isinstance(host, bytes) else memoryview(host).tobytes()
        except (TypeError, ValueError, NotImplementedError):  # what has no bytes
            raise InvalidRequest("host", shown(host), "a bytes-like object") from None
        self._library.call(self._library.functions.attnsmith_buffer_upload, self._pointer, data, len(data),
                           fitting("offset", offset, c_size_t))

    def download(self, nbytes: Optional[int] = None, offset: int = 0) -> bytes:
        """Copies from the device when the work of the default stream is done, and returns the bytes.

        nbytes: how many bytes; None is all from `offset` on. offset: where they begin in the buffer, in bytes.

        Raises InvalidRequest if they would end past the end of the buffer, DriverError.
        """
        offset = fitting("offset", offset, c_size_t)
        count = max(self.nbytes - offset, 0) if nbytes is None else fitting("nbytes", nbytes, c_size_t)
        host = create_string_buffer(min(count, self.nbytes) or 1)  # the library writes nothing where that is less
        self._library.call(self._library.functions.attnsmith_buffer_download, self._pointer, host, count, offset)
        return host.raw[:count]

    def array(self, shape: Sequence[int], dtype: str, offset: int = 0) -> "Array":
        """Returns a row-major array in this buffer.

        shape: its extents in elements. dtype: "fp16", "bf16", "fp32", "int32", "int64", "e4m3", "e5m2" or "uint8". offset:
            where it begins in the buffer, in bytes, a multiple of an element's size.

        Raises InvalidRequest if it would end past the end of the buffer.
        """
        if not isinstance(dtype, str) or dtype not in _views.KINDS:
            raise InvalidRequest("dtype", shown(dtype), ", ".join(_views.KINDS))
        listed = check_iterable("shape", shape, "a tuple of integers")
        kind, extents = _views.KINDS[dtype], tuple(fitting("shape", extent, c_int64, 0) for extent in listed)
        fitting("shape", math.prod(max(extent, 1) for extent in extents), c_int64)  # so do the strides
        item_bytes = _views.ITEM_BYTES[kind]
        needed, offset = math.prod(extents) * item_bytes, fitting("offset", offset, c_size_t)
        if offset % item_bytes:
            raise InvalidRequest("offset", str(offset), f"a multiple of {item_bytes}, the bytes of one {dtype}")
        if offset + needed > self.nbytes:
            raise InvalidRequest("shape", f"{needed} bytes at {offset}", f"an array within {self.nbytes} bytes")
        pointer = self.data + offset if needed else 0
        view = (pointer, extents, _views.compact_strides(extents), kind, _views.on_device(self.device))
        return Array(view, self)

    def __repr__(self) -> str:
        return f"<attnsmith.Buffer of {self.nbytes} bytes on cuda:{self.device}>"

    def __del__(self) -> None:
        pointer, self._pointer = self._pointer, None
        if pointer:
            self._library.functions.attnsmith_buffer_free(pointer)


@named_methods
class Array:
    """A tensor in device memory, for ``from_dlpack`` of any framework and for ``__cuda_array_interface__``.

    ``shape`` and ``strides`` are in elements, ``dtype`` is a word such as ``"bf16"``, ``device`` is the ordinal of the GPU,
    and ``data`` the address. The stream that wrote the memory orders it: a result of attnsmith.attention() on a stream of
    yours is ready once that stream has passed the call.
    """

    def __init__(self, view: _views.View, buffer: Buffer) -> None:
        self._view = view
        self._buffer = buffer
        self.shape: Tuple[int, ...] = tuple(view[1])
        self.strides: Tuple[int, ...] = tuple(view[2])
        self.dtype: str = _views.WORDS[view[3]]
        self.device: int = buffer.device
        self.data: int = view[0]

    @property
    def nbytes(self) -> int:
        """The size of the elements in bytes."""
        return math.prod(self.shape) * _views.ITEM_BYTES[self._view[3]]

    def tobytes(self) -> bytes:
        """Returns the elements, row-major, when the work of the default stream is done. Raises DriverError."""
        return self._buffer.download(self.nbytes, self.data - self._buffer.data) if self.nbytes else b""

    def __int__(self) -> int:
        """The element of an integer array that has but one; after the default stream's work is done."""
        if self._view[3] not in (_views.INT32, _views.INT64) or math.prod(self.shape) != 1:
            raise TypeError(f"{self!r} is not one integer")
        return int.from_bytes(self.tobytes(), sys.byteorder, signed=True)

    def __dlpack_device__(self) -> "tuple[int, int]":
        return self._view[4] & 0xFFFFFFFF, self._view[4] >> 32

    def __dlpack__(self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None,
                   copy: Optional[bool] = None) -> Any:
        """A DLPack capsule, of the memory itself: `copy` and other devices are refused with BufferError."""
        if stream not in (None, -1, 0, 1) and self.nbytes:
            self._buffer.download(1)  # another stream than the default one, whose work is waited for
        if copy or (dl_device is not None and tuple(dl_device) != self.__dlpack_device__()):
            raise BufferError("attnsmith arrays are handed out as they are: no copy, no other device")
        return dlpack.lend(self._view, self)

    @property
    def __cuda_array_interface__(self) -> "dict[str, Any]":
        if self._view[3] not in _TYPESTRS:  # so that hasattr() says it: take bf16 by DLPack
            raise AttributeError(f"{self.dtype} has no type string; use __dlpack__")
        return {"shape": self.shape, "strides": None, "typestr": _TYPESTRS[self._view[3]], "version": 3,
                "data": (self.data, False), "stream": None}

    def __repr__(self) -> str:
        return f"<attnsmith.Array {self.dtype}{list(self.shape)} on cuda:{self.device}>"
