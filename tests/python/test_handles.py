"""What owns an object of the library: copies, closing while other threads are in a call, and the interpreter's end."""

import copy
import gc
import pickle
import tempfile
import threading
import unittest
from unittest import mock

from launch_case import LaunchTest
from support import FAKE_CUDA, SMALL, PythonTest, attnsmith, python

# Threads that plan while another closes their runtime, and daemon threads that the end of the interpreter meets there.
CLOSED = """
import attnsmith, sys, threading, time
runtime = attnsmith.Runtime(driver_path=sys.argv[1], log=lambda level, line: None, log_level="debug")
refused = []
def work():
    try:
        while True:
            runtime.plan(sm=80, head_dim=64, q_heads=4)
    except attnsmith.Error as error:
        refused.append(str(error))
threads = [threading.Thread(target=work, daemon=True) for _ in range(4)]
for thread in threads:
    thread.start()
time.sleep(0.2)
if sys.argv[2] == "close":
    runtime.close()
    for thread in threads:
        thread.join()
    print(sorted(set(refused)), len(refused))
"""


class Copies(LaunchTest):
    def owners(self):
        kernel = self.rt.prepare(**SMALL, batch=1, q_len=8, kv_len=16)
        q, k, o = self.array(1, 8, 4, 64), self.array(1, 16, 2, 64), self.array(1, 8, 4, 64)
        shared = [self.rt, kernel, self.rt.prepare_async(**SMALL)]
        return shared, [kernel.bind(q, k, k, o), self.rt.allocate(256)]

    def test_what_may_be_shared_is_its_own_copy(self):
        shared, _ = self.owners()
        for owner in shared:
            for copied in (copy.copy(owner), copy.deepcopy(owner), copy.deepcopy({"owner": [owner]})["owner"][0]):
                self.assertIs(copied, owner)

    def test_what_may_not_says_how_to_get_another(self):
        _, (call, buffer) = self.owners()
        for owner, remedy in ((call, "bind()"), (buffer, "allocate()")):
            for copying in (copy.copy, copy.deepcopy):
                with self.assertRaises(TypeError) as caught:
                    copying(owner)
                self.assertIn(f"an attnsmith.{type(owner).__name__} cannot be copied: ", str(caught.exception))
                self.assertIn(remedy, str(caught.exception))
        self.assertEqual(self.launched(call.launch)[0], 1)
        array = buffer.array((2, 2), "int32")
        self.assertIs(copy.copy(array)._buffer, buffer)
        with self.assertRaises(TypeError):
            copy.deepcopy(array)

    def test_none_is_pickled(self):
        shared, others = self.owners()
        for owner in (*shared, *others, others[1].array((1,), "int32")):
            with self.subTest(owner=owner), self.assertRaises(TypeError) as caught:
                pickle.dumps(owner)
            self.assertIn("cannot be pickled, since it is of this process alone: ", str(caught.exception))

    def test_what_was_never_made_ends_in_silence(self):
        for kind in (attnsmith.Runtime, attnsmith.Kernel, attnsmith.Buffer, attnsmith.Call, attnsmith.Pending):
            with mock.patch("sys.unraisablehook") as noise:
                one = kind.__new__(kind)
                del one
                gc.collect()
            noise.assert_not_called()


