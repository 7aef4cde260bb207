"""attnsmith cache."""

import pathlib

from support import SMALL, CliTest, main


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

    def test_explain(self):
        self.prewarm_small("kernels")
        listed = self.cache("ls", "--json").json()["entries"]
        one = self.assert_ok(self.cache("explain", "--key", listed[0]["key"], "--json")).json()
        self.assertEqual(one["schema"], "attnsmith.cache-explain/1")
        kernel, = one["kernels"]
        self.assertEqual((kernel["key"], kernel["name"], kernel["state"]), (listed[0]["key"], listed[0]["name"], "hit"))
        self.assertIn({"label": "target", "value": listed[0]["target"]}, kernel["fields"])
        self.assertIn("constant head_dim_vo", self.assert_ok(self.cache("explain", "--key", listed[0]["key"])).out)

        there = self.assert_ok(self.cache("explain", *SMALL, "--sm", "90", "--json")).json()["kernels"]
        self.assertEqual({kernel["key"] for kernel in there}, {entry["key"] for entry in listed})
        self.assertEqual({kernel["state"] for kernel in there}, {"hit"})
        missed = self.assert_ok(self.cache("explain", *SMALL, "--sm", "90", "--dtype", "fp16", "--json")).json()["kernels"]
        for kernel in missed:
            self.assertEqual((kernel["state"], kernel["entries"]), ("miss", []))
            found = {one["label"]: (one["here"], one["there"]) for one in kernel["nearest"]["differences"]}
            self.assertEqual(found["constant Element"], ("f16", "bf16"))
        text = self.assert_ok(self.cache("explain", *SMALL, "--sm", "90", "--dtype", "fp16")).out
        self.assertRegex(text, r"constant Element +f16 +bf16")

    def test_explain_without_an_entry(self):
        self.assertIn("no entry to compare with", self.assert_ok(self.cache("explain", *SMALL, "--sm", "90")).out)
        self.assert_refused(self.cache("explain", "--key", "12"), "key", "32 hexadecimal digits")
        self.assert_failed(self.cache("explain", "--key", "0" * 32), "no entry has the key")
        self.assert_refused(self.cache("explain"), "--key")
        self.assert_refused(self.cache("explain", "--key", "0" * 32, *SMALL), "one of the two")
        self.assertFalse((self.folder / "kernels").exists())

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


if __name__ == "__main__":
    main()
