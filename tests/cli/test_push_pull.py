"""attnsmith cache push and pull, with remotes that behave and with those that do not."""

import json
import shutil
import signal
import threading
import time

import remote_server
from remote_server import RemoteServer
from support import PARTIAL, CliTest, main

# Kernels that compile in no time.
MERGES = ["--op", "merge", "--head-dim-vo", "64", "--q-heads", "8", "--sm", "80,86,89,90"]
# No compiler is to be had.
NOWHERE = {"ATTNSMITH_NVRTC_PATH": "/nowhere"}


class PushPull(CliTest):
    def setUp(self):
        super().setUp()
        self.server = RemoteServer(self.folder / "www")
        self.server.__enter__()
        self.addCleanup(self.server.__exit__)
        self.assert_ok(self.run_cli("cache", "keygen", "-o", "key"))
        self.signing = {**NOWHERE, "ATTNSMITH_CACHE_SIGN_KEY": "key", "ATTNSMITH_CACHE_TRUST_KEYS": "key.pub"}
        self.trusting = {**NOWHERE, "ATTNSMITH_CACHE_TRUST_KEYS": "key.pub"}

    def compiled(self, cache="own"):
        """How many kernels are in the cache now."""
        return self.prewarmed(cache, *MERGES)["summary"]["total"]

    def push(self, *flags, cache="own", env=None):
        return self.run_cli("cache", "push", "--cache", cache, "--cache", self.server.address, *flags,
                            env=env or self.signing)

    def pull_arguments(self, cache, *flags):
        return ["cache", "pull", *MERGES, "--cache", cache, "--cache", self.server.address, *flags]

    def pull(self, *flags, cache="empty", env=None):
        return self.run_cli(*self.pull_arguments(cache, *flags), env=env or self.trusting)

    def pushed(self):
        """All kernels on the server; how many they are."""
        total = self.compiled()
        self.assertEqual(self.assert_ok(self.push("--json")).json()["pushed"], total)
        return total

    def puts(self, since=0):
        return sum(method == "PUT" for method, _ in self.server.requests[since:])

    def entry_gets(self, since=0):
        return sum(method == "GET" and "/cas/" in path for method, path in self.server.requests[since:])

    def assert_whole(self, cache):
        """Every file that lies there is a whole entry, or none of the cache's."""
        self.assert_ok(self.run_cli("cache", "verify", "--cache", cache))
        self.assertEqual(list((self.folder / cache).glob("staging/*")), [])

    def test_a_whole_cache_there_and_back(self):
        total = self.compiled()
        first = self.push()
        self.assertEqual((first.code, f"{total} entries pushed" in first.out), (0, True), first)
        self.assertEqual(first.err.count("\n"), total, "a line for each entry")
        self.assertIn(f"[{total}/{total}] ", first.err)
        self.assertEqual(len(self.server.files("cas")), total)

        since = len(self.server.requests)
        again = self.assert_ok(self.push("--json")).json()
        self.assertEqual((again["pushed"], again["present"], again["bytes"]), (0, total, 0))
        self.assertEqual(self.puts(since), 0)
        self.assertEqual({entry["state"] for entry in again["entries"]}, {"present"})
        self.assertRegex(again["signed_by"], "^[0-9a-f]{16}$")
        self.assertEqual(again["remotes"], [self.server.address])

        report = self.assert_ok(self.pull("--json")).json()
        self.assertEqual((report["summary"]["remote"], report["summary"]["ok"]), (total, True))
        self.assert_whole("empty")
        since = len(self.server.requests)
        again = self.assert_ok(self.pull("--json")).json()
        self.assertEqual(again["summary"]["hits"], total)
        self.assertEqual(len(self.server.requests), since, "what is there is not asked for")
        stat = self.run_cli("cache", "stat", "--json", "--cache", "empty").json()["counters"]
        self.assertEqual((stat["compiles"], stat["miss_errors"], stat["remote_hits"]), (0, 0, total))

    def test_what_is_pushed_is_what_lies_in_the_cache(self):
        """Byte for byte: no entry is written anew on its way."""
        self.pushed()
        entries = {file.read_bytes() for file in (self.folder / "own").glob("??/*.entry")}
        self.assertEqual({file.read_bytes() for file in self.server.files("cas")}, entries)
        self.assert_ok(self.pull("--json"))
        self.assertEqual({file.read_bytes() for file in (self.folder / "empty").glob("??/*.entry")}, entries)

    def test_a_part_of_the_cache(self):
        self.compiled()
        report = self.assert_ok(self.push("--sm", "90", "--json")).json()
        self.assertEqual({entry["sm"] for entry in report["entries"]}, {90})
        # What lies in a layer is pushed, too.
        (self.folder / "other").mkdir()
        result = self.run_cli("cache", "push", "--cache", "other", "--cache", "own", "--cache", self.server.address,
                              "--json", env=self.signing)
        report = self.assert_ok(result).json()
        self.assertEqual({entry["sm"] for entry in report["entries"]}, {80, 86, 89, 90})
        self.assertEqual(report["present"], sum(entry["sm"] == 90 for entry in report["entries"]))

    def test_what_is_asked_for_is_pushed_and_named_where_it_is_missing(self):
        self.assert_ok(self.run_cli("prewarm", *MERGES[:-1], "90", "--cache", "own", "--json"))
        result = self.push(*MERGES, "--json")
        report = result.json()
        self.assertEqual(result.code, 1)
        self.assertIn("are not in the cache (attnsmith prewarm makes them)", result.err)
        self.assertEqual({entry["sm"] for entry in report["entries"]}, {90})
        self.assertEqual({kernel["sm"] for kernel in report["missing"]}, {80, 86, 89})
        told = self.push(*MERGES).out
        for kernel in report["missing"]:
            self.assertIn(f"missing  {kernel['name']} sm {kernel['sm']} ({kernel['key']})", told)
        # Where there is none of them at all they are named as well.
        (self.folder / "none").mkdir()
        result = self.push(*MERGES, "--json", cache="none")
        self.assertEqual((result.code, result.json()["entries"]), (1, []))
        self.assertEqual(self.puts(), 3 * len(report["entries"]))

    def test_a_recorded_set_and_a_model(self):
        record = self.folder / "recorded.jsonl"
        self.assert_ok(self.run_cli("prewarm", "--head-dim", "64", "--q-heads", "8", "--mask", "causal", "--sm", "90",
                                    "--cache", "own", "--json"))
        spec = {"schema": "attnsmith.recorded/1", "request": {"head_dim": 64, "q_heads": 8, "mask": "causal"}}
        record.write_text(json.dumps(spec) + "\n", encoding="utf-8")
        pushed = self.push("--recorded", str(record), "--json")
        self.assertEqual(pushed.code, 0, pushed)
        total = pushed.json()["pushed"]
        self.assertGreater(total, 0)
        pulled = self.run_cli("cache", "pull", "--recorded", str(record), "--sm", "90", "--cache", "empty", "--cache",
                              self.server.address, "--json", env=self.trusting)
        self.assertEqual(self.assert_ok(pulled).json()["summary"]["remote"], total)
        # What no kernel serves is told as prewarm tells it, beside what is missing.
        model = self.run_cli("cache", "pull", "--model", PARTIAL, "--sm", "90", "--cache", "empty", "--cache",
                             self.server.address, "--json", env=self.trusting)
        self.assertEqual(model.code, 1)
        self.assertTrue(model.json()["unsupported"])
        self.assertGreater(model.json()["summary"]["missing"], 0)

    def test_what_no_remote_has_is_named(self):
        total = self.pushed()
        self.server.files("cas")[0].unlink()
        result = self.pull()
        self.assertEqual(result.code, 1)
        self.assertRegex(result.out, r"missing  .* sm \d+ \([0-9a-f]{32}\): http://[^ ]*: it has no entry")
        self.assertIn(f"error: 1 of {total} kernels are missing", result.err)
        report = self.pull("--json").json()
        self.assertEqual([report["summary"][state] for state in ("hits", "missing")], [total - 1, 1])
        (missing,) = [kernel for kernel in report["kernels"] if kernel["state"] == "missing"]
        self.assertIn("it has no entry", missing["error"])
        self.assertNotIn("compiled", report["summary"])

    def test_what_is_signed_by_nobody_who_is_trusted(self):
        total = self.pushed()
        self.assert_ok(self.run_cli("cache", "keygen", "-o", "other"))
        result = self.pull("--json", env={**NOWHERE, "ATTNSMITH_CACHE_TRUST_KEYS": "other.pub"})
        summary = result.json()["summary"]
        self.assertEqual((result.code, summary["failed"], summary["remote"]), (1, total, 0))
        self.assertIn("which is no trusted key", result.err)
        self.assertEqual(list((self.folder / "empty").glob("??/*")), [])

    def test_a_server_that_nobody_may_write_to(self):
        total = self.compiled()
        self.server.manner = remote_server.lets_nobody_write
        result = self.push("--json")
        report = result.json()
        self.assertEqual((result.code, report["failed"], report["pushed"]), (1, total, 0))
        self.assertIn("the server answered 403", result.err)
        self.assertEqual(self.server.files("cas"), [])
        # What could be put is not put again.
        self.server.manner = None
        self.assertEqual(self.assert_ok(self.push("--json")).json()["pushed"], total)

    def test_servers_that_answer_with_errors(self):
        total = self.compiled()
        self.pushed()
        for status in (403, 500):
            self.server.manner = remote_server.answers(status)
            result = self.pull("--json")
            self.assertEqual((result.code, result.json()["summary"]["failed"]), (1, total))
            self.assertIn(f"the server answered {status}", result.err)
        self.server.manner = remote_server.changes_a_byte(self.server)
        self.assertEqual(self.pull("--json").json()["summary"]["failed"], total)
        self.assert_whole("empty")

    def test_a_server_that_hangs(self):
        """Half a minute is waited for it, by all kernels together, and a Ctrl-C ends that."""
        total = self.pushed()
        self.server.manner = remote_server.hangs
        began = time.monotonic()
        result = self.pull("--json")
        self.assertLess(time.monotonic() - began, 60)
        self.assertEqual((result.code, result.json()["summary"]["failed"]), (1, total))
        self.assertIn("there was no whole response within", result.err)
        for command in (["cache", "push", "--cache", "own", "--cache", self.server.address],
                        self.pull_arguments("empty")):
            asked = len(self.server.requests)
            process = self.start(*command, env=self.signing)
            while len(self.server.requests) == asked:
                time.sleep(0.05)
            began = time.monotonic()
            process.send_signal(signal.SIGINT)
            self.assertEqual(self.finish(process).code, 130)
            self.assertLess(time.monotonic() - began, 10)
        self.assertEqual(list((self.folder / "empty").glob("??/*")), [])

    def test_interrupted(self):
        """Ctrl-C ends a pull at once, and what is there is whole."""
        total = self.pushed()
        held = threading.Event()

        def hold_some(handler):
            if "/cas/" in handler.path and self.entry_gets() > 1:
                file = self.server.folder / handler.path.lstrip("/")
                body = file.read_bytes()
                handler.send_response(200)
                handler.send_header("Content-Length", str(len(body)))
                handler.end_headers()
                handler.wfile.write(body[:len(body) // 2])
                handler.wfile.flush()
                held.set()
                time.sleep(20)
                return True
            return False

        self.server.requests.clear()
        self.server.manner = hold_some
        process = self.start(*self.pull_arguments("empty", "--json"), env=self.trusting)
        self.assertTrue(held.wait(60))
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        result = self.finish(process)
        self.assertLess(time.monotonic() - began, 10)
        self.assertEqual(result.code, 130, result)
        self.assertIn("interrupted: ", result.err)
        summary = result.json()["summary"]
        self.assertGreater(summary["cancelled"], 0)
        self.assert_whole("empty")
        self.assertEqual(len(list((self.folder / "empty").glob("??/*.entry"))), summary["remote"])
        self.server.manner = None
        self.assertEqual(self.assert_ok(self.pull("--json")).json()["summary"]["ok"], True)
        self.assertEqual(len(list((self.folder / "empty").glob("??/*.entry"))), total)

    def test_a_push_that_is_interrupted_goes_on(self):
        total = self.compiled()
        held = threading.Event()

        def hold_manifests(handler):
            if handler.command == "PUT" and "/ac/" in handler.path:
                held.set()
                time.sleep(20)
                return True
            return False

        self.server.manner = hold_manifests
        process = self.start("cache", "push", "--cache", "own", "--cache", self.server.address, "--json",
                             env=self.signing)
        self.assertTrue(held.wait(60))
        process.send_signal(signal.SIGINT)
        result = self.finish(process)
        self.assertEqual((result.code, result.json()["cancelled"]), (130, total))
        # A manifest promises its entry, so entries come first; nobody finds them without.
        self.assertEqual(self.server.files("ac"), [])
        self.server.manner = None
        self.assertEqual(self.assert_ok(self.push("--json")).json()["pushed"], total)

    def test_a_server_that_takes_no_files(self):
        total = self.compiled()
        for status in (405, 501):  # nginx's, and `python -m http.server`'s
            self.server.manner = lambda handler, status=status: (
                handler.command == "PUT" and remote_server.answers(status)(handler))
            result = self.push()
            self.assertEqual(result.code, 1, result)
            self.assertRegex(result.err, rf"{total} of {total} entries failed: it could not be pushed to \S+: the server "
                                         rf"takes no files \(it answered {status} to a PUT\); push to one that does, such "
                                         rf"as S3 or nginx with dav_methods PUT \(merge .* for sm \d+ and {total - 1} more\)")

    def test_the_cause_comes_before_what_follows_from_it(self):
        """After some failures in a row a remote is left alone."""
        for dtype in ("fp16", "bf16"):
            self.prewarmed("own", *MERGES[:-1], "80,86,87,89,90,100,103,120", "--dtype", dtype)
        self.server.manner = lambda handler: handler.command == "PUT" and remote_server.answers(501)(handler)
        result = self.push()
        self.assertEqual(result.code, 1, result)
        self.assertRegex(result.err, r"16 of 16 entries failed: it could not be pushed to \S+: the server takes no files .*left alone for")

    def test_two_at_once_fetch_each_kernel_once(self):
        total = self.pushed()
        self.server.requests.clear()
        children = [self.start(*self.pull_arguments("shared", "--json"), env=self.trusting) for _ in range(2)]
        summaries = [self.assert_ok(self.finish(child)).json()["summary"] for child in children]
        self.assertEqual(sum(summary["remote"] for summary in summaries), total)
        for summary in summaries:
            self.assertEqual(summary["remote"] + summary["hits"] + summary["waited"], total)
        self.assertEqual(self.entry_gets(), total)
        self.assert_whole("shared")

    def test_who_waited_for_one_that_died_asks_himself(self):
        total = self.pushed()
        asked, lives = threading.Event(), threading.Event()

        def hangs_until(handler):
            asked.set()
            lives.wait(60)
            return False

        self.server.manner = hangs_until
        first = self.start(*self.pull_arguments("shared", "--json"), env=self.trusting)
        self.assertTrue(asked.wait(60))
        second = self.start(*self.pull_arguments("shared", "--json"), env=self.trusting)
        time.sleep(1)
        first.kill()
        self.finish(first)
        lives.set()
        summary = self.assert_ok(self.finish(second)).json()["summary"]
        self.assertEqual((summary["remote"], summary["missing"]), (total, 0))

    def test_broken_entries_are_left_out(self):
        total = self.compiled()
        broken = sorted((self.folder / "own").glob("??/*.entry"))[0]
        content = bytearray(broken.read_bytes())
        content[-40] ^= 1
        broken.write_bytes(bytes(content))
        result = self.push("--json")
        report = result.json()
        self.assertEqual((result.code, report["pushed"], len(report["bad"])), (1, total - 1, 1))
        self.assertEqual(report["bad"][0]["path"], str(broken.resolve()))
        self.assertIn("1 bad entries were left out", result.err)
        self.assertTrue(broken.exists(), "a push changes nothing in the cache")

    def test_broken_entries_of_an_unknown_sm_are_told(self):
        """Of an entry that is cut off in its metadata nothing says which SM it is for."""
        total = self.compiled()
        broken = sorted((self.folder / "own").glob("??/*.entry"))[0]
        broken.write_bytes(broken.read_bytes()[:100])
        sms = ["--sm", MERGES[-1]]
        pushed = self.push(*sms, "--json")
        exported = self.run_cli("cache", "export", "--cache", "own", "-o", "some.bundle", *sms, "--json")
        for result, count in ((pushed, "pushed"), (exported, "entries")):
            report = result.json()
            self.assertEqual((result.code, report[count], len(report["bad"])), (1, total - 1, 1))
            self.assertIn("1 bad entries were left out", result.err)
        image = self.run_cli("cache", "export", "--cache", "own", "--oci", "image", *sms)
        self.assert_failed(image, "1 bad entries were left out")

    def test_several_remotes(self):
        total = self.compiled()
        with RemoteServer(self.folder / "second") as second:
            self.push("--json")
            both = ["--cache", "own", "--cache", self.server.address, "--cache", second.address, "--json"]
            report = self.assert_ok(self.run_cli("cache", "push", *both, env=self.signing)).json()
            self.assertEqual((report["pushed"], len(second.files("cas"))), (total, total))
            # What a remote lacks is pushed, also where the last one has it.
            shutil.rmtree(self.server.folder)
            report = self.assert_ok(self.run_cli("cache", "push", *both, env=self.signing)).json()
            self.assertEqual((report["pushed"], report["present"]), (total, 0))
            # One that fails keeps nothing from the other.
            shutil.rmtree(second.folder)
            self.server.manner = remote_server.answers(500)
            result = self.run_cli("cache", "push", *both, env=self.signing)
            self.assertEqual((result.code, len(second.files("cas"))), (1, total), result)
            self.assertIn(self.server.address, result.err)
            self.assertNotIn(second.address, result.err)

    def test_what_makes_no_sense(self):
        self.compiled()
        alone = self.run_cli("cache", "push", "--cache", "own")
        self.assert_refused(alone, "there is no remote", "--cache https://HOST/PATH")
        self.assert_refused(self.run_cli("cache", "pull", *MERGES, "--cache", "own"), "there is no remote")
        everything = self.run_cli("cache", "pull", "--cache", "own", "--cache", self.server.address)
        self.assert_refused(everything, "nothing is asked for", "cannot list")
        self.assert_refused(self.push("--strict"), "--strict is for --model")
        self.assert_refused(self.push("--sign-key", "/nowhere/key"), "sign-key", "/nowhere/key")
        self.assert_refused(self.push("--sm", "12"), "sm")
        mistyped = self.push(cache="typo")
        self.assert_refused(mistyped, "--cache", "there is no directory", "typo")
        (self.folder / "none").mkdir()
        self.assert_failed(self.push(cache="none"), "there are no kernels to push in ", "none")
        self.assertEqual(self.server.requests, [])
        for command in (["push"], ["pull", *MERGES]):
            distrusted = self.run_cli("cache", *command, "--cache", "own", "--cache", self.server.address, env=NOWHERE)
            self.assert_refused(distrusted, self.server.address, "name a public key (--trust-key")

    def test_passwords_are_seen_by_nobody(self):
        self.compiled()
        place = self.server.address.replace("http://", "http://hush-user:hush-password@") + "?hush-query=1"
        secrets = {"ATTNSMITH_CACHE_TOKEN": "hush-token", "ATTNSMITH_CACHE_HEADERS": "X-Key: hush-header",
                   "ATTNSMITH_CACHE_DIR": f"own:{place}", "ATTNSMITH_LOG": "debug"}
        for manner in (None, remote_server.answers(403), remote_server.closes):
            self.server.manner = manner
            for command in (["push"], ["push", "--json"], ["pull", *MERGES[:-1], "80,86,87,89,90"]):
                result = self.run_cli("cache", *command, env={**self.signing, **secrets})
                self.assertNotIn("hush", result.out + result.err)


if __name__ == "__main__":
    main()
