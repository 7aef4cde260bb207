"""Remote layers and keys from Python: what one runtime pushes another fetches. Nothing here needs a GPU."""

import subprocess
import sys
import unittest

from support import COMMAND, REPOSITORY, PythonTest, attnsmith, python

sys.path.insert(0, str(REPOSITORY / "tests/cli"))
from remote_server import RemoteServer  # noqa: E402  (of the command's tests)

# Kernels that compile in no time.
MERGE = {"op": "merge", "head_dim_vo": 64, "q_heads": 8}


class Remotes(PythonTest):
    def setUp(self):
        super().setUp()
        for name in ("key", "other"):
            subprocess.run([COMMAND, "cache", "keygen", "-o", str(self.folder / name)], check=True, capture_output=True)
        server = RemoteServer(self.folder / "www")
        server.__enter__()
        self.addCleanup(server.__exit__)
        self.server = server

    def of_fleet(self, disk, trusted="key", **options):
        return self.runtime(cache_dirs=[self.folder / disk, self.server.address],
                            trust_key_files=[self.folder / f"{trusted}.pub"], **options)

    def summary(self, runtime, **options):
        return runtime.prewarm(MERGE, sm=[80, 90], **options)["summary"]

    def test_pushed_and_fetched(self):
        builder = self.of_fleet("builder", sign_key_file=self.folder / "key")
        summary = self.summary(builder, push=True)
        self.assertEqual((summary["compiled"], summary["pushed"]), (2, 2))
        again = builder.cache("push", sm=[90])
        self.assertEqual((again["schema"], again["pushed"], again["present"]), ("attnsmith.cache-push/1", 0, 1))
        summary = self.summary(self.of_fleet("server", nvrtc_path="/nowhere"), compile=False)
        self.assertEqual((summary["remote"], summary["missing"]), (2, 0))
        # Another's key is no reason to take anything.
        stranger = self.of_fleet("stranger", "other", nvrtc_path="/nowhere")
        with self.assertWarnsRegex(RuntimeWarning, "no trusted key"):
            report = stranger.prewarm(MERGE, sm=90, compile=False)
        self.assertEqual((report["summary"]["remote"], report["summary"]["ok"]), (0, False))
        self.assertIn("no trusted key", report["kernels"][0]["error"])

        with self.assertWarnsRegex(RuntimeWarning, "1 of 1 kernels are missing: .*it has no entry"):
            missing = self.of_fleet("another", nvrtc_path="/nowhere").prewarm(MERGE, sm=86, compile=False)
        self.assertEqual((missing["summary"]["missing"], missing["summary"]["ok"]), (1, False))

    def test_what_is_compiled_is_pushed_when_asked(self):
        self.summary(self.of_fleet("quiet", sign_key_file=self.folder / "key"))
        self.assertEqual(self.server.files("ac"), [])
        summary = self.summary(self.of_fleet("open", sign_key_file=self.folder / "key", push_compiled=True))
        self.assertEqual((summary["compiled"], summary["pushed"]), (2, 2))
        self.assertEqual(self.summary(self.of_fleet("server"))["remote"], 2)

    def test_a_password_that_cannot_be_read_is_not_shown(self):
        """Given to a runtime, and as the variable; by the C ABI in either case."""
        for place in ("http://user:PA/hush@host.invalid/k", "http://me@corp.invalid:hush@host.invalid", "https:/user:hush@host.invalid",
                      "HTTP://user:hush@host.invalid", "s3://AKIA:hush/x@bucket"):
            with self.subTest(place):
                error = self.assert_refused("cache_dirs", self.runtime, cache_dirs=[self.folder / "disk", place])
                told = repr(error) + str(error) + str(error.details)
                program = "import attnsmith\ntry:\n    attnsmith.Runtime()\nexcept attnsmith.InvalidRequest as error:\n    print(error)"
                done = python(program, ATTNSMITH_CACHE_DIR=f"{self.folder}/disk:{place}", ATTNSMITH_LOG="debug")
                for text in (told, done.stdout):
                    self.assertIn("%2F", text)
                    self.assertIn("ATTNSMITH_CACHE_USER", text)
                self.assertNotIn("hush", told + done.stdout + done.stderr + str(self.log))
        readable = self.runtime(cache_dirs=[self.folder / "disk", "http://user:hush%2Fx@127.0.0.1:1/k"], log_level="debug")
        told = repr(readable) + str(readable.cache("stat")) + str(readable.prewarm(MERGE, sm=90)) + str(self.log)
        self.assertIn("http://127.0.0.1:1/k", told)
        self.assertNotIn("hush", told)

    def test_refused(self):
        (self.folder / "empty.pub").touch()
        self.assert_refused("trust_key_files", self.of_fleet, "a", "empty")
        for push in (lambda runtime: runtime.prewarm(MERGE, sm=90, push=True), lambda runtime: runtime.cache("push")):
            with self.assertRaisesRegex(attnsmith.CacheError, "there is no remote"):
                push(self.runtime())
            self.assert_refused("sign_key_file", push, self.of_fleet("b", sign_key_file=self.folder / "other"))
        self.assertEqual(self.server.requests, [])


if __name__ == "__main__":
    unittest.main()
