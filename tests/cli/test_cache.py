"""attnsmith cache."""

import os
import pathlib

from support import CliTest, main


class Cache(CliTest):
    def cache(self, command, *flags):
        return self.run_cli("cache", command, "--cache", "kernels", *flags)

    def test_a_directory_that_is_not_there_is_empty(self):
        self.assertEqual(self.assert_ok(self.cache("ls", "--json")).json()["entries"], [])
        self.assertIn("no entries", self.assert_ok(self.cache("ls")).out)
        self.assertEqual(self.assert_ok(self.cache("stat", "--json")).json()["entries"], 0)
        self.assertEqual(self.assert_ok(self.cache("verify", "--json")).json()["checked"], 0)
        self.assertFalse((self.folder / "kernels").exists())

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
        cleared = self.assert_ok(self.cache("clear", "--yes", "--json")).json()
        self.assertEqual((cleared["entries"], cleared["bytes"]), (total, stat["bytes"]))
        self.assertEqual(self.cache("ls", "--json").json()["entries"], [])

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
        self.assertIn(f"{total} compiled", self.assert_ok(self.cache("stat")).out)
        self.assert_ok(self.cache("clear", "--yes"))
        self.assertIsNone(self.cache("stat", "--json").json()["counters"]["since"])

    def test_gc(self):
        total = self.prewarm_small("kernels")["summary"]["total"]
        kept = self.assert_ok(self.cache("gc", "--json")).json()
        self.assertEqual((kept["schema"], kept["entries"], kept["kept_entries"]), ("attnsmith.cache-gc/1", 0, total))
        stat = self.cache("stat", "--json").json()
        self.assertEqual((kept["kept_allocated_bytes"], stat["max_bytes"]), (stat["allocated_bytes"], 2 << 30))

        self.assertEqual(self.cache("gc", "--cache-max-bytes", 1, "--json").json()["entries"], 0)  # used just now
        entries = self.cache("ls", "--json").json()["entries"]
        for i, entry in enumerate(entries):  # the first was used last
            time = os.stat(self.folder / entry["path"]).st_mtime - 3600 * i
            os.utime(self.folder / entry["path"], (time, time))
        collected = self.assert_ok(self.cache("gc", "--max-bytes", stat["allocated_bytes"] - 1, "--json")).json()
        self.assertEqual((collected["entries"], collected["kept_entries"]), (1, total - 1))
        left = {entry["key"] for entry in self.cache("ls", "--json").json()["entries"]}
        self.assertEqual(left, {entry["key"] for entry in entries[:-1]})
        self.assertIn("1 entries", self.assert_ok(self.cache("gc", "--max-bytes", collected["kept_allocated_bytes"] - 1)).out)
        self.assertEqual(self.cache("stat", "--json").json()["counters"]["evictions"], 2)
        self.assertEqual(self.cache("stat", "--cache-max-bytes", 0, "--json").json()["max_bytes"], 0)
        for bad in ("-1", "1.5", "many"):
            self.assert_refused(self.cache("gc", f"--max-bytes={bad}"), "max-bytes")

    def test_a_directory_that_others_may_write_to(self):
        self.prewarm_small("kernels")
        (self.folder / "kernels").chmod(0o775)
        stat = self.cache("stat", "--json").json()
        self.assertFalse(stat["writable"])
        self.assertIn("mode 0775", stat["not_trusted_because"])
        result = self.cache("ls", "--json")
        self.assertEqual((result.code, result.json()["entries"]), (0, []))
        self.assertIn("chmod go-w", result.err)
        result = self.run_cli("prewarm", "--head-dim", "64", "--q-heads", "8", "--sm", "90", "--cache", "kernels")
        self.assertEqual(result.code, 1)
        self.assertRegex(result.err, "(?m)^attnsmith: error: .*mode 0775.*chmod go-w")
        self.assertEqual(len(self.cache("ls", "--cache-trust", "group", "--json").json()["entries"]), stat["entries"])
        self.assert_refused(self.cache("ls", "--cache-trust", "friends"), "cache-trust")


if __name__ == "__main__":
    main()
