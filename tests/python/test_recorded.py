"""Record once, prewarm for any GPU, serve without compiling: through a stub of the CUDA driver."""

import json
import os
import pathlib
import subprocess
import sys
import unittest
import unittest.mock

from support import FAKE_CUDA, FAKE_NVRTC, MODELS, PACKAGE, SMALL, PythonTest, attnsmith, nvrtc_missing

PROGRAM = pathlib.Path(__file__).resolve().parent / "recorded_program.py"
HEAD_DIM = "16"  # quick to compile


def run_program(cache, sm, **environment):
    variables = {**os.environ, "PYTHONPATH": str(PACKAGE.parent), "ATTNSMITH_CACHE_DIR": str(cache),
                 "FAKE_CUDA_SM": str(sm), **environment}
    return subprocess.run([sys.executable, "-B", str(PROGRAM), HEAD_DIM, "0", FAKE_CUDA], env=variables,
                          capture_output=True, text=True, timeout=240, check=False)


@unittest.skipUnless(FAKE_CUDA, "ATTNSMITH_FAKE_CUDA is not set")
class Recorded(PythonTest):
    def setUp(self):
        super().setUp()
        missing = nvrtc_missing()
        if missing:
            self.skipTest(missing)

    def test_what_is_recorded_and_prewarmed_does_not_miss(self):
        recorded = self.folder / "recorded.jsonl"
        done = run_program(self.folder / "staging", 90, ATTNSMITH_RECORD=str(recorded))
        self.assertEqual((done.returncode, done.stdout), (0, "done\n"), done.stderr)
        requests = [json.loads(line)["request"] for line in recorded.read_text().splitlines()]
        self.assertEqual({(one["op"], one.get("kv"), one.get("index_dtype")) for one in requests},
                         {("attention", "dense", "int32"), ("attention", "ragged", "int32"),
                          ("attention", "ragged", "int64"), ("attention", "paged", "int32"),
                          ("attention", "paged", "int64"), ("merge", None, None)})
        fleet = self.folder / "fleet"
        report = attnsmith.Runtime(cache_dirs=fleet).prewarm(recorded=recorded, sm=89)
        summary = report["summary"]
        self.assertEqual((summary["compiled"], summary["unsupported"]), (summary["total"], 0))
        serving = {"ATTNSMITH_ON_MISS": "error", "ATTNSMITH_NVRTC_PATH": "/nowhere"}
        done = run_program(fleet, 89, **serving)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "done\n", ""))
        counters = attnsmith.Runtime(cache_dirs=fleet).cache("stat")["counters"]
        self.assertEqual((counters["miss_errors"], counters["compiles"]), (0, summary["total"]))
        # The test can fail: for another GPU nothing is there.
        done = run_program(fleet, 90, **serving)
        self.assertEqual(done.returncode, 1)
        self.assertIn("KernelMissing", done.stderr)
        self.assertRegex(done.stderr, r"build it with: attnsmith prewarm --head-dim 16 .* --sm 90")


