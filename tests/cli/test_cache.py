"""attnsmith cache."""

import fcntl
import hashlib
import json
import os
import pathlib
import re
import resource
import shutil
import tarfile

from support import PARTIAL, QUASAR, SMALL, SMALL_LLAMA, CliTest, main


class Cache(CliTest):
    def cache(self, command, *flags):
        return self.run_cli("cache", command, "--cache", "kernels", *flags)

    def prewarm_merges(self):
        """Four small kernels, which compile quickly, and their entries."""
        self.assert_ok(self.run_cli("prewarm", "--op", "merge", "--head-dim-vo", "64", "--q-heads", "8", "--sm",
                                    "80,86,89,90", "--cache", "kernels", "--json"))
        return self.cache("ls", "--json").json()["entries"]

    def test_one_limit(self):
        gc = ["cache", "gc", "--cache", "kernels"]
        self.assert_refused(self.run_cli(*gc, "--max-bytes", "1G", "--cache-max-bytes", "2G"),
                            "--cache-max-bytes cannot be given beside --max-bytes")
        (self.folder / "kernels").mkdir()
        for flag in ("--max-bytes", "--cache-max-bytes"):
            self.assertEqual(self.run_cli(*gc, flag, "1G").code, 0)

    def test_explain_says_what_a_model_has_unknown(self):
        quasar = self.write("quasar.json", json.dumps(QUASAR))
        (self.folder / "kernels").mkdir()
        words = ["cache", "explain", "--model", quasar, "--kv", "paged,dense", "--page-size", "16", "--sm", "90",
                 "--cache", "kernels"]
        report = self.run_cli(*words, "--json").json()
        self.assertEqual([one["field"] for one in report["warnings"]], ["kv_bend", "model_type"])
        self.assertEqual([one["name"] for one in report["skipped"]], ["page_size with kv dense"])
        self.assertIn("warning  kv_bend: ", self.run_cli(*words).out)
        self.assertNotIn("kv_bend", self.run_cli(*words, "-q").out)

    def test_a_directory_that_is_not_there_is_empty(self):
        """One that nobody named on the command line: it is made when something is first stored."""
        for env in ({}, {"ATTNSMITH_CACHE_DIR": str(self.folder / "kernels")}):
            def cache(*words, env=env):
                return self.run_cli("cache", *words, env=env)

            note = r"^attnsmith: there is no directory \S+/\w+ yet\n$"
            self.assertEqual(cache("ls", "--json").json()["entries"], [])
            self.assertIn("no entries", self.assert_ok(cache("ls")).out)
            self.assertEqual(self.assert_ok(cache("stat", "--json")).json()["entries"], 0)
            self.assertIn("not there yet", self.assert_ok(cache("stat")).out)
            # What would otherwise sound as if all were well.
            for command in (["verify"], ["verify", "--json"], ["gc"], ["clear", "--yes"]):
                result = cache(*command)
                self.assertEqual(result.code, 0)
                self.assertRegex(result.err, note)
        places = {"ATTNSMITH_CACHE_DIR": "kernels:typo"}
        for command in ("ls", "verify"):
            self.assertRegex(self.run_cli("cache", command, env=places).err, r"attnsmith: there is nothing at \S+/typo\n$")
        self.assertFalse((self.folder / "kernels").exists())

    def test_a_directory_that_the_command_line_names_is_there(self):
        """A mistyped one would be found empty, and well."""
        deleting = (["gc"], ["clear", "--yes"], ["rm", "0" * 32])
        for command in (["ls"], ["stat"], ["verify"], ["ls", "--json"], ["export", "-o", "a.bundle"],
                        ["explain", "0" * 32], ["explain", *SMALL, "--sm", "90"], *deleting):
            with self.subTest(command=command):
                self.assert_refused(self.cache(*command), f"--cache: there is no directory {self.folder}/kernels\n")
        self.prewarm_merges()
        for command in (["ls"], ["stat"], ["verify"]):
            self.assert_refused(self.cache(*command, "--cache", "typo"), "--cache: ", "typo; only the first --cache is created")
            # The writable one of several may come later.
            result = self.run_cli("cache", *command, "--cache", "later", "--cache", "kernels")
            self.assertEqual(result.code, 0, result.err)
        # What deletes does so in that one, and in no layer.
        for command in deleting:
            result = self.run_cli("cache", *command, "--cache", "later", "--cache", "kernels")
            self.assert_refused(result, f"--cache: there is no directory {self.folder}/later\n")
        self.assert_refused(self.run_cli("cache", "ls", "--cache", "kernels", "--cache", "layer"),
                            "--cache: there is no directory or bundle layer; only the first --cache is created\n")

    def test_a_file_is_no_directory(self):
        self.write("kernels", "text")
        for command in ("ls", "stat", "verify"):
            self.assert_refused(self.cache(command), "cache", "kernels")
        self.assert_refused(self.cache("clear", "--yes"), "cache", "kernels")

    def test_life_of_a_cache(self):
        report = self.prewarm_small("kernels")
        total = report["summary"]["total"]
        listed = self.assert_ok(self.cache("ls", "--json")).json()
        self.assertEqual(listed["schema"], "attnsmith.cache-ls/1")
        self.assertEqual({entry["key"] for entry in listed["entries"]}, {kernel["key"] for kernel in report["kernels"]})
        self.assertEqual({entry["name"] for entry in listed["entries"]},
                         {kernel["name"] for kernel in report["kernels"]})
        for entry in listed["entries"]:
            self.assertEqual((entry["sm"], entry["layer"]), (90, 0))
            self.assertRegex(entry["modified"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")
            self.assertEqual(entry["bytes"], (self.folder / entry["path"]).stat().st_size)
        self.assertEqual(self.assert_ok(self.cache("ls")).out.count("\n"), total + 1)
        stat = self.assert_ok(self.cache("stat", "--json")).json()
        self.assertEqual((stat["entries"], stat["writable"], stat["quarantined"]), (total, True, 0))
        self.assertEqual(stat["bytes"], sum(entry["bytes"] for entry in listed["entries"]))
        self.assertEqual(self.assert_ok(self.cache("verify", "--json")).json()["checked"], total)

        self.assert_refused(self.cache("clear"), "--yes")
        for value in ("no", "yes", "true"):  # none is taken for the switch
            self.assert_refused(self.cache("clear", f"--yes={value}"), "--yes takes no value")
        self.assertEqual(len(self.cache("ls", "--json").json()["entries"]), total)
        cleared = self.assert_ok(self.cache("clear", "--yes", "--json")).json()
        self.assertEqual((cleared["entries"], cleared["bytes"]), (total, stat["bytes"]))
        self.assertEqual(self.cache("ls", "--json").json()["entries"], [])

    def test_sources_may_be_left_out(self):
        for flags, holds in (((), True), (("--no-source",), False)):
            name = "with" if holds else "without"
            self.prewarm_small(name, *flags)
            for entry in self.assert_ok(self.run_cli("cache", "ls", "--json", "--cache", name)).json()["entries"]:
                content = (self.folder / entry["path"]).read_bytes()
                self.assertEqual(b'extern \\"C\\" __global__' in content, holds, entry["name"])
        self.assertEqual(self.assert_ok(self.run_cli("cache", "verify", "--json", "--cache", "without")).json()["bad"], [])
        self.assertEqual(self.prewarm_small("without")["summary"]["compiled"], 0)

    def test_layers_by_flags(self):
        total = self.prewarm_small("kernels")["summary"]["total"]
        layers = ("--cache", "own", "--cache", "kernels")
        stat = self.assert_ok(self.run_cli("cache", "stat", "--json", *layers)).json()
        self.assertEqual((stat["entries"], [layer["entries"] for layer in stat["layers"]]), (0, [total]))
        shutil.copytree(self.folder / "kernels", self.folder / "own")
        text = self.assert_ok(self.run_cli("cache", "ls", *layers)).out
        for layer in ("own", "kernels"):
            self.assertEqual(len(re.findall(rf"  {self.folder}/{layer}$", text, re.MULTILINE)), total)
        self.assertNotIn(str(self.folder), self.assert_ok(self.cache("ls")).out)
        plan = self.assert_ok(self.run_cli("plan", *SMALL, "--sm", "90", "--json", *layers)).json()
        self.assertEqual({kernel["cache"]["state"] for kernel in plan["kernels"]}, {"hit"})
        self.assert_refused(self.run_cli("cache", "ls", "--cache", "own", "--cache", ""), "cache")

    def test_exact_toolchain(self):
        summary = self.prewarm_small("kernels", "--toolchain", "exact")["summary"]
        self.assertEqual(self.prewarm_small("kernels", "--toolchain", "exact")["summary"]["hits"], summary["total"])
        no_nvrtc = {"ATTNSMITH_NVRTC_PATH": "/no/nvrtc"}
        plan = ("plan", *SMALL, "--sm", "90", "--cache", "kernels", "--toolchain")
        self.assert_ok(self.run_cli(*plan, "newest", env=no_nvrtc))
        self.assert_failed(self.run_cli(*plan, "exact", env=no_nvrtc), "NVRTC")
        self.assert_refused(self.run_cli(*plan, "13.0"), "toolchain", "newest or exact")

    def test_a_cache_may_move(self):
        """Another path, another home, and no NVRTC: all are hits."""
        total = self.prewarm_small("kernels")["summary"]["total"]
        (self.folder / "kernels").rename(self.folder / "elsewhere")
        (self.folder / "home").mkdir()
        again = self.prewarm_small("elsewhere", env={"HOME": str(self.folder / "home"), "ATTNSMITH_NVRTC_PATH": "/no/nvrtc"})
        self.assertEqual((again["summary"]["hits"], again["summary"]["total"]), (total, total))

    def test_explain(self):
        self.prewarm_small("kernels")
        listed = self.cache("ls", "--json").json()["entries"]
        one = self.assert_ok(self.cache("explain", listed[0]["key"], "--json")).json()
        self.assertEqual(one["schema"], "attnsmith.cache-explain/1")
        kernel, = one["kernels"]
        self.assertEqual((kernel["key"], kernel["name"], kernel["state"]), (listed[0]["key"], listed[0]["name"], "hit"))
        self.assertIn({"label": "target", "value": listed[0]["target"]}, kernel["fields"])
        self.assertIn("constant head_dim_vo", self.assert_ok(self.cache("explain", listed[0]["key"])).out)

        key = listed[0]["key"]
        for short in (key.upper(), key[:4], key[:9].upper()):
            self.assertIn(key, self.assert_ok(self.cache("explain", short)).out)
        # Another key that begins so.
        file = self.folder / listed[0]["path"]
        other = key[:-1] + ("0" if key[-1] != "0" else "1")
        shutil.copy(file, file.with_name(file.name.replace(key, other)))
        self.assert_failed(self.cache("explain", key[:4]), "2 keys begin with " + key[:4])
        self.assertIn(key, self.assert_ok(self.cache("explain", key)).out)
        file.with_name(file.name.replace(key, other)).unlink()

        there = self.assert_ok(self.cache("explain", *SMALL, "--sm", "90", "--json")).json()["kernels"]
        self.assertEqual({kernel["key"] for kernel in there}, {entry["key"] for entry in listed})
        self.assertEqual({kernel["state"] for kernel in there}, {"hit"})
        missed = self.assert_ok(self.cache("explain", *SMALL, "--sm", "90", "--dtype", "fp16", "--json")).json()["kernels"]
        for kernel in missed:
            self.assertEqual((kernel["state"], kernel["entries"]), ("miss", []))
            found = {one["label"]: (one["here"], one["there"]) for one in kernel["nearest"]["differences"]}
            self.assertEqual(found["constant Output"], ("f16", "bf16"))
        text = self.assert_ok(self.cache("explain", *SMALL, "--sm", "90", "--dtype", "fp16")).out
        self.assertRegex(text, r"constant Output +f16 +bf16")

    def test_explain_of_what_cannot_be_used(self):
        self.prewarm_small("kernels")
        victim = self.cache("ls", "--json").json()["entries"][0]
        (self.folder / victim["path"]).chmod(0o666)
        for asked in ((victim["key"],), (*SMALL, "--sm", "90")):
            kernels = self.assert_ok(self.cache("explain", *asked, "--json")).json()["kernels"]
            kernel, = (kernel for kernel in kernels if kernel["key"] == victim["key"])
            self.assertEqual(kernel["state"], "miss")
            self.assertIn("not trusted: everyone may write to it", kernel["entries"][0]["fault"])
        self.assertIn("cannot be used", self.cache("explain", victim["key"]).out)

    def test_explain_without_an_entry(self):
        (self.folder / "kernels").mkdir()
        self.assertIn("no entry to compare with", self.assert_ok(self.cache("explain", *SMALL, "--sm", "90")).out)
        self.assert_refused(self.cache("explain", "12"), "key", "32 hexadecimal digits")
        self.assert_failed(self.cache("explain", "0" * 32), "no entry has the key")
        self.assert_refused(self.cache("explain"), "KEY")
        self.assert_refused(self.cache("explain", "0" * 32, *SMALL), "one of the two")
        self.assertEqual(list((self.folder / "kernels").iterdir()), [])

    def test_verify_finds_a_flipped_byte(self):
        report = self.prewarm_small("kernels")
        victim = self.cache("ls", "--json").json()["entries"][0]
        file = pathlib.Path(self.folder / victim["path"])
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)

        result = self.cache("verify", "--json")
        self.assert_failed(result, "1 of", victim["path"])
        found = result.json()
        self.assertEqual((found["checked"], len(found["bad"])), (report["summary"]["total"], 1))
        self.assertEqual((found["bad"][0]["path"], found["bad"][0]["action"]), (victim["path"], "quarantined"))
        self.assertEqual(self.cache("stat", "--json").json()["quarantined"], 1)
        # Quarantined is done with; what is gone is compiled again.
        self.assert_ok(self.cache("verify"))
        again = self.prewarm_small("kernels")["summary"]
        self.assertEqual((again["compiled"], again["hits"]), (1, report["summary"]["total"] - 1))

    def test_counters_are_of_all_processes(self):
        total = self.prewarm_small("kernels")["summary"]["total"]
        self.prewarm_small("kernels")
        stat = self.cache("stat", "--json").json()
        counters = stat["counters"]
        self.assertEqual((counters["compiles"], counters["misses"], counters["hits"]), (total, total, total))
        self.assertEqual((counters["waits"], counters["quarantines"], counters["evictions"]), (0, 0, 0))
        self.assertEqual((counters["bytes_published"], counters["bytes_read"]), (stat["bytes"], stat["bytes"]))
        self.assertRegex(counters["since"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")
        text = self.assert_ok(self.cache("stat")).out
        for line in (rf"misses +{total}: {total} compiled", rf"since +{counters['since']}", r"quarantines +0", r"entries .* at most 2\.0 GiB"):
            self.assertRegex(text, f"(?m)^{line}")
        self.assert_ok(self.cache("clear", "--yes"))
        self.assertIsNone(self.cache("stat", "--json").json()["counters"]["since"])

    def test_gc(self):
        total = self.prewarm_small("kernels")["summary"]["total"]
        kept = self.assert_ok(self.cache("gc", "--json")).json()
        self.assertEqual((kept["schema"], kept["entries"], kept["kept_entries"]), ("attnsmith.cache-gc/1", 0, total))
        stat = self.cache("stat", "--json").json()
        self.assertEqual((kept["kept_allocated_bytes"], stat["max_bytes"]), (stat["allocated_bytes"], 2 << 30))

        self.assertEqual(self.cache("gc", "--cache-max-bytes", 1, "--json").json()["entries"], 0)  # used just now
        self.assertIn("within the last 2 hours", self.assert_ok(self.cache("gc", "--cache-max-bytes", 1)).out)
        entries = self.cache("ls", "--json").json()["entries"]
        for i, entry in enumerate(entries):  # the first was used last
            time = os.stat(self.folder / entry["path"]).st_mtime - 3600 * i
            os.utime(self.folder / entry["path"], (time, time))
        collected = self.assert_ok(self.cache("gc", "--max-bytes", stat["allocated_bytes"] - 1, "--json")).json()
        self.assertEqual((collected["entries"], collected["kept_entries"]), (1, total - 1))
        left = {entry["key"] for entry in self.cache("ls", "--json").json()["entries"]}
        self.assertEqual(left, {entry["key"] for entry in entries[:-1]})
        self.assertIn("1 entry", self.assert_ok(self.cache("gc", "--max-bytes", collected["kept_allocated_bytes"] - 1)).out)
        self.assertEqual(self.cache("stat", "--json").json()["counters"]["evictions"], 2)
        self.assertEqual(self.cache("stat", "--cache-max-bytes", 0, "--json").json()["max_bytes"], None)
        for bad in ("-1", "1.5", "many", "G", "1X", "1KB", "1.G", ".5G", "1 G", "9007199254740992K", "1e3", "1.2.3M"):
            self.assert_refused(self.cache("gc", f"--max-bytes={bad}"), "max-bytes", "512M")
            self.assert_refused(self.cache("stat", f"--cache-max-bytes={bad}"), "cache-max-bytes", "512M")

    def test_sizes_may_have_units(self):
        (self.folder / "kernels").mkdir()
        for text, size in (("0", 0), ("1000", 1000), ("1K", 1 << 10), ("3m", 3 << 20), ("1G", 1 << 30), ("2T", 2 << 40),
                           ("7KiB", 7 << 10), ("512MiB", 512 << 20), ("1.5GiB", 3 << 29), ("0.5k", 512), ("1tib", 1 << 40),
                           ("8191T", 8191 << 40), (str((1 << 63) - 1), (1 << 63) - 1)):
            self.assertEqual(self.cache("stat", "--cache-max-bytes", text, "--json").json()["max_bytes"], size or None, text)
        self.assertEqual(self.cache("gc", "--max-bytes", "1.5M", "--json").json()["max_bytes"], 3 << 19)

    def test_gc_beside_another(self):
        (self.folder / "kernels/locks").mkdir(parents=True)
        with open(self.folder / "kernels/locks/evictor.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            result = self.cache("gc", "--json")
        self.assert_error_line(result, 1, "another process is evicting")
        self.assertEqual(self.assert_error_json(result)["code"], "cache_error")

    def test_gc_does_not_say_what_it_keeps_where_it_cannot_know(self):
        (self.folder / "kernels").mkdir()
        self.write("kernels/ab", "named as a directory of entries")
        result = self.cache("gc", "--json")
        self.assert_error_line(result, 1, "kernels/ab")
        self.assertNotIn("kept_entries", result.json())
        self.assertNotIn("kept", self.cache("gc").out)

    def test_clear_says_what_is_left(self):
        (self.folder / "kernels/staging").mkdir(parents=True)
        (self.folder / "kernels/locks").mkdir()
        name = self.folder / "kernels/staging" / f"{'0' * 32}-{'0' * 16}.staging"
        name.write_text("being written")
        with open(self.folder / "kernels/locks" / f"{'0' * 32}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            out = self.assert_ok(self.cache("clear", "--yes")).out
            self.assertIn("left: 1 staging files of under an hour", out)
            self.assertIn("left: 1 lock files", out)
            left = self.assert_ok(self.cache("clear", "--yes", "--json")).json()
            self.assertEqual((left["staging_left"], left["locks_left"]), (1, 1))
        os.utime(name, (0, 0))
        self.assertEqual(self.assert_ok(self.cache("clear", "--yes")).out.count("left"), 0)
        self.assertFalse(name.exists())

    def test_a_directory_that_others_may_write_to(self):
        self.prewarm_small("kernels")
        (self.folder / "kernels").chmod(0o775)
        stat = self.assert_ok(self.cache("stat", "--json")).json()  # a report, which says it
        self.assertFalse(stat["writable"])
        self.assertIn("mode 0775", stat["not_trusted_because"])
        for command in (["ls"], ["ls", "--json"], ["export", "-o", "no.bundle"]):
            result = self.cache(*command)
            self.assert_failed(result, "mode 0775", "chmod go-w")
            self.assertNotIn("no entries", result.out)
        listed = self.cache("ls", "--json").json()
        self.assertEqual(listed["entries"], [])
        self.assertEqual([one["path"] for one in listed["unreadable"]], [str(self.folder.resolve() / "kernels")])
        self.assertIn("mode 0775", listed["unreadable"][0]["reason"])
        result = self.run_cli("prewarm", "--head-dim", "64", "--q-heads", "8", "--sm", "90", "--cache", "kernels")
        self.assertEqual(result.code, 1)
        self.assertRegex(result.err, "(?m)^attnsmith: error: .*mode 0775.*chmod go-w")
        self.assertEqual(len(self.cache("ls", "--cache-trust", "group", "--json").json()["entries"]), stat["entries"])
        self.assert_refused(self.cache("ls", "--cache-trust", "friends"), "cache-trust")
        for command in (["gc"], ["clear", "--yes"]):
            result = self.cache(*command)
            self.assert_failed(result, "nothing could be deleted", "chmod go-w", "group or all")
        (self.folder / "kernels").chmod(0o777)
        result = self.cache("gc")
        self.assert_failed(result, "--cache-trust all")
        self.assertNotIn("group or all", result.err)
        self.assert_failed(self.cache("verify"), "1 directory or bundle is not sound or cannot be looked into")

    # ---- What cannot be read

    def test_a_directory_that_cannot_be_read_is_not_empty(self):
        llama = self.write("llama.json", json.dumps(SMALL_LLAMA))
        self.assert_ok(self.run_cli("prewarm", "--model", llama, "--sm", "90", "--cache", "kernels", "--json"))
        key = self.cache("ls", "--json").json()["entries"][0]["key"]
        self.give("kernels")
        (self.folder / "out").mkdir()
        self.give("out")
        shard = self.folder / "kernels" / key[:2]
        here = ("--cache", "kernels")
        for closed, mode in ((self.folder / "kernels", 0o300), (shard, 0o000)):
            closed.chmod(mode)
            all_closed = closed != shard
            with self.subTest(closed=closed):
                result = self.run_as_user("cache", "ls", "--json", *here)
                self.assert_failed(result, str(closed), "Permission denied")
                listed = result.json()
                self.assertEqual([one["path"] for one in listed["unreadable"]], [str(closed)])
                self.assertIn("Permission denied", listed["unreadable"][0]["reason"])
                self.assertEqual(listed["entries"] == [], all_closed)
                self.assert_failed(self.run_as_user("cache", "ls", *here), str(closed))

                result = self.run_as_user("cache", "stat", "--json", *here)
                self.assertEqual(result.json()["unreadable"], listed["unreadable"])
                self.assert_failed(result, str(closed))

                self.assert_failed(self.run_as_user("cache", "explain", key, *here), "no entry has the key", str(closed))
                if not all_closed:
                    result = self.run_as_user("cache", "explain", listed["entries"][0]["key"], *here)
                    self.assertEqual(result.code, 0)
                    self.assertIn(str(closed), result.err)
                result = self.run_as_user("cache", "explain", "--model", llama, "--sm", "90", "--json", *here)
                self.assert_failed(result, str(closed))
                self.assertEqual(result.json()["unreadable"], listed["unreadable"])

                for more in ((), ("--sm", "90"), ("--model", llama)):
                    result = self.run_as_user("cache", "export", "-o", "out/x.bundle", "--json", *more, *here)
                    self.assert_failed(result, str(closed), "Permission denied")
                    self.assertNotIn("not in the cache", result.err)
                    self.assertEqual((self.folder / "out/x.bundle").exists(), not all_closed)
                    if not all_closed:
                        self.assertEqual(result.json()["unreadable"], listed["unreadable"])
                result = self.run_as_user("cache", "verify", *here)
                self.assert_failed(result, str(closed), "1 directory or bundle is not sound or cannot be looked into")
                self.assertNotIn(" of ", result.err)
            closed.chmod(0o700)

    def test_entries_that_cannot_be_looked_at_are_told_of(self):
        """A shard whose names may be read and nothing else."""
        entries = self.prewarm_merges()
        key = entries[0]["key"]
        hidden = [entry for entry in entries if entry["key"][:2] == key[:2]]
        self.give("kernels")
        (self.folder / "out").mkdir()
        self.give("out")
        shard = self.folder / "kernels" / key[:2]
        shard.chmod(0o600)
        self.addCleanup(shard.chmod, 0o700)
        for command in (["ls"], ["stat"], ["verify"], ["export", "-o", "out/some.bundle"], ["gc"], ["clear", "--yes"]):
            with self.subTest(command=command):
                result = self.run_as_user("cache", *command, "--json", "--cache", "kernels")
                self.assert_failed(result, str(shard), *["Permission denied"] * (command != ["verify"]))
                if command == ["verify"]:
                    self.assertIn("Permission denied", result.json()["bad"][0]["reason"])
                if command == ["ls"]:
                    self.assertEqual(len(result.json()["entries"]), len(entries) - len(hidden))
        shard.chmod(0o700)
        self.assertEqual(len(self.run_as_user("cache", "ls", "--json", "--cache", "kernels").json()["entries"]), len(hidden))

    def test_what_entries_say_does_not_reach_the_terminal_raw(self):
        entry = self.prewarm_merges()[0]
        file = self.folder / entry["path"]
        content = file.read_bytes()
        at = content.index(b'"name":"') + 8
        evil = "\x9b31m\u202e\u200b".encode() + b"\\n\\u001b]"
        file.write_bytes(content[:at] + evil + content[at + len(evil):])
        names = [one["name"] for one in self.cache("ls", "--json").json()["entries"]]
        self.assertIn("\x9b31m\u202e\u200b\n\x1b]", names)
        self.assertEqual(self.cache("ls").out.count("\n"), len(names) + 1)
        for command in (["ls"], ["ls", "--json"], ["explain", entry["key"]]):
            result = self.cache(*command)
            for raw in ("\x1b", "\x9b", "\u202e", "\u200b"):
                self.assertNotIn(raw, result.out + result.err)
            self.assertIn("\\u009b31m\\u202e\\u200b", result.out)
        # A name of a directory that somebody else chose.
        folder = "evil\x1b[2J\nattnsmith: error: forged\x9b"
        for command in (["stat"], ["verify"], ["ls"], ["dir"], ["gc"], ["explain", "00000000"]):
            result = self.run_cli("cache", *command, "--cache", folder, "--cache", folder + "2")
            for raw in ("\x1b", "\x9b", "\nattnsmith: error: forged"):
                self.assertNotIn(raw, result.out + result.err)

    def test_rm(self):
        entries = self.prewarm_merges()
        key = entries[0]["key"]
        file = self.folder / entries[0]["path"]
        other = key[:-1] + ("0" if key[-1] != "0" else "1")
        shutil.copy(file, file.with_name(file.name.replace(key, other)))
        self.assert_failed(self.cache("rm", key[:6]), "2 keys begin with", key, other)
        shutil.copy(file, file.with_name(f"{key}-12.9.1.entry"))
        shutil.copytree(self.folder / "kernels", self.folder / "layer")
        removed = self.assert_ok(self.cache("rm", key.upper(), "--json")).json()
        self.assertEqual((removed["schema"], removed["key"], removed["entries"]), ("attnsmith.cache-rm/1", key, 2))
        self.assertEqual(removed["bytes"], 2 * entries[0]["bytes"])
        self.assertNotIn(key, {entry["key"] for entry in self.cache("ls", "--json").json()["entries"]})
        text = self.assert_ok(self.cache("rm", other, "--cache", "layer")).out
        self.assertIn("1 entry of " + other, text)
        self.assertIn("left: 1 entry", text)
        self.assert_failed(self.cache("rm", key, "--cache", "layer"), "read-only layers only")
        self.assert_failed(self.cache("rm", key), "no entry has the key")
        self.assert_refused(self.cache("rm", "12"), "key", "32 hexadecimal digits")
        self.assert_refused(self.cache("rm"), "KEY is missing")
        self.assertEqual(len(self.cache("ls", "--json").json()["entries"]), len(entries) - 1)

    def test_dir(self):
        here = str(self.folder.resolve())
        self.assertEqual(self.assert_ok(self.cache("dir")).out, f"{here}/kernels\n")
        (self.folder / "layer").mkdir()
        layers = ("--cache", "own", "--cache", f"{here}/layer")
        self.assertEqual(self.assert_ok(self.run_cli("cache", "dir", *layers)).out, f"{here}/own\n{here}/layer\n")
        self.assert_refused(self.run_cli("cache", "dir", "--cache", "own", "--cache", "/opt/layer.bundle"), "/opt/layer.bundle")
        told = self.assert_ok(self.run_cli("cache", "dir", "--json", env={"ATTNSMITH_CACHE_DIR": "/a:/b"})).json()
        self.assertEqual(told, {"schema": "attnsmith.cache-dir/1", "directories": ["/a", "/b"],
                                "remotes": [], "named_by": "ATTNSMITH_CACHE_DIR"})
        self.assertEqual(self.assert_ok(self.run_cli("cache", "dir")).out, f"{self.folder}/home/.cache/attnsmith\n")
        self.assert_failed(self.run_cli("cache", "dir", env={"HOME": None}), "no cache directory")

    def test_places_where_nothing_can_be_made(self):
        for place in ("/proc/none", "/proc/none/below"):
            stat = self.run_cli("cache", "stat", "--json", env={"ATTNSMITH_CACHE_DIR": place}).json()
            self.assertFalse(stat["writable"], place)
            self.assertIn("/proc", stat["not_writable_because"])
            result = self.run_cli("prewarm", *SMALL, "--sm", "90", "--cache", place, env={"ATTNSMITH_LOG": "info"})
            self.assertEqual(result.code, 1)
            self.assertIn("cannot write to the cache directory", result.err)
            self.assertNotIn("compiled", result.err)

    def test_far_file_times(self):
        entries = self.prewarm_merges()
        for i, entry in enumerate(entries):
            os.utime(self.folder / entry["path"], (0, (-1 if i % 2 else 1) * 10**10 * (i + 1)))
        (self.folder / "kernels/staging").mkdir(exist_ok=True)
        name = self.folder / "kernels/staging" / f"{'0' * 32}-{'0' * 16}.staging"
        name.write_text("of another time")
        os.utime(name, (0, -10**10))
        for command in (["ls"], ["ls", "--json"], ["stat"], ["verify"], ["gc"]):
            self.assert_ok(self.cache(*command))
        self.assertFalse(name.exists())
        self.assertEqual(len(self.cache("ls", "--json").json()["entries"]), len(entries))

    def test_layers_that_are_not_usable(self):
        self.write("text", "no bundle")
        for layer, reason in (("typo", "No such file"), ("text", "not a sound bundle")):
            places = {"ATTNSMITH_CACHE_DIR": f"own:{layer}"}
            stat = self.run_cli("cache", "stat", "--json", env=places).json()["layers"]
            self.assertIn(reason, stat[0]["not_usable_because"])
            self.assertRegex(self.run_cli("cache", "stat", env=places).out,
                             f"(?m)^layer .*/{layer}: 0 entries.*{reason}")
        (self.folder / "own").mkdir()
        layers = ("--cache", "own", "--cache", "text")
        self.assert_failed(self.run_cli("cache", "ls", *layers), "not a sound bundle", "text")
        result = self.run_cli("cache", "verify", *layers)
        self.assert_failed(result, "1 directory or bundle is not sound or cannot be looked into", "text")
        self.assertNotIn("0 entries", result.err)

    # ---- Bundles

    def keys(self, *flags, **env):
        listed = self.assert_ok(self.run_cli("cache", "ls", "--json", *flags, **env)).json()
        return {entry["key"] for entry in listed["entries"]}

    def test_a_bundle_carries_kernels_to_another_place(self):
        report = self.prewarm_small("kernels")
        made = {kernel["key"] for kernel in report["kernels"]}
        exported = self.assert_ok(self.cache("export", "-o", "all.bundle", "--json")).json()
        self.assertEqual((exported["schema"], exported["entries"], exported["bad"], exported["missing"]),
                         ("attnsmith.cache-export/1", len(made), [], 0))
        bundle = self.folder / "all.bundle"
        self.assertEqual(exported["bytes"], bundle.stat().st_size)
        # Whatever reads tar reads it, and the manifest is as it says.
        with tarfile.open(bundle) as archive:
            members = archive.getmembers()
            manifest = json.load(archive.extractfile(members[0]))
            self.assertEqual((members[0].name, manifest["schema"]), ("manifest.json", "attnsmith.bundle/1"))
            self.assertEqual([entry["path"] for entry in manifest["entries"]], [member.name for member in members[1:]])
            for entry, member in zip(manifest["entries"], members[1:]):
                content = archive.extractfile(member).read()
                self.assertEqual(content, (self.folder / "kernels" / member.name).read_bytes())
                self.assertEqual(hashlib.sha256(content).hexdigest(), entry["sha256"])
                self.assertEqual((len(content), member.offset_data), (entry["bytes"], entry["offset"]))

        imported = self.assert_ok(self.run_cli("cache", "import", "all.bundle", "--cache", "copy", "--json")).json()
        self.assertEqual((imported["entries"], imported["imported"], imported["present"]), (len(made), len(made), 0))
        self.assertEqual(self.keys("--cache", "copy"), made)
        self.assertEqual(self.prewarm_small("copy")["summary"]["hits"], len(made))
        self.assert_ok(self.run_cli("cache", "export", "--cache", "copy", "--output", "again.bundle"))
        self.assertEqual((self.folder / "again.bundle").read_bytes(), bundle.read_bytes())
        again = self.assert_ok(self.run_cli("cache", "import", "all.bundle", "--cache", "copy"))
        self.assertIn(f"0 entries imported, 0 B; {len(made)} were there already", again.out)

    def test_files_that_may_not_grow(self):
        """A write past `ulimit -f` is an error that is told, and leaves nothing that is half written."""
        self.prewarm_small("kernels")
        self.assert_ok(self.cache("export", "-o", "all.bundle"))

        def limited(*words):
            return self.finish(self.start(
                *words, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2048, 2048))))
        self.assert_failed(limited("cache", "export", "--cache", "kernels", "-o", "out.bundle"), "File too large")
        self.assert_failed(limited("cache", "import", "--cache", "copy", "all.bundle"), "File too large")
        result = limited("prewarm", *SMALL, "--sm", "90", "--cache", "new", "--quiet")
        self.assertEqual(result.code, 1, result)
        self.assertIn("could not be stored", result.err)
        self.assertIn("File too large", result.err)
        left = [path for kind in ("*.partial", "*.staging", "*.entry", "out.bundle") for path in self.folder.rglob(kind)
                if "kernels" not in path.parts]
        self.assertEqual(left, [])

    def test_a_bundle_is_a_layer_as_it_is(self):
        report = self.prewarm_small("kernels")
        self.assert_ok(self.cache("export", "-o", "all.bundle"))
        places = {"ATTNSMITH_CACHE_DIR": "own:all.bundle"}
        self.assertEqual(self.keys(env=places), {kernel["key"] for kernel in report["kernels"]})
        stat = self.assert_ok(self.run_cli("cache", "stat", "--json", env=places)).json()
        self.assertEqual((stat["entries"], stat["layers"][0]["entries"]), (0, report["summary"]["total"]))
        verified = self.assert_ok(self.run_cli("cache", "verify", "--json", env=places)).json()
        self.assertEqual(verified["checked"], report["summary"]["total"])
        plan = self.assert_ok(self.run_cli("plan", *SMALL, "--sm", "90", "--json", env=places)).json()
        self.assertTrue(all(kernel["cache"]["state"] == "hit" for kernel in plan["kernels"]), plan["kernels"])
        self.assertFalse((self.folder / "own").exists())
        # First in the list it could not be written to.
        self.assert_refused(self.run_cli("cache", "ls", env={"ATTNSMITH_CACHE_DIR": "all.bundle"}),
                            "ATTNSMITH_CACHE_DIR", "a directory")
        (self.folder / "xdg").mkdir()
        (self.folder / "xdg" / "attnsmith").write_text("text")
        self.assert_refused(self.run_cli("cache", "ls", env={"XDG_CACHE_HOME": str(self.folder / "xdg")}), "XDG_CACHE_HOME")
        # What is no bundle is passed over, and said so.
        self.write("text.bundle", "text")
        result = self.run_cli("cache", "ls", "--json", env={"ATTNSMITH_CACHE_DIR": "own:text.bundle"})
        self.assertEqual(result.json()["entries"], [])
        self.assert_failed(result, "not a sound bundle")

    def test_sizes_are_told_in_the_unit_that_they_fill(self):
        (self.folder / "kernels").mkdir()
        for number, text in ((1, "1 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536, "1.5 KiB"), (1048550, "1.0 MiB"),
                             (3 << 29, "1.5 GiB"), (1 << 52, "4096.0 TiB")):
            self.assertIn(f"at most {text}\n", self.assert_ok(self.cache("stat", "--cache-max-bytes", str(number))).out)
        self.assertIn("at most any\n", self.assert_ok(self.cache("stat", "--cache-max-bytes", "0")).out)

    def test_an_export_is_of_an_sm_or_of_a_model(self):
        small = self.prewarm_small("kernels")["summary"]["total"]
        self.assert_ok(self.run_cli("prewarm", "--op", "merge", "--head-dim-vo", "64", "--q-heads", "8", "--sm", "80",
                                    "--cache", "kernels", "--json"))
        both = len(self.keys("--cache", "kernels"))
        self.assertGreater(both, small)
        for sms, expected in (("90", small), ("80", both - small), ("80,90", both)):
            exported = self.assert_ok(self.cache("export", "-o", "some.bundle", "--sm", sms, "--json")).json()
            self.assertEqual(exported["entries"], expected)
        self.assert_refused(self.cache("export", "-o", "no.bundle", "--sm", "91"), '--sm: "91" is not accepted')
        self.assert_failed(self.cache("export", "-o", "no.bundle", "--sm", "120"), "no kernels for sm 120 to export")
        self.assertFalse((self.folder / "no.bundle").exists())
        llama = self.write("llama.json", json.dumps({**SMALL_LLAMA, "hidden_size": 64}))
        # A model of which the cache has nothing, and one of which it has all.
        self.assert_failed(self.cache("export", "-o", "no.bundle", "--model", llama), "no kernels of the model to export")
        self.assert_ok(self.run_cli("prewarm", "--model", llama, "--sm", "90", "--cache", "model", "--json"))
        needed = self.keys("--cache", "model")
        self.assert_ok(self.run_cli("cache", "export", "--cache", "model", "-o", "model.bundle"))
        self.assert_ok(self.cache("import", "model.bundle"))
        for flags in ((), ("--sm", "90")):
            exported = self.assert_ok(self.cache("export", "-o", "m.bundle", "--model", llama, "--json", *flags)).json()
            self.assertEqual((exported["entries"], exported["missing"]), (len(needed), 0))
        victim = next(entry for entry in self.cache("ls", "--json").json()["entries"] if entry["key"] in needed)
        (self.folder / victim["path"]).unlink()
        result = self.cache("export", "-o", "m.bundle", "--model", llama, "--sm", "90", "--json")
        self.assert_failed(result, "1 of the model's kernels", "prewarm")
        self.assertEqual((result.json()["entries"], result.json()["missing"]), (len(needed) - 1, 1))

    def test_what_is_no_bundle_adds_nothing(self):
        self.prewarm_small("kernels")
        self.assert_ok(self.cache("export", "-o", "all.bundle"))
        whole = (self.folder / "all.bundle").read_bytes()
        for content in (b"", b"text", whole[:-1], whole + b"\0" * 512, whole[:5000] + b"?" + whole[5001:]):
            self.write("bad.bundle", content)
            result = self.run_cli("cache", "import", "bad.bundle", "--cache", "copy")
            self.assert_failed(result, "the import failed", "at byte", "bad.bundle")
            self.assertFalse((self.folder / "copy").exists())
        self.assert_failed(self.cache("import", "missing.bundle"), "missing.bundle", "No such file")
        self.assert_failed(self.cache("import", "/dev/null"), "regular file")
        self.assert_refused(self.cache("import", "-"), "not a pipe")
        self.assert_refused(self.cache("import"), "FILE is missing")
        self.assert_refused(self.cache("import", "a", "b"), "one FILE")
        self.assert_refused(self.cache("export"), "-o")
        self.assert_refused(self.cache("export", "-o", "-"), "not a pipe")
        self.assert_refused(self.cache("export", "-o"), "value is missing")
        self.assert_refused(self.cache("export", "all.bundle"), "takes flags only")
        self.assert_refused(self.cache("export", "-o", "x", "--page-size", "8"), "--page-size is for --model")
        self.assert_refused(self.cache("export", "-o", "x", "--sm", "many"), "sm", "many")
        self.assert_failed(self.cache("export", "-o", "no/such/folder.bundle"), "no/such", "No such file")
        self.assert_failed(self.cache("export", "-o", "kernels"), "kernels", "something else than a file")
        (self.folder / "empty").mkdir()
        self.assert_failed(self.run_cli("cache", "export", "--cache", "empty", "-o", "e.bundle"), "empty")

    def test_a_bundle_has_no_age_of_its_entries(self):
        self.prewarm_merges()
        self.assert_ok(self.cache("export", "-o", "all.bundle"))
        text = self.assert_ok(self.cache("ls", "--cache", "all.bundle")).out
        for layer, age in (("kernels", r"\d+ s"), ("all.bundle", "-")):
            self.assertEqual(len(re.findall(rf"  {age}  \S+/{layer}$", text, re.MULTILINE)), 4, text)

    def test_an_export_says_what_its_model_has_beside(self):
        """As prewarm does: what is not supported is in no bundle, and what is not known may not be."""
        quasar = self.write("quasar.json", json.dumps({**QUASAR, "hidden_size": 16}))
        both = ["--kv", "dense,paged", "--page-size", "16"]
        self.assertEqual(self.run_cli("prewarm", "--model", quasar, *both, "--sm", "90", "--cache", "kernels").code, 0)
        export = ["export", "-o", "q.bundle", "--model", quasar, *both]
        result = self.assert_ok(self.cache(*export))
        self.assertIn("warning  kv_bend: ", result.out)
        self.assertIn("skipped  page_size with kv dense: ", result.out)
        self.assertNotIn("kv_bend", self.cache(*export, "-q").out)
        report = self.assert_ok(self.cache(*export, "--json")).json()
        self.assertEqual([one["field"] for one in report["warnings"]], ["kv_bend", "model_type"])
        self.assertEqual([one["name"] for one in report["skipped"]], ["page_size with kv dense"])
        self.assertEqual((report["unsupported"], report["other_format"]), ([], 0))
        self.assert_failed(self.cache(*export, "--strict"), "kv_bend")
        # A model of which a part is not served has no kernels for it.
        failed = self.cache("export", "-o", "d.bundle", "--model", PARTIAL)
        self.assert_failed(failed, "no kernels of the model", "full_attention/decode", "not supported")
        self.assertEqual(self.run_cli("prewarm", "--model", PARTIAL, "--sm", "80", "--cache", "kernels").code, 1)
        result = self.cache("export", "-o", "d.bundle", "--model", PARTIAL, "--json")
        self.assert_failed(result, "1 part is not supported: full_attention/decode")
        self.assertEqual([one["name"] for one in result.json()["unsupported"]], ["full_attention/decode"])
        self.assert_ok(self.cache("export", "-o", "d.bundle", "--model", PARTIAL, "--allow-unsupported"))


if __name__ == "__main__":
    main()
