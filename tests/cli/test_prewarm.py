"""attnsmith prewarm."""

import fcntl
import json
import os
import re
import signal
import time
import unittest

from support import LLAMA, PARTIAL, QUASAR, SMALL, SPARSE, CliTest, main, on_terminal

FAKE_NVRTC = os.environ.get("ATTNSMITH_FAKE_NVRTC", "")
COUNTS = ("hits", "compiled", "remote", "waited", "failed", "cancelled")


class Prewarm(CliTest):
    def assert_consistent(self, report):
        self.assertEqual(report["schema"], "attnsmith.prewarm/1")
        summary = report["summary"]
        self.assertEqual(sum(summary[count] for count in COUNTS), summary["total"])
        self.assertEqual(len(report["kernels"]), summary["total"])
        self.assertEqual(len({kernel["key"] for kernel in report["kernels"]}), summary["total"])
        self.assertEqual(len(report["unsupported"]), summary["unsupported"])
        self.assertEqual(summary["ok"], summary["failed"] + summary["cancelled"] + summary["unsupported"] == 0)
        for kernel in report["kernels"]:
            self.assertEqual("error" in kernel, kernel["state"] == "failed")
        return summary

    def test_second_run_is_all_hits(self):
        command = ["prewarm", "--model", LLAMA, "--sm", "90", "--cache", "kernels"]
        first = self.run_cli(*command, "--json")
        summary = self.assert_consistent(self.assert_ok(first).json())
        self.assertEqual(summary["compiled"], summary["total"])
        self.assertGreater(summary["total"], 2)
        for kernel in first.json()["kernels"]:
            self.assertEqual(kernel["sm"], 90)
            self.assertGreater(kernel["cubin_bytes"], 0)
        second = self.run_cli(*command, "--json").json()
        self.assertEqual(self.assert_consistent(second)["hits"], summary["total"])
        self.assertEqual([k["key"] for k in second["kernels"]], [k["key"] for k in first.json()["kernels"]])
        # Text: a line a kernel on standard error, the summary on standard output.
        text = self.run_cli(*command)
        self.assertEqual((text.code, text.out.count("\n"), text.err.count("\n")), (0, 1, summary["total"]), text)
        self.assertIn(f"{summary['total']} hits, 0 compiled", text.out)
        # What is cached needs no NVRTC; whatever is planned of it is there.
        without = self.run_cli(*command, "--json", env={"ATTNSMITH_NVRTC_PATH": "/nowhere"}).json()
        self.assertEqual(without["summary"]["hits"], summary["total"])
        plans = self.run_cli("plan", "--model", LLAMA, "--sm", "90", "--cache", "kernels", "--json").json()
        for plan in plans["plans"]:
            self.assertEqual({kernel["cache"]["state"] for kernel in plan["kernels"]}, {"hit"})

    def test_where_the_kernels_are(self):
        """A read-only layer that has them all keeps them: the writable directory is not even made."""
        prewarm = ["prewarm", "--op", "merge", "--head-dim", "64", "--q-heads", "8"]
        layers = ["--cache", "new", "--cache", "layer"]
        here = self.folder.resolve()
        self.assert_ok(self.run_cli(*prewarm, "--sm", "80,90", "--cache", "layer", "--json"))
        result = self.run_cli(*prewarm, "--sm", "80,90", *layers)
        self.assertRegex(result.out, rf"^2 kernels: 2 hits, 0 compiled; [\d.]+ s, in {here}/layer\n$")
        self.assertFalse((self.folder / "new").exists())
        result = self.run_cli(*prewarm, "--sm", "80,86,90", *layers)
        self.assertRegex(result.out, rf"1 compiled; [\d.]+ s, 1 in {here}/new, 2 in {here}/layer\n$")
        report = self.assert_ok(self.run_cli(*prewarm, "--sm", "80,86,90", *layers, "--json")).json()
        self.assertEqual({kernel["sm"]: kernel["directory"] for kernel in report["kernels"]},
                         {80: f"{here}/layer", 86: f"{here}/new", 90: f"{here}/layer"})

    def test_jobs(self):
        """0 is all cores, as in the library, also where nothing is compiled."""
        prewarm = ["prewarm", "--op", "merge", "--head-dim", "64", "--q-heads", "8", "--sm", "90", "--cache", "kernels"]
        for dry in ([], ["--dry-run"]):
            self.assertEqual(self.run_cli(*prewarm, "--jobs", "0", *dry).code, 0)
            for wrong in ("-1", "1025", "many"):
                self.assert_refused(self.run_cli(*prewarm, "--jobs", wrong, *dry), "--jobs")

    def test_a_merge(self):
        command = ["--op", "merge", "--head-dim", "128", "--q-heads", "8", "--sm", "80,90", "--cache", "kernels", "--json"]
        report = self.assert_ok(self.run_cli("prewarm", *command)).json()
        self.assertEqual(self.assert_consistent(report)["compiled"], 2)
        for plan in self.run_cli("plan", *command).json()["plans"]:
            self.assertEqual([kernel["cache"]["state"] for kernel in plan["kernels"]], ["hit"])

    def test_strict_fails_when_the_work_is_done(self):
        quasar = self.write("quasar.json", json.dumps(QUASAR))
        command = ["prewarm", "--model", quasar, "--kv", "dense", "--sm", "90", "--cache", "kernels", "--json"]
        result = self.run_cli(*command, "--strict")
        self.assert_failed(result, "2 warnings count under --strict")
        report = result.json()
        self.assertEqual(self.assert_consistent(report)["compiled"], report["summary"]["total"])
        self.assertEqual([one["field"] for one in report["warnings"]], ["kv_bend", "model_type"])
        again = self.assert_ok(self.run_cli(*command)).json()
        self.assertEqual(again["summary"]["hits"], report["summary"]["total"])

    def test_a_part_that_is_not_supported(self):
        result = self.run_cli("prewarm", "--model", PARTIAL, "--sm", "90", "--cache", "kernels", "--json")
        self.assert_failed(result, "full_attention/decode")
        summary = self.assert_consistent(result.json())
        self.assertEqual((summary["compiled"], summary["unsupported"]), (summary["total"], 1))
        self.assertGreater(summary["total"], 2)

    def test_an_indexer_that_selects_all_keys(self):
        """Kernels depend on no lengths: they are built for who says that there are no more keys, and with a warning."""
        config = self.write("sparse.json", json.dumps(SPARSE))
        command = ["prewarm", "--model", config, "--sm", "90", "--dry-run"]
        result = self.run_cli(*command, "--json")
        self.assert_failed(result, "full_attention")
        self.assertIn("a kv_len of up to 2048 is planned", result.json()["unsupported"][0]["reason"])
        report = self.assert_ok(self.run_cli(*command, "--kv-len", "2048", "--json")).json()
        self.assertGreater(report["summary"]["total"], 2)
        self.assertIn("right only while a sequence has at most 2048 keys", report["warnings"][0]["text"])
        self.assertEqual(self.assert_ok(self.run_cli(*command, "--kv-len", "16", "--json")).json(), report)
        text = self.assert_ok(self.run_cli(*command, "--kv-len", "2048")).out
        self.assertIn("warning  index_topk: planned as dense attention", text)
        self.assert_failed(self.run_cli(*command, "--kv-len", "2048", "--strict"), "index_topk")

    def test_racing_processes_compile_each_kernel_once(self):
        command = ["prewarm", *SMALL, "--sm", "90", "--cache", "kernels", "--json"]
        racers = [self.start(*command) for _ in range(3)]
        summaries = [self.assert_consistent(self.assert_ok(self.finish(racer)).json()) for racer in racers]
        self.assertEqual({summary["total"] for summary in summaries}, {summaries[0]["total"]})
        self.assertEqual(sum(summary["compiled"] for summary in summaries), summaries[0]["total"])

    def interrupt(self, number):
        """Starts a long prewarm, sends it a signal after its first kernel, gives back how it ended."""
        process = self.start("prewarm", *SMALL, "--sm", "80,86,89,90,100,120", "--cache", "kernels", "--jobs", "1")
        self.addCleanup(process.kill)
        first = process.stderr.readline().decode()
        self.assertRegex(first, r"^\[1/\d+\] .* compiled")
        process.send_signal(number)
        return self.finish(process)

    def test_interrupt(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            with self.subTest(signal=number):
                result = self.interrupt(number)
                self.assertEqual(result.code, 128 + number, result.err)
                self.assertIn("attnsmith: error: interrupted: ", result.err)
                total, hits, compiled, cancelled = map(int, re.match(
                    r"(\d+) kernels: (\d+) hits, (\d+) compiled, (\d+) cancelled;", result.out).groups())
                self.assertGreater(cancelled, 0)
                self.assertEqual(hits + compiled + cancelled, total)
                entries = self.run_cli("cache", "ls", "--cache", "kernels", "--json").json()["entries"]
                self.assertEqual(len(entries), compiled)
                self.assert_ok(self.run_cli("cache", "verify", "--cache", "kernels"))
                self.assert_ok(self.run_cli("cache", "clear", "--cache", "kernels", "--yes"))

    def hang(self):
        """A prewarm whose first compile never ends."""
        self.write("gate", "")
        process = self.start("prewarm", "--op", "merge", "--head-dim", "64", "--q-heads", "1", "--sm", "90", "--cache",
                             "kernels", env={"ATTNSMITH_NVRTC_PATH": FAKE_NVRTC, "FAKE_NVRTC_BLOCK": "gate",
                                             "FAKE_NVRTC_LOG": "compiles"})
        self.addCleanup(process.kill)
        while not (self.folder / "compiles").exists():
            time.sleep(0.01)
        return process

    @unittest.skipUnless(FAKE_NVRTC, "ATTNSMITH_FAKE_NVRTC names no stub of NVRTC")
    def test_one_sigterm_ends_work_that_hangs(self):
        process = self.hang()
        started = time.monotonic()
        process.send_signal(signal.SIGTERM)
        result = self.finish(process)
        self.assertEqual(result.code, -signal.SIGTERM, result.err)  # 143 to a shell
        self.assertIn("finishing what is being compiled", result.err)
        self.assertGreater(time.monotonic() - started, 3)
        self.assertLess(time.monotonic() - started, 60)

    @unittest.skipUnless(FAKE_NVRTC, "ATTNSMITH_FAKE_NVRTC names no stub of NVRTC")
    def test_the_second_signal_ends_it_at_once(self):
        for first, second in ((signal.SIGINT, signal.SIGINT), (signal.SIGTERM, signal.SIGTERM),
                              (signal.SIGTERM, signal.SIGINT)):
            with self.subTest(first=first, second=second):
                process = self.hang()
                process.send_signal(first)
                process.stderr.readline()  # that it is finishing what is being compiled
                started = time.monotonic()
                process.send_signal(second)
                self.assertEqual(self.finish(process).code, -second)
                self.assertLess(time.monotonic() - started, 4)
                (self.folder / "compiles").unlink()

    @unittest.skipUnless(FAKE_NVRTC, "ATTNSMITH_FAKE_NVRTC names no stub of NVRTC")
    def test_without_a_thread_to_be_had(self):
        environment = {"LD_PRELOAD": os.environ["ATTNSMITH_NO_THREADS"], "ATTNSMITH_NVRTC_PATH": FAKE_NVRTC}
        merge = ["--op", "merge", "--head-dim", "64", "--q-heads", "1", "--sm", "80,90"]
        result = self.run_cli("prewarm", *merge, "--jobs", "4", "--cache", "kernels", "--json", env=environment)
        summary = self.assert_consistent(self.assert_ok(result).json())
        self.assertEqual(summary["compiled"], summary["total"])
        self.assertGreater(summary["total"], 1)
        layers = ["--cache", "other", "--cache", "kernels"]
        self.assert_ok(self.run_cli("cache", "verify", *layers, "--json", env=environment))

    def test_what_is_no_file_is_no_nvrtc(self):
        os.mkfifo(self.folder / "fifo")
        for path, what in (("./fifo", "is a FIFO"), ("/dev/zero", "is a device")):
            result = self.run_cli("prewarm", *SMALL, "--sm", "90", "--json", env={"ATTNSMITH_NVRTC_PATH": path})
            self.assert_failed(result, path, what)

    def test_interrupt_ends_the_wait_for_another_process(self):
        command = ("--cache", "kernels", *SMALL, "--sm", "90")
        keys = [kernel["key"] for kernel in self.run_cli("prewarm", *command, "--dry-run", "--json").json()["kernels"]]
        (self.folder / "kernels/locks").mkdir(parents=True, mode=0o700)
        for key in keys:
            file = open(self.folder / "kernels/locks" / f"{key}.lock", "w", encoding="ascii")
            self.addCleanup(file.close)
            fcntl.flock(file, fcntl.LOCK_EX)
        process = self.start("prewarm", *command, "--jobs", "1")
        self.addCleanup(process.kill)
        self.assertRegex(process.stderr.readline().decode(), "waiting for another process")
        process.send_signal(signal.SIGINT)
        started = time.monotonic()
        result = self.finish(process)
        self.assertLess(time.monotonic() - started, 60)  # of the two minutes that the wait may last
        self.assertEqual(result.code, 130, result.err)
        self.assertIn(f"{len(keys)} of {len(keys)} kernels were cancelled", result.err)
        self.assertIn(f" 0 compiled, {len(keys)} cancelled", result.out)

    def test_bar_on_a_terminal(self):
        code, drawn = on_terminal(self, "prewarm", *SMALL, "--sm", "90", "--cache", "kernels")
        self.assertEqual(code, 0)
        bars = re.findall(r"\r\x1b\[K\[(#*)(\.*)\] (\d+)/(\d+)(, [0-9.]+ (?:s|min) left)?  ", drawn)
        self.assertEqual([int(bar[2]) for bar in bars], list(range(len(bars))), "it shows from the start, and each step")
        self.assertEqual(int(bars[-1][2]), int(bars[-1][3]))
        self.assertEqual([bool(bar[4]) for bar in bars], [False] + [True] * (len(bars) - 2) + [False], drawn)
        self.assertTrue(drawn.endswith("\r\x1b[K"), drawn[-40:])
        # Plain lines where the terminal cannot be drawn on.
        code, drawn = on_terminal(self, "prewarm", *SMALL, "--sm", "90", "--cache", "kernels", env={"TERM": "dumb"})
        self.assertEqual(code, 0)
        self.assertNotIn("\x1b", drawn)
        self.assertRegex(drawn, r"^\[1/\d+\] .*: hit\r\n")
        self.assertEqual(self.run_cli("prewarm", *SMALL, "--sm", "90", "--cache", "kernels", "-q").err, "")

    @unittest.skipUnless(FAKE_NVRTC, "ATTNSMITH_FAKE_NVRTC names no stub of NVRTC")
    def test_the_time_left_is_told_by_what_is_compiled(self):
        """Kernels that are there already take no time, and say nothing of how long the others take."""
        seconds = 0.4  # of a compile
        environment = {"ATTNSMITH_NVRTC_PATH": FAKE_NVRTC}
        merge = ["prewarm", "--op", "merge", "--head-dim", "64", "--q-heads", "1", "--cache", "kernels", "--jobs", "1"]
        there = self.assert_ok(self.run_cli(*merge, "--sm", "80,86,87,89", "--json", env=environment)).json()
        hits = there["summary"]["total"]
        code, drawn = on_terminal(self, *merge, "--sm", "80,86,87,89,90,100,103,110,120",
                                  env={**environment, "FAKE_NVRTC_MS": str(int(1000 * seconds))})
        self.assertEqual(code, 0)
        bars = [(int(done), int(total), left) for done, total, left in
                re.findall(r"\] (\d+)/(\d+)(?:, ([0-9.]+) s left)?  ", drawn)]
        self.assertEqual([left for done, _, left in bars if done <= hits], [""] * (hits + 1), "none says how long one takes")
        told = [(int(left), total - done) for done, total, left in bars if left]
        self.assertGreater(len(told), 2)
        for left, kernels in told:
            self.assertGreater(left, seconds * kernels - 1, drawn)

    def test_nvrtc_is_missing(self):
        """Told once, before anything is done: nothing is left where there was no directory."""
        for as_json in ([], ["--json"]):
            result = self.run_cli("prewarm", *SMALL, "--sm", "80,90", "--cache", "kernels", *as_json,
                                  env={"ATTNSMITH_NVRTC_PATH": "/nowhere/lib"})
            self.assert_failed(result, "/nowhere/lib")
            remedy = "correct what ATTNSMITH_NVRTC_PATH or nvrtc_path names, or unset it"
            self.assertEqual(result.err.count(remedy), 1, result.err)
            self.assertNotIn("attnsmith prewarm", result.err, "it is what was run")
            self.assertFalse((self.folder / "kernels").exists())
        self.assertEqual(self.assert_error_json(result)["code"], "library_missing")

    def test_nvrtc_is_missing_for_some(self):
        """What is cached needs none; what is not is told before the rest is looked at."""
        self.prewarm_small("kernels")
        command = ["prewarm", *SMALL, "--cache", "kernels", "--json"]
        without = {"ATTNSMITH_NVRTC_PATH": "/nowhere"}
        summary = self.assert_ok(self.run_cli(*command, "--sm", "90", env=without)).json()["summary"]
        self.assertEqual(summary["hits"], summary["total"])
        for more in (["--sm", "80,90"], ["--sm", "90", "--toolchain", "exact"]):
            self.assert_failed(self.run_cli(*command, *more, env=without), "NVRTC", "/nowhere")

    def test_a_bare_name_of_nvrtc_is_the_loaders(self):
        """A file of that name lies in the current directory, where the loader does not look."""
        self.write("empty.json", "{}")
        command = ["prewarm", *SMALL, "--sm", "90", "--cache", "kernels"]
        bare = self.run_cli(*command, env={"ATTNSMITH_NVRTC_PATH": "empty.json"})
        self.assert_failed(bare, "the file in the current directory is ./empty.json")
        named = self.run_cli(*command, env={"ATTNSMITH_NVRTC_PATH": "./empty.json"})
        self.assert_failed(named, "./empty.json: file too short")
        self.assertNotIn("current directory", named.err)

    def test_dry_run(self):
        command = ["prewarm", *SMALL, "--sm", "80,90", "--cache", "kernels"]
        before = self.assert_ok(self.run_cli(*command, "--dry-run", "--json",
                                             env={"ATTNSMITH_NVRTC_PATH": "/nowhere"})).json()
        self.assertEqual(before["schema"], "attnsmith.prewarm-dry-run/1")
        self.assertEqual(before["summary"]["misses"], before["summary"]["total"])
        self.assertFalse((self.folder / "kernels").exists(), "a dry run made the cache")
        self.prewarm_small("kernels")  # sm 90 alone
        after = self.assert_ok(self.run_cli(*command, "--dry-run", "--json")).json()
        self.assertEqual({(kernel["sm"], kernel["state"]) for kernel in after["kernels"]}, {(80, "miss"), (90, "hit")})
        done = self.assert_ok(self.run_cli(*command, "--json", "-j", "2")).json()
        self.assertEqual([(kernel["name"], kernel["sm"], kernel["key"]) for kernel in done["kernels"]],
                         [(kernel["name"], kernel["sm"], kernel["key"]) for kernel in before["kernels"]])
        self.assertEqual(done["summary"]["compiled"], after["summary"]["misses"])
        text = self.assert_ok(self.run_cli(*command, "--dry-run")).out
        self.assertIn(f"{done['summary']['total']} hits, 0 to compile; nothing was changed", text)

    def test_what_changes_nothing_leaves_broken_entries(self):
        total = self.prewarm_small("kernels")["summary"]["total"]
        broken = sorted((self.folder / "kernels").glob("??/*.entry"))[0]
        broken.write_bytes(broken.read_bytes()[:100])
        stamps = {path: path.stat().st_mtime_ns for path in (self.folder / "kernels").rglob("*")}
        command = ["prewarm", *SMALL, "--sm", "90", "--cache", "kernels"]
        summary = self.assert_ok(self.run_cli(*command, "--dry-run", "--json")).json()["summary"]
        self.assertEqual((summary["hits"], summary["misses"]), (total - 1, 1))
        self.run_cli("plan", *SMALL, "--sm", "90", "--cache", "kernels")
        self.run_cli("cache", "explain", *SMALL, "--sm", "90", "--cache", "kernels")
        self.assertEqual({path: path.stat().st_mtime_ns for path in (self.folder / "kernels").rglob("*")}, stamps)
        again = self.run_cli(*command, "--json")
        self.assertIn("quarantined a broken cache entry", again.err)
        self.assertEqual((again.json()["summary"]["hits"], again.json()["summary"]["compiled"]), (total - 1, 1))

    def test_unsupported_parts_may_be_allowed(self):
        for more in (["--dry-run"], ["--cache", "kernels"]):
            command = ["prewarm", "--model", PARTIAL, "--sm", "80", *more]
            self.assert_failed(self.run_cli(*command, "--json"), "full_attention/decode")
            result = self.assert_ok(self.run_cli(*command, "--json", "--allow-unsupported"))
            self.assertEqual([part["name"] for part in result.json()["unsupported"]], ["full_attention/decode"])

    def test_a_request_file(self):
        request = self.write("request.json", "{\"head_dim\": 16, \"q_heads\": 8, \"mask\": \"causal\", \"sm\": [90]}")
        self.prewarm_small("kernels")
        report = self.assert_ok(self.run_cli("prewarm", "--request", request, "--cache", "kernels", "--json")).json()
        self.assertEqual(report["summary"]["hits"], report["summary"]["total"])

    def test_without_sm_and_gpu(self):
        self.assert_refused(self.run_cli("prewarm", *SMALL), "sm", "no GPU is present")


class CacheDirectory(CliTest):
    COMMAND = ["prewarm", *SMALL, "--sm", "90"]

    def test_home_is_unset(self):
        self.assert_failed(self.run_cli(*self.COMMAND, env={"HOME": None}), "no cache directory", "--cache DIR", "HOME")
        self.assert_ok(self.run_cli("plan", *SMALL, "--sm", "90", env={"HOME": None}))
        for command in (["ls"], ["stat"], ["export", "-o", "x"], ["import", "x"], ["explain", *SMALL, "--sm", "90"]):
            self.assert_failed(self.run_cli("cache", *command, env={"HOME": None}), "no cache directory", "--cache DIR")

    def test_not_writable(self):
        file = self.write("file", "")
        (self.folder / "dangling").symlink_to("nothing")
        places = [file + "/below", "dangling"]
        if os.geteuid() != 0:
            (self.folder / "closed").mkdir(mode=0o500)
            places.append("closed")
        for place in places:
            with self.subTest(place=place):
                self.assert_failed(self.run_cli(*self.COMMAND, "--cache", place), "cannot write", place)
                self.assertEqual(self.run_cli("plan", *SMALL, "--sm", "90", "--cache", place).code, 0)

    def test_what_is_no_directory_is_a_bad_request(self):
        file = self.write("file", "text")
        os.mkfifo(self.folder / "fifo")
        for command in (self.COMMAND, ["cache", "stat"], ["cache", "ls"]):
            self.assert_refused(self.run_cli(*command, "--cache", file), "cache: ", file)
            self.assert_refused(self.run_cli(*command, env={"ATTNSMITH_CACHE_DIR": file}), "ATTNSMITH_CACHE_DIR: ", file)
            self.assert_refused(self.run_cli(*command, "--cache", "own", "--cache", "fifo"), "cache: ", "fifo")

    def test_what_is_complete_need_not_be_writable(self):
        total = self.prewarm_small("kernels")["summary"]["total"]
        self.give("kernels")
        for path in [self.folder / "kernels", *(self.folder / "kernels").rglob("*")]:
            path.chmod(0o500 if path.is_dir() else 0o400)
        command = (*self.COMMAND, "--cache", "kernels", "--json")
        report = self.assert_ok(self.run_as_user(*command)).json()
        self.assertEqual(report["summary"]["hits"], total)
        # What is not there is told before anything is compiled.
        result = self.run_as_user(*command, "--dtype", "fp16")
        self.assert_failed(result, "cannot write", "kernels")
        self.assertEqual(self.assert_error_json(result)["code"], "cache_error")

    def test_what_cannot_be_stored_is_not_compiled(self):
        # Nothing can be made in /proc, though root is told that it is writable.
        result = self.run_cli(*self.COMMAND, "--cache", "/proc/attnsmith", "--json")
        self.assert_failed(result, "cannot write", "/proc/attnsmith")
        self.assertEqual(self.assert_error_json(result)["code"], "cache_error")

    def test_a_dry_run_says_that_nothing_can_be_stored(self):
        """With what the run itself says; where all is there, neither has anything to say."""
        command = [*self.COMMAND, "--cache", "/proc/attnsmith"]
        dry = self.run_cli(*command, "--dry-run", "--json")
        self.assertEqual((dry.code, dry.err), (1, self.run_cli(*command).err))
        self.assertGreater(dry.json()["summary"]["misses"], 0)
        self.prewarm_small("kernels")
        (self.folder / "kernels").chmod(0o777)  # nobody's to trust
        command = [*self.COMMAND, "--cache", "kernels"]
        for more in ([], ["--dry-run"]):
            result = self.run_cli(*command, *more)
            self.assertEqual(result.code, 1, result.err)
            self.assertIn("attnsmith: error: prewarm cannot write to the cache directory ", result.err)
        layers = ["--cache", "/proc/attnsmith", "--cache", "kernels"]
        (self.folder / "kernels").chmod(0o755)
        self.assert_ok(self.run_cli(*self.COMMAND, *layers, "--dry-run"))
        self.assert_ok(self.run_cli(*self.COMMAND, *layers, "--json"))

    def test_by_environment(self):
        env = {"ATTNSMITH_CACHE_DIR": str(self.folder / "first") + ":" + str(self.folder / "second")}
        self.prewarm_small(self.folder / "second")
        report = self.assert_ok(self.run_cli(*self.COMMAND, "--json", env=env)).json()
        self.assertEqual(report["summary"]["hits"], report["summary"]["total"])
        listed = self.run_cli("cache", "ls", "--json", env=env).json()
        self.assertEqual({entry["layer"] for entry in listed["entries"]}, {1})
        self.assertEqual(len(self.run_cli("cache", "stat", "--json", env=env).json()["layers"]), 1)


if __name__ == "__main__":
    main()