@unittest.skipUnless(FAKE_CUDA, "ATTNSMITH_FAKE_CUDA is not set")
class OnMiss(PythonTest):
    def serving(self, **options):
        os.environ["FAKE_CUDA_SM"] = "90"
        return self.runtime(driver_path=FAKE_CUDA, nvrtc_path="/nowhere", **options)

    def test_a_miss(self):
        with self.assertRaises(attnsmith.KernelMissing) as caught:
            self.serving(on_miss="error").prepare(**SMALL, batch=3)
        error = caught.exception
        self.assertEqual((error.sm, len(error.key)), (90, 32))
        self.assertEqual({name: error.request[name] for name in SMALL if name != "head_dim"},
                         {name: value for name, value in SMALL.items() if name != "head_dim"})
        self.assertEqual(error.command, "attnsmith prewarm --head-dim 64 --q-heads 4 --kv-heads 2 --sm 90 --cache "
                         f"{self.folder / 'cache'}")
        self.assertIn(error.command, str(error))
        self.assertEqual(error.details["code"], "kernel_missing")
        with self.assertRaises(attnsmith.LibraryMissing):  # it would compile
            self.serving(on_miss="compile").prepare(**SMALL)

    def test_options(self):
        self.assert_refused("on_miss", attnsmith.Runtime, on_miss="default")
        self.assert_refused("toolchain", attnsmith.Runtime, on_miss="error", toolchain="exact")

    def test_use_environment(self):
        with unittest.mock.patch.dict(os.environ, {"ATTNSMITH_LOG": "loud"}):
            self.assert_refused("ATTNSMITH_LOG", attnsmith.Runtime)
            attnsmith.Runtime(use_environment=False, log_level="off").close()
            self.assert_refused("use_environment", attnsmith.Runtime, use_environment="no")

    def test_record_file(self):
        file = self.folder / "recorded.jsonl"
        with self.assertRaises(attnsmith.KernelMissing):
            self.serving(on_miss="error", record_file=file).prepare(**SMALL)
        (line,) = file.read_text().splitlines()
        record = json.loads(line)
        self.assertEqual((record["schema"], record["request"]["head_dim_qk"]), ("attnsmith.recorded/1", 64))


class Coverage(PythonTest):
    LLAMA = MODELS / "llama-3.1-8b.json"

    def test_lists(self):
        coverage = self.runtime().coverage(model=self.LLAMA, kv=["paged", "dense"], index_dtype=("int32", "int64"),
                                           page_size=[16, 64])
        asked = {(one["request"]["kv"], one["request"]["page_size"], one["request"]["index_dtype"], one["phase"])
                 for one in coverage["attentions"]}
        self.assertEqual(asked, {(kv, size, index, phase) for kv, size in (("paged", 16), ("paged", 64), ("dense", 0))
                                 for index in ("int32", "int64") for phase in ("prefill", "decode")})
        self.assertEqual([part["name"] for part in coverage["skipped"]], ["page_size with kv dense"])
        plans = self.runtime().plan_model(self.LLAMA, sm=90, kv=["paged", "dense"],
                                         consistency=["standard", "bitwise"], precision="high")
        self.assertEqual((len(plans["plans"]), len(plans["unsupported"])), (4, 4))
        for part in plans["unsupported"]:
            self.assertIn("consistency bitwise", part["name"])
        request = self.runtime().coverage(SMALL, alignment=[16, 8])
        self.assertEqual([one["request"]["alignment"] for one in request["attentions"]], [16, 8])
        self.assert_refused("kv", self.runtime().coverage, SMALL, kv=["dense", "sparse"])
        self.assert_refused("q_heads", self.runtime().coverage, SMALL, q_heads=[1, 2])

    @unittest.skipUnless(FAKE_NVRTC, "ATTNSMITH_FAKE_NVRTC is not set")
    def test_any_number_of_recorded_specs(self):
        """As the command does: a fleet's file grows for as long as it is recorded to."""
        file = self.folder / "recorded.jsonl"
        words = [{"op": "merge", "head_dim_vo": 64, "q_heads": heads} for heads in range(1, 4200)]
        file.write_text("".join(json.dumps({"schema": "attnsmith.recorded/1", "request": one}) + "\n" for one in words))
        report = self.runtime(nvrtc_path=FAKE_NVRTC).prewarm(recorded=file, sm=90)
        self.assertTrue(report["summary"]["ok"], report["summary"])

    def test_recorded_files_that_are_wrong(self):
        runtime = self.runtime()
        file = self.folder / "recorded.jsonl"
        self.assert_refused("recorded", runtime.prewarm, recorded=file, sm=90)
        for text, field in ((b"", str(file)), (b"{}\n", f"{file}:1: schema"), (b"\n\0\n", f"{file}:2")):
            file.write_bytes(text)
            self.assert_refused(field, runtime.prewarm, recorded=[file], sm=90)


if __name__ == "__main__":
    unittest.main()
