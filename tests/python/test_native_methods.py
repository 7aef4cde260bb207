"""Call.launch and Kernel.bind by the module attnsmith._native, and by ctypes, which stands in its place: both do the same."""

import contextlib
import ctypes
import gc
import inspect
import itertools
import pydoc
import resource
import sys
import tempfile
import threading
import tracemalloc
import types
import unittest
import weakref
from unittest import mock

import test_launch
from attnsmith import kernels
from attnsmith._c_api import native_module
from attnsmith._c_api.library import address_of
from launch_case import LaunchTest, pointers_of_arguments
from support import FAKE_CUDA, SMALL, attnsmith, in_threads, python

FREED = "call: NULL is not accepted; expected a pointer that is not NULL"  # what a launch of such a call says
_LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 3)
_LAUNCH_AT = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 4)

# A bound call, for programs of their own: sys.argv has the driver and the folder of the kernels.
BOUND = f"""
import attnsmith, ctypes, gc, os, sys, threading, time
from attnsmith._c_api import native_module
runtime = attnsmith.Runtime(driver_path=sys.argv[1], cache_dirs=sys.argv[2], log_level="off")
def bound():
    array = lambda *shape: runtime.allocate(8192).array(shape, "bf16")
    kernel = runtime.prepare(**{SMALL}, batch=1, q_len=8, kv_len=16)
    return kernel.bind(array(1, 8, 4, 64), array(1, 16, 2, 64), array(1, 16, 2, 64), array(1, 8, 4, 64))
call = bound()
call.launch()
"""

# CPython's own module for tests, which runs code in another interpreter.
TESTCAPI = """
import sys
try:
    import _testcapi
except ImportError:
    print("no _testcapi")
    sys.exit()
"""


@contextlib.contextmanager
def in_python():
    """Serves meanwhile what a Python without the module serves."""
    with mock.patch.object(kernels, "native", None), \
            mock.patch.object(kernels.Call, "launch", inspect.unwrap(kernels.Call.launch)):
        yield


class BothWays(LaunchTest):
    def setUp(self):
        super().setUp()
        if native_module.native is None:
            self.skipTest("ATTNSMITH_NATIVE_MODULE is not set")

    def bound(self, **words):
        kernel = self.rt.prepare(**SMALL, batch=1, q_len=8, kv_len=16)
        self.tensors = self.array(1, 8, 4, 64), self.array(1, 16, 2, 64), self.array(1, 16, 2, 64), self.array(1, 8, 4, 64)
        return kernel.bind(*self.tensors, **words)

    @contextlib.contextmanager
    def launched_by(self, call, launch=None, launch_at=None, current_stream=None):
        """Has other functions in the place of attnsmith_launch and attnsmith_call_launch_at."""
        functions = call._library.functions
        launch = _LAUNCH(launch) if launch else functions.attnsmith_launch
        launch_at = _LAUNCH_AT(launch_at) if launch_at else functions.attnsmith_call_launch_at
        current_stream = current_stream or call._current_stream
        launcher = None if call._launcher is None else kernels.native.launcher(
            address_of(launch), address_of(launch_at), call._pointer.value, call._pointer, current_stream, call._library.error)
        with mock.patch.object(functions, "attnsmith_call_launch_at", launch_at), mock.patch.multiple(
                call, _launch=launch, _current_stream=current_stream, _launcher=launcher):
            yield

    def ways(self):
        """(its name, what it is within)"""
        return ("native", contextlib.nullcontext()), ("ctypes", in_python())

    def outcome(self, work):
        """What it gives, or raises."""
        try:
            return work()
        except Exception as error:
            return type(error), str(error), getattr(error, "details", None)

    def each_way(self, work):
        outcomes = []
        for way, within in self.ways():
            with self.subTest(way=way), within:
                outcomes.append(self.outcome(work))
        return outcomes

    def assert_alike(self, work):
        native, by_ctypes = self.each_way(work)
        self.assertEqual(native, by_ctypes)
        return native


