"""attnsmith prewarm."""

import os
import pty
import re
import signal

from support import DEEPSEEK, LLAMA, SMALL, CliTest, main

COUNTS = ("hits", "compiled", "waited", "failed", "cancelled")


class Prewarm(CliTest):
    def assert_consistent(self, report):
        self.assertEqual(report["schema"], "attnsmith.prewarm/1")
        summary = report["summary"]
        self.assertEqual(sum(summary[count] for count in COUNTS), summary["total"])
        self.assertEqual(len(report["kernels"]), summary["total"])
        self.assertEqual(len({kernel["key"] for kernel in report["kernels"]}), summary["total"])
        self.assertEqual(len(report["unsupported"]), summary["unsupported"])
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

    def test_a_merge(self):
        command = ["--op", "merge", "--head-dim", "128", "--q-heads", "8", "--sm", "80,90", "--cache", "kernels", "--json"]
        report = self.assert_ok(self.run_cli("prewarm", *command)).json()
        self.assertEqual(self.assert_consistent(report)["compiled"], 2)
        for plan in self.run_cli("plan", *command).json()["plans"]:
            self.assertEqual([kernel["cache"]["state"] for kernel in plan["kernels"]], ["hit"])

    def test_a_part_that_is_not_supported(self):
        result = self.run_cli("prewarm", "--model", DEEPSEEK, "--sm", "90", "--cache", "kernels", "--json")
        self.assert_failed(result, "latent/decode")
        summary = self.assert_consistent(result.json())
        self.assertEqual((summary["compiled"], summary["unsupported"]), (summary["total"], 1))
        self.assertGreater(summary["total"], 2)

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
                self.assertEqual(result.code, 130, result.err)
                self.assertIn("attnsmith: error: interrupted: ", result.err)
                total, hits, compiled, cancelled = map(int, re.match(
                    r"(\d+) kernels: (\d+) hits, (\d+) compiled, (\d+) cancelled;", result.out).groups())
                self.assertGreater(cancelled, 0)
                self.assertEqual(hits + compiled + cancelled, total)
                entries = self.run_cli("cache", "ls", "--cache", "kernels", "--json").json()["entries"]
                self.assertEqual(len(entries), compiled)
                self.assert_ok(self.run_cli("cache", "verify", "--cache", "kernels"))
                self.assert_ok(self.run_cli("cache", "clear", "--cache", "kernels", "--yes"))

    def test_bar_on_a_terminal(self):
        try:
            ours, theirs = pty.openpty()
        except OSError as error:  # a container without /dev/pts
            self.skipTest(f"no pseudo-terminal: {error}")
        process = self.start("prewarm", *SMALL, "--sm", "90", "--cache", "kernels", stderr=theirs)
        os.close(theirs)
        drawn = b""
        try:
            while chunk := os.read(ours, 4096):
                drawn += chunk
        except OSError:  # what the end of a pty is
            pass
        os.close(ours)
        self.assertEqual(self.finish(process).code, 0)
        self.assertRegex(drawn, rb"\r\x1b\[K\[#+\.*\] \d+/\d+ ")
        self.assertTrue(drawn.endswith(b"\r\x1b[K"), drawn[-40:])

    def test_nvrtc_is_missing(self):
        result = self.run_cli("prewarm", *SMALL, "--sm", "90", "--json", env={"ATTNSMITH_NVRTC_PATH": "/nowhere/lib"})
        self.assert_failed(result, "/nowhere/lib", "ATTNSMITH_NVRTC_PATH")
        summary = self.assert_consistent(result.json())
        self.assertEqual(summary["failed"], summary["total"])
        self.assertEqual(result.err.count("/nowhere/lib"), 1, "one reason is told once")

    def test_a_request_file(self):
        request = self.write("request.json", "{\"head_dim\": 64, \"q_heads\": 8, \"mask\": \"causal\", \"sm\": [90]}")
        self.prewarm_small("kernels")
        report = self.assert_ok(self.run_cli("prewarm", "--request", request, "--cache", "kernels", "--json")).json()
        self.assertEqual(report["summary"]["hits"], report["summary"]["total"])

    def test_without_sm_and_gpu(self):
        self.assert_refused(self.run_cli("prewarm", *SMALL), "sm", "no GPU is present")


class CacheDirectory(CliTest):
    COMMAND = ["prewarm", *SMALL, "--sm", "90"]

    def test_home_is_unset(self):
        self.assert_failed(self.run_cli(*self.COMMAND, env={"HOME": None}), "needs a cache directory", "HOME")
        self.assert_ok(self.run_cli("plan", *SMALL, "--sm", "90", env={"HOME": None}))
        self.assert_failed(self.run_cli("cache", "ls", env={"HOME": None}), "there is no cache directory")

    def test_not_writable(self):
        file = self.write("file", "")
        places = [file, file + "/below"]
        if os.geteuid() != 0:
            (self.folder / "closed").mkdir(mode=0o500)
            places.append("closed")
        for place in places:
            with self.subTest(place=place):
                self.assert_failed(self.run_cli(*self.COMMAND, "--cache", place), "cannot write", place)
                self.assertEqual(self.run_cli("plan", *SMALL, "--sm", "90", "--cache", place).code, 0)

    def test_kernels_that_cannot_be_stored_have_failed(self):
        # Nothing can be made in /proc, though root is told that it is writable.
        result = self.run_cli(*self.COMMAND, "--cache", "/proc/attnsmith", "--json")
        self.assertEqual(result.code, 1)
        self.assertIn("attnsmith: error: ", result.err)
        self.assertNotIn("terminate", result.err)
        if result.out:
            summary = result.json()["summary"]
            self.assertEqual(summary["failed"], summary["total"])

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
