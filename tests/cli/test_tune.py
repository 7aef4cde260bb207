"""attnsmith tune, and the tables that it writes."""

import itertools
import json
import os
import signal
import subprocess
import time

from support import BINARY, QUASAR, REPOSITORY, CliTest, FakeGpuTest, main

PREFILL = ["--head-dim", "128", "--q-heads", "8", "--q-len", "4096", "--kv-len", "4096"]


def table(tile_kv, **match):
    match = {"sm": 90, "head_dim_qk": 128, "head_dim_vo": 128, "kv": "contiguous", "mask": "full", **match}
    tile = {"backend": "wgmma", "tile_q": 128, "tile_kv": tile_kv, "stages": 2}
    return json.dumps({"schema": "attnsmith.tuning/1", "entries": [{"match": match, "tile": tile}]})


def decode_table(**changes):
    match = {"sm": 90, "head_dim_qk": 128, "head_dim_vo": 128, "kv": "contiguous", "max_rows": 16}
    tile = {"backend": "mma", "tile_q": 16, "tile_kv": 128, "stages": 1}
    for name, value in changes.items():
        (match if name in match else tile)[name] = value
    return json.dumps({"schema": "attnsmith.tuning/1", "entries": [{"match": match, "tile": tile}]})


class Tuning(CliTest):
    def kernel(self, *arguments, **options):
        result = self.assert_ok(self.run_cli("plan", *PREFILL, "--sm", "90", "--json", *arguments, **options))
        self.assert_plan(result.json())
        return result.json()["kernels"][0]

    def test_a_user_s_tile(self):
        self.assertEqual(self.kernel()["tuning"], "table")
        first, second = self.write("first.json", table(144)), self.write("second.json", table(96))
        for tile_kv, flags, env in [(144, ["--tuning", first], {}), (96, ["--tuning", second, first], {}),
                                    (96, [], {"ATTNSMITH_TUNING": second}),
                                    (144, ["--tuning", first], {"ATTNSMITH_TUNING": second})]:
            kernel = self.kernel(*flags, env=env)
            self.assertEqual((kernel["tuning"], kernel["tile_kv"]), ("user", tile_kv))
        self.assertEqual(self.kernel("--mask", "causal", "--tuning", first)["tuning"], "table")
        text = self.assert_ok(self.run_cli("plan", *PREFILL, "--sm", "90", "--tuning", first)).out
        self.assertRegex(text, r"128x144 +user")

    def test_a_table_from_a_pipe(self):
        first = self.write("first.json", table(144))
        script = f"""'{BINARY}' plan {" ".join(PREFILL)} --sm 90 --json --tuning <(cat {first})"""
        process = subprocess.Popen(["bash", "-c", script], cwd=self.folder, env=self.environment(),
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.assertEqual(self.assert_ok(self.finish(process)).json()["kernels"][0]["tuning"], "user")

    def test_a_tile_without_room_is_passed_over(self):
        file = self.write("large.json", table(256))
        plan = self.assert_ok(self.run_cli("plan", *PREFILL, "--sm", "90", "--json", "--tuning", file)).json()
        self.assertEqual(plan["kernels"][0]["tuning"], "table")
        reasons = {one["candidate"]: one["reason"] for one in plan["rejected"]}
        self.assertIn("of the user's entry for head dims 128 and 128: needs", reasons["wgmma 128x256 stages 2"])

    def test_a_tile_for_short_sequences(self):
        file = self.write("short.json", table(144, max_rows=4095))
        plan = ["plan", "--head-dim", "128", "--q-heads", "8", "--kv-len", "4096", "--sm", "90", "--json", "--tuning",
                file]
        for q_len, tuning, reason in [("4095", "user", "for more than 4095 packed query rows"),
                                      ("4096", "table", "for up to 4095 packed query rows")]:
            result = self.assert_ok(self.run_cli(*plan, "--q-len", q_len)).json()
            self.assert_plan(result)
            self.assertEqual(result["kernels"][0]["tuning"], tuning)
            self.assertIn(reason, [one["reason"] for one in result["unused"]])

    def test_a_tile_for_decode(self):
        file = self.write("decode.json", decode_table())
        plan = ["plan", "--head-dim", "128", "--q-heads", "32", "--kv-heads", "8", "--kv-len", "2048", "--sm", "90", "--json",
                "--tuning", file]
        for mask in ("full", "causal"):
            result = self.assert_ok(self.run_cli(*plan, "--q-len", "4", "--mask", mask)).json()
            self.assert_plan(result)
            kernel = result["kernels"][0]
            self.assertEqual([kernel[field] for field in ("tuning", "backend", "tile_q", "tile_kv", "stages")],
                             ["user", "mma", 16, 128, 1])
            self.assertIn("for more than 16 packed query rows", [one["reason"] for one in result["unused"]])
        more = self.assert_ok(self.run_cli(*plan, "--q-len", "512")).json()
        self.assertEqual((more["kernels"][0]["backend"], more["kernels"][0]["tuning"]), ("wgmma", "table"))

    def test_prewarm_compiles_what_is_planned(self):
        file = self.write("first.json", table(144))
        result = self.run_cli("prewarm", *PREFILL, "--sm", "90", "--cache", "kernels", "--json", "--tuning", file)
        self.assertEqual(result.code, 0, result.err)
        name = self.kernel("--tuning", file)["name"]
        self.assertIn("128x144", name)
        self.assertIn(name, [kernel["name"] for kernel in result.json()["kernels"]])
        self.assertEqual(self.kernel("--tuning", file, "--cache", "kernels")["cache"]["state"], "hit")

    def test_bad_tables(self):
        cases = [("/nowhere.json", "/nowhere.json: ", "No such file"), (str(self.folder), "directory"),
                 ("", '""'), (self.write("a.json", ""), "a.json: ", "empty"),
                 (self.write("b.json", "{"), "b.json: ", "malformed"),
                 (self.write("c.json", "{}"), "c.json: schema is missing"),
                 (self.write("d.json", table(100)), "d.json: entries[0].tile.tile_kv: 100", "multiple of 16"),
                 (self.write("e.json", table(96, heads=3)), "e.json: entries[0].match.heads: "),
                 (self.write("f.json", decode_table(max_rows=64)), "f.json: entries[0].match.max_rows: 64", "16"),
                 (self.write("g.json", decode_table(tile_q=64)), "g.json: entries[0].tile.tile_q: 64", "16")]
        for file, *words in cases:
            for command in (["plan"], ["prewarm", "--cache", "kernels"]):
                with self.subTest(file=file, command=command):
                    self.assert_refused(self.run_cli(*command, *PREFILL, "--sm", "90", "--tuning", file), *words)
        self.assert_refused(self.run_cli("plan", *PREFILL, "--sm", "90", "--tuning"), "--tuning")
        self.assertFalse((self.folder / "kernels").exists())

    def test_doctor_reads_them(self):
        first, broken = self.write("first.json", table(144)), self.write("broken.json", table(100))
        for file, state, words in [(first, "ok", "1 entry"), (broken, "fail", "tile_kv")]:
            result = self.run_cli("doctor", "--json", env={"ATTNSMITH_TUNING": file})
            (check,) = [check for check in result.json()["checks"] if check["name"] == "tuning"]
            self.assertEqual(check["state"], state)
            self.assertIn(words, check["text"])
        self.assertNotIn("tuning", self.run_cli("doctor").out)

    def test_tune_needs_a_gpu(self):
        for flags in ([], ["--quick", "--out", "tuning.json"], PREFILL):
            self.assert_failed(self.run_cli("tune", *flags), "tune needs a GPU", "`attnsmith doctor` says what helps")
        self.assertEqual(list(self.folder.iterdir()), [])

    def test_bad_input(self):
        broken = self.write("broken.json", table(100))
        for flags, word in [(["--out", "nowhere/tuning.json"], "nowhere/tuning.json"), (["--out", self.folder], "directory"),
                            (["--out", ""], "cannot be written"), (["--out", broken], "entries[0].tile.tile_kv"),
                            (["--seconds", "0"], "seconds"), (["--seconds", "soon"], "seconds"),
                            (["--max-rows", "1024"], "--max-rows is for a request"),
                            ([*PREFILL, "--decode"], "--decode"),
                            (["--head-dim", "64", "--q-heads", "8", "--q-len", "16", "--max-rows", "64"], "max-rows"),
                            ([*PREFILL, "--max-rows", "0"], "max-rows"), ([*PREFILL, "--max-rows", "4095"], "4096"),
                            (["--head-dim", "64", "--q-heads", "8", "--kv-heads", "2", "--max-rows", "4096"], "16384"),
                            (["--head-dim", "-8", "--q-heads", "8"], "head_dim"), (["--mask", "causal"], "head_dim"),
                            (["--tuning", broken], "--tuning")]:
            with self.subTest(flags=flags):
                self.assert_refused(self.run_cli("tune", *flags), word)


class FakeGpu(FakeGpuTest):
    """Every tile is as good as any there."""

    SMALL = ["--head-dim", "256", "--q-heads", "4", "--batch", "1", "--q-len", "64", "--kv-len", "64", "--cache", "kernels", "--quick"]

    def read(self, name):
        return json.loads((self.folder / name).read_text(encoding="utf-8"))

    def test_a_table_grows(self):
        if self.run_cli("doctor").code < 0:
            self.skipTest("this NVRTC asks the driver for what the stub does not have")
        result = self.assert_ok(self.run_cli("tune", *self.SMALL, "--out", "tuning.json"))
        self.assertIn("head dims 256 and 256, contiguous KV, full mask; batch 1, q_len 64", result.out)
        self.assertRegex(result.out, r"128x64 +2 ")
        self.assertIn("tuning.json: 1 entry, 1 measured now", result.out)
        written = self.read("tuning.json")
        (entry,) = written["entries"]
        self.assertEqual(entry["match"], {"sm": 90, "head_dim_qk": 256, "head_dim_vo": 256, "kv": "contiguous",
                                          "mask": "full"})
        self.assertEqual((entry["measured"]["device"], entry["measured"]["kv_len"]), ("Fake GPU", 64))
        self.assertGreater(entry["measured"]["tflops"], 0)
        try:
            import jsonschema
            schema = json.loads((REPOSITORY / "runtime/schemas/tuning.schema.json").read_text(encoding="utf-8"))
            jsonschema.validate(written, schema)
        except ImportError:
            pass

        self.assert_ok(self.run_cli("tune", *self.SMALL, "--mask", "causal", "--out", "tuning.json"))
        self.assert_ok(self.run_cli("tune", *self.SMALL, "--out", "tuning.json"))
        grown = self.read("tuning.json")["entries"]
        self.assertEqual([one["match"]["mask"] for one in grown], ["full", "causal"])
        for _ in range(2):
            result = self.assert_ok(self.run_cli("tune", *self.SMALL, "--max-rows", "64", "--out", "tuning.json"))
            self.assertIn("full mask, up to 64 packed query rows; batch 1, q_len 64", result.out)
            self.assertIn("tuning.json: 3 entries, 1 measured now", result.out)
        bounds = [(one["match"]["mask"], one["match"].get("max_rows")) for one in self.read("tuning.json")["entries"]]
        self.assertEqual(bounds, [("full", None), ("full", 64), ("causal", None)])
        plan = self.assert_ok(self.run_cli("plan", "--head-dim", "256", "--q-heads", "8", "--q-len", "4096", "--kv-len",
                                           "4096", "--sm", "90", "--json", "--tuning", "tuning.json")).json()
        self.assertEqual(plan["kernels"][0]["tuning"], "user")
        self.assertEqual(sorted(file.name for file in self.folder.iterdir() if file.name.startswith("tuning")),
                         ["tuning.json"])

    def test_decode(self):
        if self.run_cli("doctor").code < 0:
            self.skipTest("this NVRTC asks the driver for what the stub does not have")
        decode = ["--head-dim", "256", "--q-heads", "8", "--kv-heads", "2", "--batch", "1", "--q-len", "1", "--kv-len", "64",
                  "--cache", "kernels", "--quick", "--decode", "--out", "tuning.json"]
        result = self.assert_ok(self.run_cli("tune", *decode))
        self.assertIn("head dims 256 and 256, contiguous KV, any mask, up to 16 packed query rows; batch 1, q_len 1",
                      result.out)
        for tile in ("16x64 +1", "16x64 +2", "16x64 +3"):
            self.assertRegex(result.out, tile)
        self.assertNotIn("128x", result.out)
        self.assert_ok(self.run_cli("tune", *decode, "--mask", "causal"))
        (entry,) = self.read("tuning.json")["entries"]
        self.assertEqual(entry["match"], {"sm": 90, "head_dim_qk": 256, "head_dim_vo": 256, "kv": "contiguous",
                                          "max_rows": 16})
        self.assertEqual((entry["tile"]["backend"], entry["tile"]["tile_q"]), ("mma", 16))
        plan = self.assert_ok(self.run_cli("plan", "--head-dim", "256", "--q-heads", "8", "--kv-len", "64", "--sm", "90", "--json",
                                           "--tuning", "tuning.json")).json()
        self.assertEqual(plan["kernels"][0]["tuning"], "user")

    def test_json(self):
        if self.run_cli("doctor").code < 0:
            self.skipTest("this NVRTC asks the driver for what the stub does not have")
        result = self.assert_ok(self.run_cli("tune", *self.SMALL, "--out", "tuning.json", "--json"))
        report = result.json()
        self.assertEqual((report["schema"], report["file"], report["file_entries"], report["left_out"]),
                         ("attnsmith.tune/1", "tuning.json", 1, 0))
        self.assertEqual(report["device"]["name"], "Fake GPU")
        (measured,) = report["classes"]
        (entry,) = self.read("tuning.json")["entries"]
        self.assertEqual(measured["match"], entry["match"])
        self.assertEqual((measured["batch"], measured["q_len"], measured["kv_len"]), (1, 64, 64))
        best = measured["tiles"][0]
        self.assertEqual({field: best[field] for field in ("tile_q", "tile_kv", "stages")},
                         {field: entry["tile"][field] for field in ("tile_q", "tile_kv", "stages")})
        self.assertEqual(best["toolchain"], entry["measured"]["toolchain"])
        none = self.run_cli("tune", "--head-dim", "32", "--q-heads", "4", "--json")
        self.assert_failed(none, "head dims 32 and 32")
        self.assertEqual((none.json()["classes"], none.json()["file"]), ([], None))
        self.assertEqual(len(none.json()["unsupported"]), 1)

    def test_sizes_that_are_not_given(self):
        if self.run_cli("doctor").code < 0:
            self.skipTest("this NVRTC asks the driver for what the stub does not have")
        tune = ["tune", "--quick", "--cache", "kernels", "--json"]
        request = self.write("request.json", json.dumps({"head_dim": 256, "q_heads": 4, "batch": 1, "kv_len": 64}))
        for flags, sizes in ((["--head-dim", "256", "--q-heads", "4", "--q-len", "64"], (4, 64, 4096)),
                             (["--request", request], (1, 4096, 64))):
            (measured,) = self.assert_ok(self.run_cli(*tune, *flags)).json()["classes"]
            self.assertEqual((measured["batch"], measured["q_len"], measured["kv_len"]), sizes)

    def test_a_table_has_the_mode_that_the_umask_leaves(self):
        """A new one, and one that was there with another mode."""
        if self.run_cli("doctor").code < 0:
            self.skipTest("this NVRTC asks the driver for what the stub does not have")
        self.addCleanup(os.umask, os.umask(0o022))
        for mask, mode in ((0o022, 0o644), (0o077, 0o600)):
            os.umask(mask)
            for before in (None, 0o640):
                with self.subTest(umask=oct(mask), before=before):
                    table = self.folder / "tuning.json"
                    if before is not None:
                        table.chmod(before)
                    self.assert_ok(self.run_cli("tune", *self.SMALL, "--out", table))
                    self.assertEqual(oct(table.stat().st_mode & 0o777), oct(mode))
            table.unlink()

    def test_a_class_is_measured_by_its_largest_attention(self):
        """Layers that differ in their query heads share tiles. Which of them comes first does not count."""
        if self.run_cli("doctor").code < 0:
            self.skipTest("this NVRTC asks the driver for what the stub does not have")
        for heads in itertools.permutations((2, 4, 8)):
            with self.subTest(heads=heads):
                model = self.write("model.json", json.dumps({
                    "model_type": "openelm", "model_dim": 1024, "num_transformer_layers": 3, "head_dim": 256,
                    "num_query_heads": heads, "num_kv_heads": [2, 2, 2], "torch_dtype": "bfloat16"}))
                out = f"{heads}.json"
                flags = ["--batch", "1", "--q-len", "64", "--kv-len", "64", "--cache", "kernels", "--quick", "--out", out]
                result = self.assert_ok(self.run_cli("tune", "--model", model, *flags))
                self.assertEqual(result.out.count("8 query and 2 key/value heads"), 2)
                measured = [(entry["match"].get("max_rows"), entry["measured"]["q_heads"], entry["measured"]["q_len"])
                            for entry in self.read(out)["entries"]]
                self.assertEqual(measured, [(16, 8, 1), (None, 8, 64)])

    def test_what_has_no_tiles_is_told(self):
        result = self.run_cli("tune", "--head-dim", "32", "--q-heads", "4", "--out", "tuning.json")
        self.assert_failed(result, "head dims 32 and 32")
        self.assert_refused(self.run_cli("tune", *self.SMALL, "--sm", "80"), "sm: 80", "90")
        self.assert_failed(self.run_cli("tune", *self.SMALL, env={"FAKE_CUDA_SM": "80"}), "needs sm_90")
        self.assertFalse((self.folder / "tuning.json").exists())

    def test_latents_of_a_model_are_told(self):
        result = self.run_cli("tune", "--model", str(REPOSITORY / "tests/models/deepseek-v3.json"), "--quick", "--cache", "kernels")
        self.assert_failed(result, "1 part is not supported: full_attention/decode")

    def test_what_a_model_has_unknown_is_told(self):
        quasar = self.write("quasar.json", json.dumps({**QUASAR, "hidden_size": 32}))
        result = self.run_cli("tune", "--model", quasar, "--quick", "--cache", "kernels")
        self.assert_failed(result, "head dims 32 and 32")
        self.assertIn("warning  kv_bend: ", result.out)

    def test_an_interrupt_writes_nothing(self):
        process = self.start("tune", "--cache", "kernels", "--out", "tuning.json")
        kernels = self.folder / "kernels"
        deadline = time.monotonic() + 60
        while not kernels.exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        result = self.finish(process)
        self.assertEqual(result.code, 130, result.err)
        self.assertIn("nothing is written", result.err)
        self.assertFalse((self.folder / "tuning.json").exists())


if __name__ == "__main__":
    main()