class Closing(PythonTest):
    def setUp(self):
        super().setUp()
        self.rt = self.runtime()
        self.freed = []
        free = self.rt._library.functions.attnsmith_runtime_free
        self.rt._handle._free = lambda pointer: (self.freed.append(pointer), free(pointer))

    def test_a_call_under_way_comes_to_its_end(self):
        functions = self.rt._library.functions
        plan_json = functions.attnsmith_plan_json

        def closed_meanwhile(*arguments):
            closer = threading.Thread(target=self.rt.close)
            closer.start()
            closer.join()
            self.assertEqual(self.freed, [])
            with self.assertRaisesRegex(attnsmith.Error, "closed"):
                self.rt.devices()
            self.assertEqual(self.freed, [])
            return plan_json(*arguments)
        with mock.patch.object(functions, "attnsmith_plan_json", closed_meanwhile):
            self.assertEqual(self.rt.plan(**SMALL, sm=90)["schema"], "attnsmith.plan/1")
        self.assertEqual(len(self.freed), 1)

    def test_a_call_that_fails_does_not_hold_it(self):
        for _ in range(3):
            self.assert_refused("scale", self.rt.plan, **SMALL, scale=-1.0, sm=90)
            with self.assertRaises(attnsmith.Unsupported):
                self.rt.plan(**{**SMALL, "head_dim": 520}, sm=90)
        self.rt.close()
        self.assertEqual(len(self.freed), 1)

    def test_twice_and_afterwards(self):
        self.rt.close()
        self.rt.close()
        self.assertEqual(len(self.freed), 1)
        for ask in (lambda: self.rt.plan(**SMALL, sm=90), lambda: self.rt.prepare(**SMALL), self.rt.devices,
                    lambda: self.rt.prepare_async(**SMALL), lambda: self.rt.allocate(16), self.rt.synchronize,
                    self.rt.cache, lambda: self.rt.prewarm(SMALL, sm=90)):
            with self.assertRaisesRegex(attnsmith.Error, "this attnsmith.Runtime is closed"):
                ask()

    def test_threads_that_plan(self):
        result = python(CLOSED, FAKE_CUDA, "close")
        self.assertEqual((result.returncode, result.stdout), (0, "['this attnsmith.Runtime is closed'] 4\n"),
                         result.stderr)

    def test_daemon_threads_that_plan_at_the_end(self):
        result = python(CLOSED, FAKE_CUDA, "end")
        self.assertEqual((result.returncode, result.stdout), (0, ""), result.stderr)

    def test_the_end_waits_for_calls_under_way(self):
        from attnsmith._c_api import handles
        owner = self.rt
        entered, leave = threading.Event(), threading.Event()

        def work():
            with owner._open():
                entered.set()
                leave.wait(60)
        thread = threading.Thread(target=work)
        thread.start()
        entered.wait(60)
        handles.close_all([owner], 0.01)  # no longer than this
        self.assertEqual(self.freed, [])
        threading.Timer(0.05, leave.set).start()
        handles.close_all([owner], 60)
        self.assertEqual(len(self.freed), 1)
        thread.join()


@unittest.skipUnless(FAKE_CUDA, "ATTNSMITH_FAKE_CUDA is not set")
class Pendings(LaunchTest):
    def test_the_log_of_a_runtime_that_is_gone(self):
        """It is called until the kernel is there."""
        program = """
import attnsmith, gc, sys
lines = []
runtime = attnsmith.Runtime(driver_path=sys.argv[1], cache_dirs=sys.argv[2], log_level="debug",
                            log=lambda level, line: lines.append(line))
pending = [runtime.prepare_async(head_dim=size, q_heads=1) for size in (8, 16)]
del runtime
gc.collect()
print([one.result().spec["head_dim_qk"] for one in pending], bool(lines))
"""
        with tempfile.TemporaryDirectory() as cache:
            result = python(program, FAKE_CUDA, cache)
        self.assertEqual((result.returncode, result.stdout), (0, "[8, 16] True\n"), result.stderr)

    def test_closed_while_it_is_asked(self):
        pending = self.rt.prepare_async(**SMALL)
        pending.result()
        functions = self.rt._library.functions
        ready = functions.attnsmith_pending_ready

        def closed_meanwhile(pointer):
            pending._close()
            return ready(pointer)
        with mock.patch.object(functions, "attnsmith_pending_ready", closed_meanwhile):
            self.assertTrue(pending.ready())
        with self.assertRaisesRegex(attnsmith.Error, "closed"):
            pending.result()

    def test_in_a_forked_child(self):
        """Whose parent is still preparing: it is told, frees them and ends as any program does."""
        program = """
import attnsmith, os, signal, sys
runtime = attnsmith.Runtime(driver_path=sys.argv[1], cache_dirs=sys.argv[2], log_level="off")
pendings = [runtime.prepare_async(head_dim=size, q_heads=1) for size in (8, 16, 24, 32, 40)]
child = os.fork()
if child == 0:
    signal.alarm(60)
    assert all(pending.ready() for pending in pendings)
    try:
        pendings[-1].result()
    except attnsmith.Error as error:
        print(str(error).partition(";")[0], flush=True)
    del pendings[:2]
    sys.exit(0)
print(os.waitpid(child, 0)[1], [pending.result().spec["head_dim_qk"] for pending in pendings])
"""
        with tempfile.TemporaryDirectory() as cache:
            result = python(program, FAKE_CUDA, cache)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stdout, r"^this process was forked while another thread .*\n0 \[8, 16, 24, 32, 40\]\n$")


if __name__ == "__main__":
    unittest.main()