class ObjectsInPython(test_launch.Objects):
    def setUp(self):
        super().setUp()
        within = in_python()
        within.__enter__()
        self.addCleanup(within.__exit__, None, None, None)


class Launches(BothWays):
    def test_it_is_the_module_that_serves(self):
        call, stream = self.bound(), self.stream()
        with mock.patch.object(call, "_launch", None), mock.patch.object(call, "_stream", None):
            for words in ({}, {"stream": stream}, {"k": self.tensors[1].data}):
                self.assertEqual(self.launched(call.launch, **words)[0], 1)
            self.assertEqual(self.launched(call.launch, stream)[0], 1)
        self.assertIsNotNone(call._launcher)
        with in_python():
            self.assertIsNone(self.bound()._launcher)

    def test_results_and_errors_are_equal(self):
        class Integer:
            def __index__(self):
                return 3

        class Stream:
            ptr = 9

        self.state.param_bytes = 64
        at = self.array(1, 16, 2, 64).data
        calls = [((stream,), {}) for stream in (
            None, 0, 1, 7, (1 << 64) - 1, 1 << 64, -1, True, False, 1.0, "7", [], Integer(), Stream(), ctypes.c_void_p(3),
            types.SimpleNamespace(cuda_stream=8), types.SimpleNamespace(__cuda_stream__=lambda: (0, 10)))]
        calls += [((), words) for words in (
            {"stream": 7}, {"stream": None}, {"".join(["str", "eam"]): 7}, {"stream": "7"}, {"k": at}, {"k": at, "v": at},
            {"k": None, "v": at}, {"k": Integer()}, {"k": True}, {"k": 0}, {"k": -1}, {"k": 1 << 64}, {"k": "k"}, {"lse": at},
            {"v": at + 2}, {"k": self.array(1, 16, 2, 64)}, {"k": self.array(1, 15, 2, 64)}, {"q": at, "stream": 7},
            {"q": at, "k": at, "v": at, "o": at, "stream": 5}, {"strem": 7}, {"kk": at}, {"self": 1}, {"1": 2}, {"": 2})]
        calls += [((7,), {"stream": 7}), ((1, 2), {}), ((1, 2, 3), {"k": at}), ((1,), {"k": at})]
        functions = self.rt._library.functions
        real, real_at = functions.attnsmith_launch, functions.attnsmith_call_launch_at
        streams = []

        def launch(call, stream, error):
            streams.append(stream)
            return real(call, None, error)  # the stub has no such stream

        def launch_at(call, at, stream, error):
            streams.append(stream)
            return real_at(call, at, None, error)

        def work():
            streams.clear()
            call = self.call
            with self.launched_by(call, launch, launch_at):
                result = call.launch(*arguments, **words)
            return result, streams[:], self.launched_at("q", "k", "v", "o")
        served, native, tensors = 0, self.bound(), self.tensors
        with in_python():
            by_ctypes = self.rt.prepare(**SMALL, batch=1, q_len=8, kv_len=16).bind(*tensors)
        for arguments, words in calls:
            with self.subTest(arguments=arguments, words=words):
                outcomes = []
                for self.call, (_, within) in zip((native, by_ctypes), self.ways()):
                    with within:
                        outcomes.append(self.outcome(work))
                self.assertEqual(*outcomes)
                served += outcomes[0][0] is None
        self.assertGreater(served, 15)
        call = native
        self.state.fail_launch = 719
        stream = self.stream()
        for words in ({}, {"stream": stream}, {"k": at}):
            kind, text, details = self.assert_alike(lambda: call.launch(**words))
            self.assertEqual((kind, details["driver_code"]), (attnsmith.DriverError, 719))

    def test_the_current_stream(self):
        class Interrupt(BaseException):
            pass

        def interrupt():
            raise Interrupt

        streams = []
        for current in (lambda: 7, lambda: (1 << 64) - 1, lambda: None, lambda: {}["stream"]):
            def work():
                call = self.bound()
                with self.launched_by(call, lambda call, stream, error: streams.append(stream) or 0, current_stream=current):
                    call.launch()
                    call.launch(None)
                return streams.pop(), streams.pop()
            self.assert_alike(work)
        for _, within in self.ways():
            with within:
                call = self.bound()
                with self.launched_by(call, current_stream=interrupt), self.assertRaises(Interrupt):
                    call.launch()

    def test_it_is_a_method_as_others_are(self):
        call = self.bound()
        launch = call.launch
        self.assertIs(launch.__self__, call)
        self.assertEqual(inspect.signature(launch), inspect.signature(types.MethodType(inspect.unwrap(kernels.Call.launch), call)))
        self.assertEqual(list(inspect.signature(kernels.Call.launch).parameters)[:3], ["self", "stream", "q"])
        self.assertIn("may be captured in a CUDA graph", inspect.getdoc(kernels.Call.launch))
        self.assertEqual((launch.__name__, kernels.Call.launch.__qualname__), ("launch", "Call.launch"))
        self.assertIn("may be captured in a CUDA graph", pydoc.render_doc(kernels.Call))
        alive = weakref.ref(call)
        del call
        self.assertEqual(self.launched(launch)[0], 1)  # which keeps the call
        self.assertEqual(self.launched(kernels.Call.launch, alive(), self.stream())[0], 1)
        for kind in (type(kernels.Call.launch), type(alive()._launcher)):
            self.assertRaises(TypeError, kind)
        del launch
        self.assertIsNone(alive())

    def test_objects_that_are_no_call(self):
        launch = kernels.Call.launch
        unmade = kernels.Call.__new__(kernels.Call)
        for arguments in ((), (3,), (None, 7), (unmade,), (unmade, 7), (types.SimpleNamespace(_launcher=object()),)):
            def work():
                try:
                    kernels.Call.launch(*arguments)
                except (AttributeError, TypeError) as error:
                    return type(error), str(error)
            with self.subTest(arguments=arguments):
                self.assertIn(self.assert_alike(work)[0], (AttributeError, TypeError))
        self.assertRaises(TypeError, kernels.native.launch_method, launch, ("q",))
        self.assertRaises(TypeError, kernels.native.launch_method, launch, 3)
        self.assertRaises(TypeError, kernels.native.launch_method)
        self.assertRaises(TypeError, kernels.native.launcher, 1)
        self.assertRaises(TypeError, kernels.native.launcher, "1", 1, 1, None, None, None)

    def test_merges_and_appends(self):
        kernel = self.rt.prepare(op="merge", head_dim=64, q_heads=4)
        states = [self.array(5, 4, 64) for _ in range(2)], [self.array(5, 4, dtype="fp32") for _ in range(2)]
        call = kernel.bind_merge(*states, self.array(5, 4, 64))
        self.assertEqual(self.each_way(lambda: self.launched(call.launch)), [(1, None)] * 2)
        self.assertIs(self.assert_alike(lambda: call.launch(q=4096))[0], attnsmith.InvalidRequest)


