"""attnsmith doctor, and what else depends on the machine."""

import json
import os
import re
import shlex
import shutil
import signal
import time
import unittest

from support import FAKE_NVRTC, LLAMA, PARTIAL, QUASAR, SMALL, CliTest, FakeGpuTest, main


class Doctor(CliTest):
    def doctor(self, *flags, env=None):
        """The checks by name, and the exit code."""
        result = self.run_cli("doctor", "--json", *flags, env=env)
        report = result.json()
        self.assertEqual((report["schema"], result.err), ("attnsmith.doctor/1", ""))
        self.assertEqual(report["ok"], result.code == 0)
        self.assertEqual(report["ok"], all(check["state"] != "fail" for check in report["checks"]))
        for check in report["checks"]:
            self.assertIn(check["state"], ("ok", "warn", "fail"))
            self.assertEqual("remedy" in check, check["state"] != "ok", check)
        return {check["name"]: check for check in report["checks"]}, result.code

    def test_without_a_gpu(self):
        checks, code = self.doctor()
        self.assertEqual(code, 0)
        self.assertEqual((checks["driver"]["state"], checks["nvrtc"]["state"], checks["cache"]["state"]),
                         ("warn", "ok", "ok"))
        self.assertIn(90, checks["nvrtc"]["supported_sms"])
        self.assertFalse((self.folder / "home").exists(), "doctor made the cache")
        text = self.assert_ok(self.run_cli("doctor")).out
        for word in ("driver", "nvrtc", "cache", "remedy: "):
            self.assertIn(word, text)

    def test_a_signal_ends_it_as_signals_do(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            codes = set()
            for step in range(20):
                process = self.start("doctor")
                time.sleep(0.003 * step)  # NVRTC's first compile is somewhere in these
                process.send_signal(number)
                codes.add(self.finish(process).code)
            self.assertLessEqual(codes, {0, -number})  # to a shell 130 and 143
            self.assertIn(-number, codes)

    def test_nvrtc_is_missing(self):
        checks, code = self.doctor(env={"ATTNSMITH_NVRTC_PATH": "/nowhere/lib"})
        self.assertEqual((code, checks["nvrtc"]["state"]), (1, "fail"))
        self.assertIn("/nowhere/lib", checks["nvrtc"]["text"])
        self.assertIn("FAIL", self.run_cli("doctor", env={"ATTNSMITH_NVRTC_PATH": "/nowhere"}).out)

    @unittest.skipUnless(FAKE_NVRTC, "ATTNSMITH_FAKE_NVRTC names no stub of libnvrtc")
    def test_the_remedy_for_nvrtc_cures(self):
        for place, env in (("venv/lib/python3.12/site-packages/nvidia/cu13/lib", {"VIRTUAL_ENV": "venv"}),
                           ("my env's/lib", {"CONDA_PREFIX": "my env's"}), ("build/cuda/lib", {})):
            with self.subTest(place=place):
                folder = self.folder / place
                folder.mkdir(parents=True)
                shutil.copy(FAKE_NVRTC, folder / "libnvrtc.so.13")
                env = {name: str(self.folder / value) for name, value in env.items()}
                checks, code = self.doctor(env={"ATTNSMITH_NVRTC_PATH": "/nowhere/lib", **env})
                self.assertEqual((code, checks["nvrtc"]["state"]), (1, "fail"))
                command = checks["nvrtc"]["remedy"].removeprefix("run: ")
                (export, assignment), = [shlex.split(command)]
                self.assertEqual((export, assignment), ("export", f"ATTNSMITH_NVRTC_PATH={folder}"))
                checks, code = self.doctor(env=dict([assignment.split("=", 1)], **env))
                self.assertEqual(checks["nvrtc"]["path"], str(folder / "libnvrtc.so.13"))
                shutil.rmtree(folder)
        # One that does not open is no remedy.
        folder.mkdir()
        self.write("build/cuda/lib/libnvrtc.so.13", "no library")
        checks, _ = self.doctor(env={"ATTNSMITH_NVRTC_PATH": "/nowhere/lib"})
        self.assertNotIn("export", checks["nvrtc"]["remedy"])

    @unittest.skipUnless(FAKE_NVRTC, "ATTNSMITH_FAKE_NVRTC names no stub of libnvrtc")
    def test_a_wrong_path_of_nvrtc_is_to_be_unset(self):
        """Where one is found without it; to install another would change nothing."""
        shutil.copy(FAKE_NVRTC, self.folder / "libnvrtc.so.13")
        for path in ("/nowhere", self.write("libother.so", "no library")):
            with self.subTest(path=path):
                env = {"ATTNSMITH_NVRTC_PATH": path, "LD_LIBRARY_PATH": str(self.folder)}
                remedy = self.doctor(env=env)[0]["nvrtc"]["remedy"]
                self.assertIn("run: unset ATTNSMITH_NVRTC_PATH; ", remedy)
                self.assertIn("correct it", remedy)
                self.assertNotIn("install", remedy)
                cured = self.doctor(env={**env, "ATTNSMITH_NVRTC_PATH": None})[0]["nvrtc"]
                self.assertIn(cured["path"], remedy)
                failed = self.run_cli("prewarm", *SMALL, "--sm", "90", "--cache", "kernels", env=env)
                self.assertIn("or unset it", failed.err)
                self.assertNotIn("pip install", failed.err)

    def test_how_to_install_nvrtc(self):
        """Told to who names none, and has none."""
        for environment, command in (({}, "run: pip install nvidia-cuda-nvrtc"),
                                     ({"VIRTUAL_ENV": "/my/venv"}, "run: /my/venv/bin/pip install nvidia-cuda-nvrtc")):
            checks, _ = self.doctor(env={"ATTNSMITH_NVRTC_PATH": None, **environment})
            if checks["nvrtc"]["state"] != "fail":
                self.skipTest("this machine has an NVRTC in one of the usual places")
            self.assertIn(command, checks["nvrtc"]["remedy"])

    def test_what_nvrtc_reads_of_the_environment(self):
        self.assertNotIn("environment", self.doctor()[0])
        checks, code = self.doctor(env={"NV_NVVM_VERSION": "nvvm70"})
        self.assertEqual((code, checks["environment"]["state"]), (0, "warn"))
        self.assertEqual((checks["environment"]["variable"], checks["environment"]["value"]),
                         ("NV_NVVM_VERSION", "nvvm70"))
        self.assertIn("unset NV_NVVM_VERSION", checks["environment"]["remedy"])

    def test_a_tuning_table_that_cannot_be_read(self):
        checks, code = self.doctor(env={"ATTNSMITH_TUNING": "/nowhere/tuning.json"})
        self.assertEqual((code, checks["tuning"]["state"]), (1, "fail"))
        self.assertIn("/nowhere/tuning.json", checks["tuning"]["text"])
        table = self.write("tuning.json", '{"schema": "attnsmith.tuning/1", "entries": []}')
        checks, _ = self.doctor(env={"ATTNSMITH_TUNING": table})
        self.assertEqual((checks["tuning"]["state"], checks["tuning"]["entries"]), ("ok", 0))

    def test_variables_that_cannot_be_understood(self):
        """Lines of the report, which is whole beside them."""
        for name, value, words in (("ATTNSMITH_LOG", "eror", "off, error, warn, info or debug (did you mean error?)"),
                                   ("ATTNSMITH_ON_MISS", "compil", "compile or error (did you mean compile?)")):
            checks, code = self.doctor(env={name: value})
            self.assertEqual((code, checks["environment"]["state"]), (1, "fail"))
            self.assertEqual((checks["environment"]["variable"], checks["environment"]["value"]), (name, value))
            self.assertIn(words, checks["environment"]["text"])
            self.assertIn("unset " + name, checks["environment"]["remedy"])
            for part in ("driver", "nvrtc", "cache"):
                self.assertIn(part, checks)
            self.assert_refused(self.run_cli("plan", *SMALL, "--sm", "90", env={name: value}), name, words)
        both = self.run_cli("doctor", env={"ATTNSMITH_LOG": "loud", "ATTNSMITH_ON_MISS": "fail"})
        self.assertEqual((both.code, both.err), (1, ""))
        self.assertEqual(both.out.count("FAIL   environment"), 2, both.out)

    def test_a_record_that_cannot_be_written(self):
        self.assertNotIn("record", self.doctor()[0])
        for file, state in (("here", "ok"), ("nowhere/file", "warn"), (str(self.folder), "warn"), ("/dev/null", "warn")):
            checks, _ = self.doctor(env={"ATTNSMITH_RECORD": file})
            self.assertEqual(checks["record"]["state"], state, file)
        self.assertFalse((self.folder / "here").exists(), "doctor made the file")

    @unittest.skipUnless("ATTNSMITH_FULL_DISK" in os.environ, "ATTNSMITH_FULL_DISK names no stub of statvfs")
    def test_a_disk_that_is_nearly_full(self):
        checks, _ = self.doctor("--cache", "own", env={"LD_PRELOAD": os.environ["ATTNSMITH_FULL_DISK"]})
        self.assertEqual(checks["cache"]["state"], "warn")
        self.assertIn("nearly full: 1.0 MiB are free", checks["cache"]["text"])
        self.assertEqual(checks["cache"]["free_bytes"], 1 << 20)

    def test_no_more_sms_of_nvrtc_than_there_are_kernels_for(self):
        checks, _ = self.doctor()
        if checks["nvrtc"]["state"] == "fail":
            self.skipTest("there is no NVRTC")
        listed = re.search(r"compiles for sm (.*)$", checks["nvrtc"]["text"]).group(1)
        self.assertEqual(list(map(int, listed.split(", "))), checks["nvrtc"]["supported_sms"])
        self.assertEqual(sorted(checks["nvrtc"]["supported_sms"] + checks["nvrtc"]["unsupported_sms"]),
                         self.known_sms())

    def test_what_was_tried_is_said_once(self):
        for command in (["doctor"], ["check", "--model", LLAMA]):
            result = self.run_cli(*command, env={"ATTNSMITH_NVRTC_PATH": None})
            counts = [line.count("cannot open shared object file") for line in (result.out + result.err).splitlines()]
            if not any(counts):
                self.skipTest("there are a CUDA driver and an NVRTC")
            self.assertEqual(max(counts), 1, result)

    def test_a_home_where_nothing_can_be_made(self):
        for home in ("/proc", "/proc/none"):
            checks, _ = self.doctor(env={"HOME": home})
            self.assertIn("nothing can be made there", checks["cache"]["text"])
            self.assertNotIn("cannot write to:", checks["cache"]["text"])

    def test_no_cache(self):
        checks, code = self.doctor(env={"HOME": None})
        self.assertEqual((code, checks["cache"]["state"]), (1, "fail"))
        checks, code = self.doctor("--cache", self.write("file", ""))
        self.assertEqual((code, checks["cache"]["state"], checks["cache"]["writable"]), (1, "fail", False))

    def test_a_cache_that_is_not_trusted(self):
        for folder in ("own", "layer"):
            (self.folder / folder).mkdir()
            (self.folder / folder).chmod(0o777)
        checks, _ = self.doctor("--cache", "own")
        self.assertNotEqual(checks["cache"]["state"], "ok")
        self.assertIn("mode 0777", checks["cache"]["text"])
        self.assertIn("chmod go-w", checks["cache"]["remedy"])
        checks, _ = self.doctor("--cache", "own", "--cache-trust", "all")
        self.assertEqual(checks["cache"]["state"], "ok")
        checks, _ = self.doctor(env={"ATTNSMITH_CACHE_DIR": "home:layer"})
        self.assertEqual((checks["cache"]["state"], checks["cache layer"]["state"]), ("ok", "warn"))
        self.assertIn("mode 0777", checks["cache layer"]["text"])

    def test_layers_that_are_not_usable(self):
        self.write("text", "no bundle")
        os.mkfifo(self.folder / "fifo")
        for layer, reason in (("typo", "No such file"), ("text", "not a sound bundle"), ("fifo", "Not a directory")):
            checks, _ = self.doctor("--cache", "own", "--cache", layer)
            self.assertEqual((checks["cache"]["state"], checks["cache layer"]["state"]), ("ok", "warn"))
            self.assertIn(reason, checks["cache layer"]["text"])
            self.assertIn(reason, checks["cache layer"]["not_usable_because"])

    def test_a_shard_that_cannot_be_read(self):
        for folder in ("own", "layer"):
            (self.folder / folder).mkdir()
            self.write(folder + "/ab", "no directory")
        checks, _ = self.doctor("--cache", "own", "--cache", "layer")
        for name, folder in (("cache", "own"), ("cache layer", "layer")):
            self.assertEqual(checks[name]["state"], "warn")
            self.assertIn("not everything could be read", checks[name]["text"])
            self.assertTrue(checks[name]["unreadable"][0]["path"].endswith(folder + "/ab"))

    def test_check_needs_a_gpu(self):
        self.assert_failed(self.run_cli("check", "--model", LLAMA), "check needs a GPU", "`attnsmith doctor` says what helps")

    def test_bench_jit_without_a_gpu(self):
        report = self.assert_ok(self.run_cli("bench", "jit", "--model", LLAMA, "--sm", "90", "--repeat", "1",
                                             "--json")).json()
        self.assertEqual(report["schema"], "attnsmith.bench-jit/1")
        self.assertGreater(report["compile"]["median_ms"], 0)
        self.assertEqual(report["compile"]["samples"], len(report["compile"]["kernels"]))
        for part in ("disk_hit", "lookup", "launch"):
            self.assertIn("skipped", report[part])
        self.assertFalse((self.folder / "home").exists(), "bench wrote to the cache")


class FakeGpu(FakeGpuTest, Doctor):
    """The real NVRTC may want more of a driver than the stub has."""

    def prewarm_without_gpu(self):
        self.prewarm_small("kernels", env={"LD_LIBRARY_PATH": os.environ.get("LD_LIBRARY_PATH")})

    # Those of the base class are for a machine without a GPU.
    test_without_a_gpu = test_no_cache = test_check_needs_a_gpu = test_bench_jit_without_a_gpu = None

    def test_nvrtc_is_missing(self):
        without = {"ATTNSMITH_NVRTC_PATH": "/nowhere"}
        checks, code = self.doctor("--cache", "kernels", env=without)
        self.assertEqual((code, checks["nvrtc"]["state"], checks["device 0"]["state"]), (1, "fail", "fail"))
        self.prewarm_without_gpu()
        checks, code = self.doctor("--cache", "kernels", env=without)
        self.assertEqual((code, checks["nvrtc"]["state"], checks["device 0"]["state"]), (0, "warn", "ok"))
        self.assertEqual((checks["device 0"]["device"], checks["device 0"]["planned_as"]), ("Fake GPU", 90))
        self.assertEqual(checks["driver"]["state"], "ok")

    def test_old_gpu(self):
        env = {"FAKE_CUDA_SM": "75", "ATTNSMITH_NVRTC_PATH": "/nowhere"}
        checks, code = self.doctor(env=env)
        self.assertEqual((code, checks["device 0"]["state"], checks["device 0"]["supported"]), (1, "fail", False))
        self.assert_failed(self.run_cli("plan", *SMALL, env=env), "7.5")
        self.assert_failed(self.run_cli("prewarm", *SMALL, env=env), "7.5")

    def test_newer_gpu_is_planned_as_the_nearest(self):
        checks, _ = self.doctor(env={"FAKE_CUDA_SM": "88", "ATTNSMITH_NVRTC_PATH": "/nowhere"})
        self.assertEqual((checks["device 0"]["sm"], checks["device 0"]["planned_as"]), (88, 87))

    def test_plan_for_the_gpu(self):
        plan = self.assert_ok(self.run_cli("plan", *SMALL, "--json")).json()
        self.assert_plan(plan)
        self.assertEqual(plan["device"]["name"], "Fake GPU")
        plans = self.assert_ok(self.run_cli("plan", "--model", LLAMA, "--json")).json()["plans"]
        self.assertEqual({plan["device"]["name"] for plan in plans}, {"Fake GPU"})

    def test_check_tells_failures(self):
        env = {"LD_LIBRARY_PATH": os.environ.get("LD_LIBRARY_PATH")}
        self.assert_ok(self.run_cli("prewarm", "--model", LLAMA, "--sm", "90", "--cache", "kernels", "--json", env=env))
        result = self.run_cli("check", "--model", LLAMA, "--filter", "decode", "--cache", "kernels", "--json",
                              "--seed", "7")
        self.assert_failed(result, "cases failed")
        report = result.json()
        self.assertEqual((report["schema"], report["seed"], report["device"]["name"]),
                         ("attnsmith.check/1", 7, "Fake GPU"))
        self.assertEqual(report["summary"]["failed"], report["summary"]["total"])
        self.assertGreater(report["summary"]["total"], 0)
        for case in report["cases"]:
            self.assertEqual((case["model"], case["phase"]), ("llama-3.1-8b", "decode"))
            self.assertTrue(case["detail"])

    def test_check_of_what_is_not_supported_fails(self):
        """Also where there is nothing else to check, and so no case that could fail."""
        for json_flag in ([], ["--json"]):
            result = self.run_cli("check", "--model", PARTIAL, "--filter", "full_attention/decode", "--seed", "7", *json_flag)
            self.assert_failed(result, "1 part is not supported: latent-500/full_attention/decode")
            self.assertNotIn("failed", result.err)
        report = result.json()
        self.assertEqual((report["summary"]["total"], report["summary"]["unsupported"], report["cases"]), (0, 1, []))
        (part,) = report["unsupported"]
        self.assertEqual(part["name"], "latent-500/full_attention/decode")
        self.assertTrue(part["reason"])

    def test_bench_says_what_a_model_has_unknown(self):
        if self.run_cli("doctor").code < 0:
            self.skipTest("this NVRTC asks the driver for what the stub does not have")
        quasar = self.write("quasar.json", json.dumps(QUASAR))
        for command in (["jit", "--repeat", "1"], ["attention", "--cache", "kernels", "--q-len", "64", "--kv-len", "64"]):
            with self.subTest(command=command):
                report = self.assert_ok(self.run_cli("bench", *command, "--model", quasar, "--json")).json()
                self.assertEqual([one["field"] for one in report["warnings"]], ["kv_bend", "model_type"])
                self.assertEqual(report["unsupported"], [])
                text = self.assert_ok(self.run_cli("bench", *command, "--model", quasar)).out
                self.assertIn("warning  kv_bend: ", text)

    def test_bench_jit(self):
        if self.run_cli("doctor").code < 0:
            self.skipTest("this NVRTC asks the driver for what the stub does not have")
        report = self.assert_ok(self.run_cli("bench", "jit", "--model", LLAMA, "--repeat", "1", "--json")).json()
        self.assertEqual(report["device"]["name"], "Fake GPU")
        self.assertIs(report["disk_hit"]["nvrtc_loaded"], False)
        self.assertGreater(report["disk_hit"]["median_ms"], 0)
        self.assertGreater(report["lookup"]["median_us"], 0)
        self.assertGreater(report["launch"]["bare_us"], 0)


if __name__ == "__main__":
    main()
