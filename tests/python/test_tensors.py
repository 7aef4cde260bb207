"""The tensor adapters, on stand-ins for the objects of frameworks."""

import ctypes
import gc
import sys
import types
import unittest
from unittest import mock

from support import PythonTest, attnsmith

from attnsmith._c_api import abi
from attnsmith._tensors import dlpack, frameworks, interface as _interface, views as _views
from attnsmith._tensors.frameworks import Order

CUDA0 = _views.on_device(0)


class Managed(ctypes.Structure):
    _fields_ = [("tensor", abi.Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class Foreign:
    """An object with __dlpack__ that counts what is done with its capsule."""

    def __init__(self, data, shape, strides=None, dtype=(2, 16), device=(2, 0), byte_offset=0, deleter=True):
        self.device, self.streams, self.deleted = device, [], 0
        self.shape_array = (ctypes.c_int64 * len(shape))(*shape)
        self.strides_array = strides and (ctypes.c_int64 * len(strides))(*strides)
        self.callback = dlpack._DELETER(self._delete)
        self.managed = Managed()
        self.managed.deleter = ctypes.cast(self.callback, ctypes.c_void_p) if deleter else None
        tensor = self.managed.tensor
        tensor.data, tensor.ndim, tensor.byte_offset = data, len(shape), byte_offset
        tensor.device, tensor.dtype = abi.Device(*device), abi.DataType(*dtype, 1)
        tensor.shape = ctypes.cast(self.shape_array, ctypes.POINTER(ctypes.c_int64))
        if strides:
            tensor.strides = ctypes.cast(self.strides_array, ctypes.POINTER(ctypes.c_int64))

    def _delete(self, address):
        self.deleted += address == ctypes.addressof(self.managed)

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, stream=None):
        self.streams.append(stream)
        return dlpack._new(ctypes.addressof(self.managed), b"dltensor", None)


class Interface:
    """An object with __cuda_array_interface__ alone."""

    def __init__(self, **interface):
        self.__cuda_array_interface__ = {"shape": (2, 3), "typestr": "<f2", "data": (4096, False), "version": 3,
                                         **interface}


class Tensors(PythonTest):
    def order(self, stream=0):
        self.waited = []
        return Order(stream, self.waited.append)

    def view(self, tensor, stream=0):
        order = self.order(stream)
        return frameworks.of(tensor, "x").view(tensor, "x", order), order

    # ---- DLPack

    def test_dlpack(self):
        foreign = Foreign(4096, (2, 3, 4), (24, 8, 1), dtype=(4, 16), device=(2, 1))
        view, order = self.view(foreign, stream=77)
        self.assertEqual(view, (4096, (2, 3, 4), (24, 8, 1), _views.BF16, _views.on_device(1)))
        self.assertEqual(foreign.streams, [77])
        gc.collect()
        self.assertEqual(foreign.deleted, 0, "given back before the launch")
        order.held.clear()
        gc.collect()
        self.assertEqual(foreign.deleted, 1)

    def test_dlpack_default_stream_is_1(self):
        foreign = Foreign(4096, (2,))
        self.view(foreign)
        self.assertEqual(foreign.streams, [1])

    def test_dlpack_compact_offset_and_empty(self):
        view, _ = self.view(Foreign(4096, (2, 3, 4), byte_offset=64))
        self.assertEqual(view[:3], (4160, (2, 3, 4), (12, 4, 1)))
        view, _ = self.view(Foreign(None, (2, 0, 4)))
        self.assertEqual(view[:3], (0, (2, 0, 4), (4, 4, 1)))
        view, _ = self.view(Foreign(4096, ()))
        self.assertEqual(view[1:3], ((), ()))

    def test_dlpack_deleter(self):
        foreign = Foreign(4096, (2,))
        borrowed = dlpack.Borrowed(foreign.__dlpack__())
        borrowed.release()
        borrowed.release()
        del borrowed
        gc.collect()
        self.assertEqual(foreign.deleted, 1)
        dlpack.Borrowed(Foreign(4096, (2,), deleter=False).__dlpack__()).release()

    def test_dlpack_capsule_is_used_once(self):
        foreign = Foreign(4096, (2,))
        capsule = foreign.__dlpack__()
        borrowed = dlpack.Borrowed(capsule)
        self.assertIn("used_dltensor", repr(capsule))
        with self.assertRaises(attnsmith.InvalidRequest):
            dlpack.Borrowed(capsule)
        with self.assertRaises(attnsmith.InvalidRequest):
            dlpack.Borrowed("no capsule")
        borrowed.release()
        self.assertEqual(foreign.deleted, 1)

    def test_other_devices(self):
        for device, name in (((1, 0), "cpu"), ((3, 0), "pinned"), ((10, 2), "rocm:2"), ((99, 0), "99")):
            with self.subTest(device=device):
                foreign = Foreign(4096, (2,), device=device)
                error = self.assert_refused("x.device", self.view, foreign)
                self.assertIn(name, error.value)
                self.assertEqual(foreign.streams, [], "its capsule was asked for")
        view, _ = self.view(Foreign(4096, (2,), device=(13, 0)))
        self.assertEqual(view[4], 13)

    def test_devices_and_capsules_that_make_no_sense(self):
        for device in (None, 2, (2,), ("cuda", 0), (2, -1), (2, 2**31), (13, -1)):
            with self.subTest(device=device):
                foreign = Foreign(4096, (2,))
                foreign.device = device
                for ask in (lambda: self.view(foreign), lambda: frameworks.of(foreign, "x").index(foreign, "x")):
                    with self.assertRaises(attnsmith.InvalidRequest) as caught:
                        ask()
                    self.assertTrue(caught.exception.field.startswith("x."), caught.exception)

        def changed(**fields):
            foreign = Foreign(4096, (2,))
            for name, value in fields.items():
                setattr(foreign.managed.tensor, name, value)
            return foreign
        for field, foreign in (("x.device", changed(device=abi.Device(2, -1))), ("x.shape", changed(ndim=-1)),
                               ("x.shape", changed(ndim=2**31 - 1)), ("x.data", changed(byte_offset=2**64 - 4096)),
                               ("x.shape", changed(shape=ctypes.POINTER(ctypes.c_int64)())),
                               ("x.shape", Foreign(4096, (-2,)))):
            self.assert_refused(field, self.view, foreign)
            gc.collect()
            self.assertEqual(foreign.deleted, 1, "not given back")

    def test_other_dtypes(self):
        for dtype in ((2, 64), (0, 8), (6, 8)):
            self.assert_refused("x.dtype", self.view, Foreign(4096, (2,), dtype=dtype))

    def test_what_is_no_tensor(self):
        for thing in ([1.0], 3, "q", object(), memoryview(b"abc")):
            self.assert_refused("x", self.view, thing)
        self.assert_refused("x", self.view, None)

    # ---- The CUDA array interface

    def test_interface(self):
        view, _ = self.view(Interface())
        self.assertEqual(view, (4096, (2, 3), (3, 1), _views.FP16, _views.UNKNOWN_DEVICE))
        self.assertEqual(_views.device_of(view[4]), abi.CURRENT_DEVICE)
        view, _ = self.view(Interface(strides=(64, 4), typestr="<i4"))
        self.assertEqual(view[2:4], ((16, 1), _views.INT32))
        view, _ = self.view(Interface(shape=(0, 3), data=(0, False)))
        self.assertEqual(view[:2], (0, (0, 3)))
        self.assert_refused("x.strides", self.view, Interface(strides=(7, 2)))
        self.assert_refused("x.dtype", self.view, Interface(typestr="<f8"))

    def test_interfaces_that_are_not_what_they_promise(self):
        for wrong, field in (({"mask": self}, "mask"), ({"strides": (6,)}, "strides"), ({"strides": ()}, "strides"),
                             ({"strides": (6.0, 2.0)}, "strides"), ({"strides": "62"}, "strides"),
                             ({"strides": (2**70, 2)}, "strides"), ({"strides": 6}, "strides"),
                             ({"shape": (2.0, 3)}, "shape"), ({"shape": (-2, 3)}, "shape"), ({"shape": 6}, "shape"),
                             ({"shape": (2**63, 3)}, "shape"), ({"shape": "23"}, "shape"), ({"shape": None}, "shape"),
                             ({"data": (-256, False)}, "data"), ({"data": (2**64, False)}, "data"),
                             ({"data": ("0", False)}, "data"), ({"typestr": ["<f2"]}, "dtype"),
                             ({"data": 4096}, "__cuda_array_interface__"), ({"data": None}, "__cuda_array_interface__"),
                             ({"stream": "x"}, "stream"), ({"stream": -1}, "stream")):
            with self.subTest(**wrong):
                self.assert_refused(f"x.{field}", self.view, Interface(**wrong))
        for left_out in ("shape", "typestr", "data"):
            tensor = Interface()
            del tensor.__cuda_array_interface__[left_out]
            self.assert_refused("x.__cuda_array_interface__", self.view, tensor)
        tensor.__cuda_array_interface__ = None
        self.assert_refused("x.__cuda_array_interface__", self.view, tensor)

    def test_integers_of_other_kinds_in_an_interface(self):
        class Integer:
            def __index__(self):
                return 4
        view, _ = self.view(Interface(shape=[Integer(), 3], strides=[Integer(), 2]))
        self.assertEqual(view[1:3], ((4, 3), (2, 1)))

    def test_interfaces_of_more_axes_than_the_library_takes(self):
        view, _ = self.view(Interface(shape=(1,) * 7))
        self.assertEqual(view[1], (1,) * 7)
        self.assert_refused("x.shape", self.view, Interface(shape=(1,) * 6 + (-1,)))

    def test_what_is_read_only_is_not_written_to(self):
        tensor = Interface(data=(4096, True))
        framework = frameworks.of(tensor, "x")
        for name in ("q", "k", "sinks", "kv_lens"):
            self.assertEqual(framework.view(tensor, name, self.order())[0], 4096)
        for name in ("out", "o", "lse", "q_out", "k_cache", "v_cache", "kpe_cache", "indices"):
            self.assert_refused(f"{name}.data", framework.view, tensor, name, self.order())

    def test_memory_for_a_workspace(self):
        def memory(**interface):
            return _interface.memory(Interface(**interface).__cuda_array_interface__, "workspace")
        self.assertEqual(memory(shape=(512,), typestr="|u1"), (4096, 512))
        self.assertEqual(memory(shape=(4, 8), typestr="<f4", strides=(32, 4)), (4096, 128))
        for wrong, field in (({"mask": self}, "mask"), ({"data": (4096, True)}, "data"), ({"typestr": "u1"}, "dtype"),
                             ({"strides": (64, 4)}, "strides"), ({"strides": ()}, "strides"),
                             ({"shape": (-1,)}, "shape"), ({"shape": (-1, -1)}, "shape"), ({"shape": (2**70,)}, "shape"),
                             ({"data": (-1, False)}, "data")):
            with self.subTest(**wrong):
                self.assert_refused(f"workspace.{field}", memory, **wrong)

    def test_interface_streams(self):
        _, order = self.view(Interface(stream=5), stream=9)
        self.assertEqual(self.waited, [5])
        for stream, own in ((5, 5), (None, 9), (1, 0)):
            self.view(Interface(stream=stream), stream=own)
            self.assertEqual(self.waited, [])

    # ---- What is handed out

    def array(self, dtype="fp16", shape=(2, 3)):
        kind = _views.KINDS[dtype]
        buffer = types.SimpleNamespace(device=1)
        return attnsmith.Array((4096, shape, _views.compact_strides(shape), kind, _views.on_device(1)), buffer)

    def test_arrays_by_dlpack(self):
        array = self.array("bf16")
        self.assertEqual(array.__dlpack_device__(), (2, 1))
        lent = len(dlpack._lent)
        borrowed = dlpack.Borrowed(array.__dlpack__(stream=1, max_version=(1, 0)))
        tensor = borrowed.tensor
        self.assertEqual((tensor.data, tensor.ndim, tuple(tensor.shape[:2]), tuple(tensor.strides[:2])),
                         (4096, 2, (2, 3), (3, 1)))
        self.assertEqual((tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes), (4, 16, 1))
        self.assertEqual(len(dlpack._lent), lent + 1)
        borrowed.release()
        self.assertEqual(len(dlpack._lent), lent)

    def test_an_unused_capsule_gives_back(self):
        lent = len(dlpack._lent)
        capsule = self.array().__dlpack__()
        self.assertEqual(len(dlpack._lent), lent + 1)
        del capsule
        gc.collect()
        self.assertEqual(len(dlpack._lent), lent)

    def test_arrays_are_not_copied(self):
        for options in ({"copy": True}, {"dl_device": (1, 0)}):
            with self.assertRaises(BufferError):
                self.array().__dlpack__(**options)
        self.array().__dlpack__(copy=False, dl_device=(2, 1))

    def test_arrays_by_interface(self):
        interface = self.array("fp32").__cuda_array_interface__
        self.assertEqual((interface["typestr"], interface["shape"], interface["data"]), ("<f4", (2, 3), (4096, False)))
        self.assertFalse(hasattr(self.array("bf16"), "__cuda_array_interface__"))

    # ---- Views

    def test_views(self):
        view = (4096, (2, 3, 4, 5), (60, 20, 5, 1), _views.FP16, CUDA0)
        self.assertEqual(_views.selected(view, 1, 2)[:3], (4096 + 2 * 20 * 2, (2, 4, 5), (60, 5, 1)))
        self.assertEqual(_views.shortened(view, 1, 2)[:3], (4096, (2, 2, 4, 5), (60, 20, 5, 1)))
        self.assertEqual(_views.inserted(view, 1)[1], (2, 1, 3, 4, 5))
        self.assertEqual(_views.compact_strides((2, 0, 4)), (4, 4, 1))

    def test_alignment_class(self):
        def alignment(pointer, shape, strides):
            from attnsmith._calls.forms import alignment_of
            return alignment_of([(pointer, shape, strides, _views.BF16, CUDA0)])
        self.assertEqual(alignment(4096, (2, 3, 8), (24, 8, 1)), 16)
        self.assertEqual(alignment(4104, (2, 3, 8), (24, 8, 1)), 8)
        self.assertEqual(alignment(4096, (2, 3, 8), (24, 10, 1)), 4)
        self.assertEqual(alignment(4096, (2, 3, 8), (27, 9, 1)), 2)
        self.assertEqual(alignment(4098, (2, 3, 8), (24, 8, 1)), 2)
        self.assertEqual(alignment(4096, (1, 1, 8), (27, 9, 1)), 16, "no element is reached by these strides")
        self.assertEqual(alignment(0, (0, 3, 8), (27, 9, 1)), 16)
        self.assertEqual(alignment(4097, (2, 3, 8), (24, 8, 1)), 2, "the library names this pointer")

    def test_windows(self):
        from attnsmith._base.options import pair
        self.assertEqual([pair(window) for window in ((3, 0), [3, -1], (None, 2), (-1, -1))],
                         [(3, 0), (3, -1), (None, 2), (-1, -1)])
        error = self.assert_refused("window", pair, 128)
        self.assertIn("(127, 0)", error.accepted)
        for window in (0, (1,), (1, 2, 3), 1.5, "12", b"12"):
            self.assert_refused("window", pair, window)
        for window in ((True, 0), (1.0, 0), ("1", 0), ([1], 0)):
            self.assert_refused("window_left", pair, window)
            self.assert_refused("window_right", pair, window[::-1])

    def test_streams(self):
        self.assertEqual(frameworks.raw_stream(7), 7)
        self.assertEqual(frameworks.raw_stream(types.SimpleNamespace(cuda_stream=8)), 8)
        self.assertEqual(frameworks.raw_stream(types.SimpleNamespace(ptr=9)), 9)
        self.assertEqual(frameworks.raw_stream(types.SimpleNamespace(__cuda_stream__=lambda: (0, 10))), 10)
        self.assert_refused("stream", frameworks.raw_stream, "default")

        class Handle:  # as CUDA's own Python has them
            def __int__(self):
                return 11
        for stream, number in (({"handle": ctypes.c_void_p(12)}, 12), ({"handle": ctypes.c_void_p(0)}, 0),
                               ({"handle": Handle()}, 11), ({"handle": 13, "__cuda_stream__": (0, 14)}, 14)):
            self.assertEqual(frameworks.raw_stream(types.SimpleNamespace(**stream)), number)

    def test_streams_that_are_none(self):
        for attribute in ("cuda_stream", "ptr", "handle"):
            for value in (-1, 2**64, "7", "", 3.5, True, object(), []):
                with self.subTest(**{attribute: value}):
                    stream = types.SimpleNamespace(**{attribute: value})
                    self.assert_refused("stream", frameworks.raw_stream, stream)
        for said in (7, (0,), (0, -1), (0, 1, 2), (0, "7")):
            self.assert_refused("stream", frameworks.raw_stream, types.SimpleNamespace(__cuda_stream__=lambda: said))


class FakeTorch(types.ModuleType):
    """As much of torch as its adapter uses."""

    def __init__(self):
        super().__init__("torch")
        for name in ("float16", "bfloat16", "float32", "float64", "int32", "int64", "uint8"):
            setattr(self, name, f"torch.{name}")
        self.stream, self.grad, self.device_now = 42, True, 0
        self._C = types.SimpleNamespace(_cuda_getCurrentRawStream=lambda index: self.stream + index,
                                        _cuda_getDevice=lambda: self.device_now,
                                        _cuda_isCurrentStreamCapturing=lambda: False)
        self.cuda = types.SimpleNamespace(
            current_stream=lambda index: types.SimpleNamespace(cuda_stream=1000 + index),
            current_device=lambda: self.device_now, is_current_stream_capturing=lambda: False,
            device=lambda index: ("device", index), stream=lambda stream: ("stream", stream),
            ExternalStream=lambda number, device: ("external", number, device),
            default_stream=lambda index: ("default", index))

    def is_grad_enabled(self):
        return self.grad

    class Tensor:
        def __init__(self, shape=(2, 3), strides=(3, 1), dtype="torch.bfloat16", device=0, requires_grad=False):
            self.shape, self._strides, self.dtype = shape, strides, dtype
            self.is_cuda, self.requires_grad = device >= 0, requires_grad
            self.device = f"cuda:{device}" if device >= 0 else "cpu"
            self._index, self.negates = device, False

        def data_ptr(self):
            return 4096

        def stride(self):
            return self._strides

        def get_device(self):
            return self._index

        def is_neg(self):
            return self.negates

        def __dlpack__(self, stream=None):
            raise AssertionError("a capsule was made of a torch tensor")


class Torch(PythonTest):
    def setUp(self):
        super().setUp()
        self.torch = FakeTorch()
        for patch in (mock.patch.dict(sys.modules, torch=self.torch), mock.patch.dict(frameworks._met, clear=True),
                      mock.patch.dict(frameworks._by_type)):
            patch.start()
            self.addCleanup(patch.stop)

    def test_views_without_capsules(self):
        tensor = FakeTorch.Tensor(device=3)
        framework = frameworks.of(tensor, "q")
        self.assertIsInstance(framework, frameworks.Torch)
        self.assertEqual(framework.view(tensor, "q"), (4096, (2, 3), (3, 1), _views.BF16, _views.on_device(3)))
        self.assertEqual((framework.index(tensor, "q"), framework.stream(3)), (3, 45))

    def test_subclasses(self):
        class Parameter(FakeTorch.Tensor):
            pass
        self.assertIs(frameworks.of(Parameter(), "q"), frameworks.of(FakeTorch.Tensor(), "q"))

    def test_gradients(self):
        tensor = FakeTorch.Tensor(requires_grad=True)
        framework = frameworks.of(tensor, "q")
        error = self.assert_refused("q.requires_grad", framework.view, tensor, "q")
        self.assertIn("torch.no_grad()", error.accepted)
        self.assertIn("q.detach()", error.accepted)
        self.torch.grad = False
        self.assertEqual(framework.view(tensor, "q")[0], 4096)

    def test_views_that_negate(self):
        tensor = FakeTorch.Tensor()
        framework = frameworks.of(tensor, "q")
        self.torch.grad = False
        self.assertEqual(len(framework.layouts((tensor, tensor))[0]), 2)
        tensor.negates = True
        self.assertIsNone(framework.layouts((FakeTorch.Tensor(), tensor)))
        self.assertIn("resolve_neg", self.assert_refused("q", framework.view, tensor, "q").accepted)

    def test_what_is_refused(self):
        framework = frameworks.of(FakeTorch.Tensor(), "q")
        error = self.assert_refused("k.device", framework.view, FakeTorch.Tensor(device=-1), "k")
        self.assertEqual(error.value, "cpu")
        self.assert_refused("q.device", framework.index, FakeTorch.Tensor(device=-1), "q")
        error = self.assert_refused("k.dtype", framework.view, FakeTorch.Tensor(dtype="torch.float64"), "k")
        self.assertEqual(error.value, "torch.float64")

    def test_tensors_of_others_among_torch_ones(self):
        framework = frameworks.of(FakeTorch.Tensor(), "q")
        order = Order(0, lambda stream: None)
        self.assertEqual(framework.view(Foreign(8192, (2,)), "kv_lens", order)[0], 8192)
        self.assertEqual(len(order.held), 1)
        self.assert_refused("kv_lens", framework.view, [3], "kv_lens", order)

    def test_scopes(self):
        framework = frameworks.of(FakeTorch.Tensor(), "q")
        self.assertIsNone(framework.scope(0, None))
        self.assertEqual(framework.scope(1, None), ("device", 1))
        self.assertEqual(framework.scope(1, 5), ("stream", ("external", 5, 1)))
        self.assertEqual(framework.scope(1, 0), ("stream", ("default", 1)))

    def test_public_fallbacks(self):
        """A torch without the inner functions."""
        self.torch._C = types.SimpleNamespace()
        framework = frameworks.of(FakeTorch.Tensor(), "q")
        self.assertEqual((framework.stream(2), framework.is_capturing(), framework.current_device()), (1002, False, 0))


class Cupy(PythonTest):
    def setUp(self):
        super().setUp()
        self.cupy = types.ModuleType("cupy")
        streams = {0: 70, 1: 71}
        self.current = [0]

        class Device:
            def __init__(device, index=None):
                device.id = self.current[-1] if index is None else index

            def __enter__(device):
                self.current.append(device.id)

            def __exit__(device, *exception):
                self.current.pop()

        self.cupy.cuda = types.SimpleNamespace(
            Device=Device, get_current_stream=lambda: types.SimpleNamespace(ptr=streams[self.current[-1]]),
            ExternalStream=lambda number, device: (number, device))
        self.cupy.empty = lambda shape, dtype: (shape, dtype, self.current[-1])
        for patch in (mock.patch.dict(sys.modules, cupy=self.cupy), mock.patch.dict(frameworks._met, clear=True),
                      mock.patch.dict(frameworks._by_type)):
            patch.start()
            self.addCleanup(patch.stop)

    def make(self, index=0, **interface):
        array = Interface(**interface)
        array.device, array.dtype = types.SimpleNamespace(id=index), "its dtype"
        array.__class__ = type("ndarray", (Interface,), {"__module__": "cupy._core.core"})
        return array

    def test_arrays(self):
        array = self.make(index=1, strides=(8, 2))
        framework = frameworks.of(array, "q")
        self.assertEqual(framework.name, "cupy")
        self.assertEqual(framework.view(array, "q", Order(0, None)),
                         (4096, (2, 3), (4, 1), _views.FP16, _views.on_device(1)))
        self.assertEqual((framework.index(array, "q"), framework.stream(0), framework.stream(1)), (1, 70, 71))
        self.assertEqual(framework.empty(array, [2, 3], _views.FP32, None, 1), ((2, 3), "float32", 1))
        self.assertEqual(framework.empty(array, [2, 3], _views.BF16, None, 1), ((2, 3), "its dtype", 1))
        self.assertEqual(framework.empty(array, (), _views.INT32, None, 1), ((), "int32", 1))
        self.assertIsNone(framework.scope(1, None))
        self.assertEqual(framework.scope(1, 5), (5, 1))

    def test_bfloat16_comes_by_dlpack(self):
        array = self.make(typestr="<V2")
        foreign = Foreign(8192, (2, 3), dtype=(4, 16))
        type(array).__dlpack__ = lambda self, stream=None: foreign.__dlpack__(stream)
        type(array).__dlpack_device__ = lambda self: (2, 0)
        view = frameworks.of(array, "q").view(array, "q", Order(0, None))
        self.assertEqual((view[0], view[3]), (8192, _views.BF16))


if __name__ == "__main__":
    unittest.main()