class Binds(BothWays):
    def test_results_and_errors_are_equal(self):
        kernel = self.rt.prepare(**SMALL, batch=1, q_len=8, kv_len=16)
        q, k, o = self.array(1, 8, 4, 64), self.array(1, 16, 2, 64), self.array(1, 8, 4, 64)
        workspace = self.rt.allocate(kernel.workspace_bytes(batch=1, q_tokens=8, max_kv_len=16))
        lens = self.array(1, dtype="int32", values=[9])
        self.state.param_bytes = 256
        names = pointers_of_arguments()
        for tensors, words in (
                ((q, k, k, o), {}), ((q, k, k, o), {"workspace": workspace}), ((q, k, k, o), {"kv_lens": lens}),
                ((q, k, k, o), {"max_q_len": 4, "max_kv_len": 7}), ((q, k, k, o), {"max_q_len": -1}),
                ((q, k, k, o), {"max_q_len": 1 << 63}), ((q, k, k, o), {"max_q_len": 1.0}), ((q, k, k, None), {}),
                ((None, k, k, o), {}), ((q, [1], k, o), {}), ((q, k, k, o), {"lse": self.array(1, 8, 4, dtype="fp32")}),
                ((q, k, self.array(1, 16, 2, 64, dtype="fp16"), o), {}), ((q, self.array(1, 16, 2, 64, device=1), k, o), {}),
                ((self.array(1, 8, 4, 64, offset=2), k, k, o), {}), ((self.array(1, 1, 1, 8, 4, 64), k, k, o), {}),
                ((self.array(1, 1, 8, 4, 64), k, k, o), {}), ((self.array(), k, k, o), {}),
                ((self.array(1, 0, 4, 64), k, k, self.array(1, 0, 4, 64)), {}),
                ((q, k, k, o), {"workspace": self.rt.allocate(16)}), ((q, k, k, o), {"workspace": b"host"})):
            def bind():
                call = kernel.bind(*tensors, **words)
                call.launch()
                launch = self.state.last_launch
                at = self.launched_at(*names[:20])
                known = {tensor.data for tensor in (q, k, o, lens)}
                return call.describe(), [one if one in known else one != 0 for one in at], list(launch.grid)
            with self.subTest(words=words, shapes=[getattr(tensor, "shape", None) for tensor in tensors]):
                self.assert_alike(bind)
        kernel.__del__()
        self.assertIs(self.assert_alike(lambda: kernel.bind(q, k, k, o))[0], attnsmith.InvalidRequest)

    def test_shapes_in_any_sequence(self):
        kernel = self.rt.prepare(**SMALL, batch=1, q_len=8, kv_len=16)
        self.bound()
        tensors = [tensor._view for tensor in self.tensors]
        library = kernel._library

        def bind(views, *rest):
            return kernels.native.bind(library.address("attnsmith_bind"), kernel._pointer, views, *rest, library.error)

        class Interrupting:
            def __iter__(self):
                raise KeyboardInterrupt

        free = library.functions.attnsmith_call_free
        rest = [None] * 16
        pointer, shape, strides, kind, device = tensors[0]
        for sequence in (list, tuple, lambda numbers: range(0) if not numbers else (ctypes.c_int64 * len(numbers))(*numbers)):
            call = bind([(pointer, sequence(shape), sequence(strides), kind, device), *tensors[1:], *rest], 0, 0, None, 0)
            self.assertIsInstance(call, int)
            free(call)
        for view in ((pointer, shape, strides, kind), (pointer, shape, strides[1:], kind, device), list(tensors[0]), 3,
                     (pointer, None, strides, kind, device), (pointer, (1.0,) * 4, strides, kind, device),
                     (-1, shape, strides, kind, device), (pointer, (1 << 63,) * 4, strides, kind, device),
                     (pointer, (1,) * 6, (1,) * 6, kind, device), (pointer, shape, strides, "bf16", device)):
            self.assertIsNone(bind([view, *tensors[1:], *rest], 0, 0, None, 0), view)
        self.assertIsNone(bind([*tensors, *rest[1:]], 0, 0, None, 0))
        self.assertIsNone(bind((*tensors, *rest), 0, 0, None, 0))
        self.assertIsNone(bind([*tensors, *rest], "0", 0, None, 0))
        self.assertRaises(KeyboardInterrupt, bind, [(pointer, Interrupting(), strides, kind, device), *tensors[1:], *rest], 0, 0,
                          None, 0)
        self.assertRaises(TypeError, kernels.native.bind, 1)
        self.assertRaises(TypeError, bind, [*tensors, *rest], 0, 0, "workspace", 0)


class Lifetimes(BothWays):
    def test_a_call_that_is_freed(self):
        def work():
            call = self.bound()
            call.launch()
            call.__del__()
            outcomes = []
            for words in ({}, {"stream": 7}, {"k": self.tensors[1].data}):
                with self.assertRaises(attnsmith.InvalidRequest) as caught:
                    call.launch(**words)
                outcomes.append(str(caught.exception))
            return outcomes
        self.assertEqual(self.assert_alike(work), [FREED] * 3)

    def test_a_call_is_freed_once_by_the_last_of_its_threads(self):
        for way, within in self.ways():
            with self.subTest(way=way), within:
                call = self.bound()
                freed, free = [], call._pointer._free
                call._pointer._free = lambda pointer: (freed.append(pointer), free(pointer))
                entered, leave = threading.Event(), threading.Event()

                def launch(pointer, stream, error):
                    entered.set()
                    leave.wait(60)
                    return 0
                with self.launched_by(call, launch):
                    thread = threading.Thread(target=call.launch)
                    thread.start()
                    self.assertTrue(entered.wait(60))  # so other threads run meanwhile
                call.__del__()
                gc.collect()
                self.assertEqual(freed, [])
                leave.set()
                thread.join()
                self.assertEqual(len(freed), 1)
                del call, thread
                gc.collect()
                self.assertEqual(len(freed), 1)

    def test_threads_that_launch_while_another_frees(self):
        for way, within in self.ways():
            with self.subTest(way=way), within:
                for _ in range(20):
                    call = self.bound()
                    launched = threading.Barrier(5)
                    refused = []

                    def work():
                        launched.wait()
                        try:
                            while True:
                                call.launch()
                        except attnsmith.InvalidRequest as error:
                            refused.append(str(error))

                    def free():
                        launched.wait()
                        call.__del__()
                    freeing = threading.Thread(target=free)
                    freeing.start()
                    self.assertEqual(in_threads(4, work), [])
                    freeing.join()
                    self.assertEqual(refused, [FREED] * 4)

    def test_nothing_is_left_of_a_million_launches(self):
        big = self.stream()
        for way, within in self.ways():
            with self.subTest(way=way), within:
                call = self.bound()
                at = call._held[0][1].data
                kept = [call, call._launcher, call._pointer, call._library.error.__func__, call._current_stream, at, big,
                        call._held, kernels.Call.launch]
                count = 1_000_000 if way == "native" else 200_000

                def run(count):
                    for _ in itertools.repeat(None, count):
                        call.launch()
                    for _ in itertools.repeat(None, count // 10):
                        call.launch(big)
                        call.launch(stream=big, k=at)
                    self.state.fail_launch = 719
                    for _ in itertools.repeat(None, count // 1000):
                        with contextlib.suppress(attnsmith.DriverError):
                            call.launch()
                    self.state.fail_launch = 0
                run(2000)
                gc.collect()
                tracemalloc.start()
                self.addCleanup(tracemalloc.stop)
                references, memory = [sys.getrefcount(one) for one in kept], tracemalloc.get_traced_memory()[0]
                resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
                run(10000)
                tracemalloc.stop()
                run(count)
                gc.collect()
                tracemalloc.start()
                run(10)
                gc.collect()
                self.assertEqual([sys.getrefcount(one) for one in kept], references)
                self.assertLess(tracemalloc.get_traced_memory()[0], memory + 20000)
                tracemalloc.stop()
                self.assertLess(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - resident, 4 << 10)  # KiB

    def test_nothing_is_left_of_many_binds(self):
        for way, within in self.ways():
            with self.subTest(way=way), within:
                call = self.bound()
                kernel = self.rt.prepare(**SMALL, batch=1, q_len=8, kv_len=16)
                bound = [call._held[0], kernel, call._library, *call._views[:4], call._views[0][1]]
                tensors = self.tensors

                def run(count):
                    for _ in range(count):
                        kernel.bind(*tensors).launch()
                        with contextlib.suppress(attnsmith.InvalidRequest):
                            kernel.bind(*tensors[:3], tensors[1])
                run(10)
                gc.collect()
                frees, allocations = self.state.frees, self.state.allocations
                references = [sys.getrefcount(one) for one in (*bound, *tensors)]
                run(1000)
                gc.collect()
                self.assertEqual([sys.getrefcount(one) for one in (*bound, *tensors)], references)
                self.assertEqual(self.state.frees - frees, self.state.allocations - allocations)


class Processes(BothWays):
    def run_both_ways(self, program, wanted):
        for file in (None, "none"):
            with self.subTest(module=file), tempfile.TemporaryDirectory() as cache:
                environment = {} if file is None else {"ATTNSMITH_NATIVE_MODULE": file, "PYTHONWARNINGS": "ignore"}
                done = python(BOUND + program, FAKE_CUDA, cache, **environment)
                self.assertEqual((done.returncode, done.stdout), (0, wanted), done.stderr)
                self.assertEqual(done.stderr, "")

    def test_without_the_module(self):
        done = python("import attnsmith; print(type(attnsmith.Call.launch).__name__)", ATTNSMITH_NATIVE_MODULE="/none.so", PYTHONWARNINGS=None)
        self.assertEqual((done.returncode, done.stdout), (0, "function\n"), done.stderr)
        self.assertIn("ATTNSMITH_NATIVE_MODULE is not used", done.stderr)

    def test_a_fork_with_a_call_alive(self):
        self.run_both_ways("""
codes = []
for number in range(6):
    child = os.fork()
    if child == 0:
        for _ in range(100):
            call.launch()
            call.launch(0)
        if number % 2:
            call.__del__()
        sys.exit(7)  # as any program ends
    call.launch()
    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
call.launch()
print(set(codes))
""", "{7}\n")

    def test_the_end_with_calls_alive(self):
        self.run_both_ways("""
other = bound()
other.itself = other  # a cycle
launch = bound().launch
import builtins
builtins.kept = bound()
print(len([call, other, launch]))
""", "3\n")

    def test_the_end_while_daemon_threads_launch(self):
        self.run_both_ways("""
for _ in range(4):
    def work(call=bound()):
        while True:
            call.launch()
    threading.Thread(target=work, daemon=True).start()
time.sleep(0.1)
""", "")

    def assert_prints(self, program, wanted):
        """A program with TESTCAPI, whose sys.argv[3] is BOUND."""
        with tempfile.TemporaryDirectory() as cache:
            done = python(program, FAKE_CUDA, cache, BOUND)
        if done.stdout.startswith("no _testcapi"):
            self.skipTest("CPython's _testcapi is not installed")
        self.assertEqual((done.returncode, done.stdout), (0, wanted), done.stderr)

    def test_a_second_interpreter(self):
        """The first has the module, the second does all in Python."""
        program = TESTCAPI + """
before = call.launch.__class__, type(attnsmith.Call.launch).__name__
code = "import sys; sys.argv = " + repr(sys.argv) + "\\n" + sys.argv[3] + '''
assert native_module.native is None, native_module.native
for _ in range(100):
    call.launch()
call.__del__()
try:
    call.launch()
except attnsmith.InvalidRequest as error:
    print(error, flush=True)
'''
import warnings
for _ in range(3):
    print(_testcapi.run_in_subinterp("import warnings; warnings.simplefilter('ignore')\\n" + code), flush=True)
    call.launch()
assert native_module.native is not None
"""
        self.assert_prints(BOUND + program, f"{FREED}\n0\n" * 3)

    def test_a_first_interpreter_that_comes_second(self):
        program = TESTCAPI + """
code = "import sys; sys.argv = " + repr(sys.argv) + "\\n" + sys.argv[3]
print(_testcapi.run_in_subinterp(code + "assert native_module.native is not None"), flush=True)
import warnings
warnings.simplefilter("ignore")
exec(code)
assert native_module.native is None
call.launch()
"""
        self.assert_prints(program, "0\n")


if __name__ == "__main__":
    unittest.main()
