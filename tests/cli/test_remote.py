"""Remote layers: prewarm --push, and what is fetched from servers that behave and from those that do not."""

import shutil
import time

import remote_server
from remote_server import RemoteServer
from support import CliTest, main

# Kernels that compile in no time.
PREWARM = ["prewarm", "--op", "merge", "--head-dim-vo", "64", "--q-heads", "8", "--sm", "80,86,89,90", "--json"]


class Remote(CliTest):
    def prewarm(self, cache, *places, flags=(), env=None):
        command = [*PREWARM, "--cache", cache]
        for place in places:
            command += ["--cache", place]
        return self.run_cli(*command, *flags, env=env or {})

    def summary(self, result):
        """Of a run that did its work, with whatever warnings."""
        self.assertEqual(result.code, 0, result)
        return result.json()["summary"]

    def keys(self, name="key"):
        self.assert_ok(self.run_cli("cache", "keygen", "-o", name))
        return {"ATTNSMITH_CACHE_SIGN_KEY": name}, {"ATTNSMITH_CACHE_TRUST_KEYS": name + ".pub"}

    def filled(self, server, signing):
        """All kernels on the server, signed; how many they are."""
        summary = self.summary(self.prewarm("own", server.address, flags=["--push"],
                                            env={**signing[0], **signing[1]}))
        self.assertEqual(summary["pushed"], summary["total"])
        return summary["total"]

    def test_pushed_by_one_and_fetched_by_all(self):
        signs, trusts = signing = self.keys()
        with RemoteServer(self.folder / "www") as server:
            total = self.filled(server, signing)
            self.assertEqual(len(server.files("cas")), total)
            self.assertEqual(len(server.files("ac")), 2 * total)
            requests = len(server.requests)
            again = self.summary(self.prewarm("own", server.address, flags=["--push"], env={**signs, **trusts}))
            self.assertEqual((again["hits"], again["pushed"]), (total, 0))
            self.assertNotIn("PUT", {method for method, _ in server.requests[requests:]})

            for flags in ([], ["--toolchain", "exact"]):
                shutil.rmtree(self.folder / "empty", ignore_errors=True)
                result = self.prewarm("empty", server.address, flags=flags, env=trusts)
                summary = self.summary(result)
                self.assertEqual((summary["remote"], summary["compiled"]), (total, 0))
                self.assertEqual({kernel["state"] for kernel in result.json()["kernels"]}, {"remote"})
            stat = self.run_cli("cache", "stat", "--json", "--cache", "empty").json()
            self.assertEqual((stat["counters"]["remote_hits"], stat["counters"]["compiles"]), (total, 0))
            self.assertEqual((stat["counters"]["misses"], stat["entries"]), (total, total))

        # What was fetched is kept: the server is gone.
        self.assertEqual(self.summary(self.prewarm("empty", server.address, env=trusts))["hits"], total)
        self.assert_ok(self.run_cli("cache", "verify", "--cache", "empty"))

    def test_needs_no_nvrtc(self):
        signing = self.keys()
        with RemoteServer(self.folder / "www") as server:
            total = self.filled(server, signing)
            without = {**signing[1], "ATTNSMITH_NVRTC_PATH": "/nowhere"}
            summary = self.summary(self.prewarm("empty", server.address, env=without))
            self.assertEqual(summary["remote"], total)
            # What is nowhere fails by name.
            server.files("cas")[0].unlink()
            result = self.prewarm("another", server.address, env=without)
            summary = result.json()["summary"]
            self.assertEqual((result.code, summary["remote"], summary["failed"]), (1, total - 1, 1))

    def test_only_what_is_signed_by_a_trusted_key(self):
        mine, theirs = self.keys("mine"), self.keys("theirs")
        both = {"ATTNSMITH_CACHE_TRUST_KEYS": "theirs.pub:mine.pub"}
        cases = [  # who signs, whom the reader trusts, whether it is taken
            ({}, {}, False), ({}, mine[1], False), (theirs[0], mine[1], False), (mine[0], mine[1], True),
            (mine[0], both, True), (theirs[0], both, True), (mine[0], {}, False),
        ]
        for number, (signs, trusts, taken) in enumerate(cases):
            with self.subTest(signs=signs, trusts=trusts), RemoteServer(self.folder / f"www{number}") as server:
                pushed = self.prewarm("own", server.address, flags=["--push", "--cache-trust", "all"], env=signs)
                total = self.summary(pushed)["total"]
                result = self.prewarm(f"empty{number}", server.address, env=trusts)
                summary = self.summary(result)
                self.assertEqual((summary["remote"], summary["compiled"]), (total, 0) if taken else (0, total))
                if not taken:
                    self.assertIn(server.address, result.err)
                    self.assertEqual(result.err.count("attnsmith: cache:"), 1, result.err)
        with RemoteServer(self.folder / "www0") as server:
            anybody = self.summary(self.prewarm("empty", server.address, flags=["--cache-trust", "all"]))
            self.assertEqual(anybody["compiled"], 0)

    def test_rotated_keys(self):
        """The old key's kernels stay until they are pushed again; then nobody needs to trust it."""
        old, new = self.keys("old"), self.keys("new")
        with RemoteServer(self.folder / "www") as server:
            total = self.filled(server, old)
            both = {"ATTNSMITH_CACHE_TRUST_KEYS": "old.pub:new.pub"}
            self.assertEqual(self.summary(self.prewarm("a", server.address, env=both))["remote"], total)
            self.assertEqual(self.summary(self.prewarm("b", server.address, env=new[1]))["compiled"], total)
            again = self.prewarm("own", server.address, flags=["--push"], env={**new[0], **both})
            self.assertEqual(self.summary(again)["pushed"], total)
            self.assertEqual(self.summary(self.prewarm("c", server.address, env=new[1]))["remote"], total)

    def test_whatever_a_server_does_the_kernels_come(self):
        signing = self.keys()
        with RemoteServer(self.folder / "www") as server, RemoteServer(self.folder / "else") as elsewhere:
            total = self.filled(server, signing)
            began = time.monotonic()
            self.assertEqual(self.summary(self.prewarm("alone"))["compiled"], total)
            alone = time.monotonic() - began
            manners = {
                "hangs": remote_server.hangs, "a byte a second": remote_server.drips, "closes": remote_server.closes,
                "404": remote_server.answers(404), "403": remote_server.answers(403),
                "500": remote_server.answers(500), "200 and a page": remote_server.answers(200),
                "elsewhere": remote_server.redirects_to(elsewhere.address),
                "ten gigabytes": remote_server.promises_ten_gigabytes,
                "without end": remote_server.sends_without_end, "cut off": remote_server.truncates(server),
                "another byte": remote_server.changes_a_byte(server),
            }
            for name, manner in manners.items():
                with self.subTest(name):
                    server.manner = manner
                    shutil.rmtree(self.folder / "empty", ignore_errors=True)
                    began = time.monotonic()
                    summary = self.summary(self.prewarm("empty", server.address, env=signing[1]))
                    took = time.monotonic() - began
                    self.assertEqual((summary["compiled"], summary["remote"]), (total, 0))
                    # Three seconds, and what a machine does that has other work.
                    self.assertLess(took, 2 * alone + 3)
                    self.assert_ok(self.run_cli("cache", "verify", "--cache", "empty"))

    def test_the_server_dies(self):
        signing = self.keys()
        with RemoteServer(self.folder / "www") as server:
            total = self.filled(server, signing)
            left = [3 * total - 2]  # of three requests a kernel

            def dies(handler):
                left[0] -= 1
                return left[0] < 0 and remote_server.closes(handler)

            server.manner = dies
            summary = self.summary(self.prewarm("empty", server.address, env=signing[1]))
            self.assertGreater(summary["remote"], 0)
            self.assertEqual(summary["remote"] + summary["compiled"], total)

    def test_an_old_manifest_in_another_place(self):
        signing = self.keys()
        with RemoteServer(self.folder / "www") as server:
            total = self.filled(server, signing)
            manifests = [file for file in server.files("ac") if b"attnsmith.manifest/1" in file.read_bytes()]
            texts = [file.read_bytes() for file in manifests]
            for file, text in zip(manifests, texts[1:] + texts[:1]):
                file.write_bytes(text)
            result = self.prewarm("empty", server.address, env=signing[1])
            self.assertEqual(self.summary(result)["compiled"], total)
            self.assertIn("the manifest of another entry is in its place", result.err)

    def test_processes_with_disks_of_their_own(self):
        """Eight at a time; the full number is the benchmark's."""
        signing = self.keys()
        with RemoteServer(self.folder / "www") as server:
            total = self.filled(server, signing)
            children = [self.start(*PREWARM, "--cache", f"disk{i}", "--cache", server.address, env=signing[1])
                        for i in range(8)]
            for child in children:
                summary = self.summary(self.finish(child))
                self.assertEqual((summary["remote"], summary["compiled"]), (total, 0))

    def test_passwords_are_seen_by_nobody(self):
        secrets = {"ATTNSMITH_CACHE_TOKEN": "hush-token", "ATTNSMITH_CACHE_HEADERS": "X-Key: hush-header"}
        with RemoteServer(self.folder / "www") as server:
            server.manner = remote_server.answers(403)
            place = server.address.replace("http://", "http://hush-user:hush-password@") + "?hush-query=1"
            flags = ["--cache-trust", "all"]
            told = []
            for command in (PREWARM, ["cache", "stat", "--json"],
                            ["cache", "dir", "--json"], ["cache", "dir"], ["doctor", "--json"]):
                for env in (secrets, {**secrets, "ATTNSMITH_LOG": "debug"}):
                    result = self.run_cli(*command, env={**env, "ATTNSMITH_CACHE_DIR": f"own:{place}"})
                    told.append(result.out + result.err)
            refused = self.prewarm("own", place, flags=[*flags, "--push"], env=secrets)
            told.append(refused.out + refused.err)
            self.assertEqual(refused.code, 1)
            self.assertIn("the server answered 403", refused.err)
            for text in told:
                self.assertNotIn("hush", text)

    def test_a_netrc_file(self):
        with RemoteServer(self.folder / "www") as server:
            def asks(handler):
                return not handler.headers.get("Authorization") and remote_server.answers(401)(handler)

            server.manner = asks
            flags = ["--push", "--cache-trust", "all"]
            host = "127.0.0.1"
            self.write("netrc", f"machine {host} login a password hush\n")
            result = self.prewarm("own", server.address, flags=flags, env={"ATTNSMITH_CACHE_NETRC": "netrc"})
            self.assertEqual(self.summary(result)["pushed"], 4)
            self.assertEqual(result.err, "")
            self.assertEqual({headers["Authorization"] for headers in server.headers}, {"Basic YTpodXNo"})

            self.write("netrc", "machine other login a password hush\n")
            result = self.prewarm("own", server.address, flags=flags, env={"ATTNSMITH_CACHE_NETRC": "netrc"})
            self.assertEqual(result.code, 1)
            self.assertIn(f"cache: ATTNSMITH_CACHE_NETRC: netrc has no entry for {host}", result.err)
            self.assertEqual(result.err.count("ATTNSMITH_CACHE_NETRC"), 1)

            self.write("broken", "machine 127.0.0.1 login a pasword hush\n")
            for file, why in (("/nowhere/netrc", "No such file"), ("broken", "line 1")):
                env = {"ATTNSMITH_CACHE_NETRC": file}
                result = self.prewarm("own", server.address, flags=["--cache-trust", "all"], env=env)
                self.assertEqual(self.summary(result)["total"], 4)
                self.assertEqual(result.err.count("attnsmith: cache: "), 1, result.err)
                for words in ("not used: ATTNSMITH_CACHE_NETRC: ", file, why):
                    self.assertIn(words, result.err)
                self.assertNotIn("hush", result.err)
                self.assertEqual(self.prewarm("own", server.address, flags=flags, env=env).code, 2)

    def test_what_cannot_be_is_refused(self):
        self.assert_refused(self.prewarm("own", flags=["--push"]), "push", "http://")
        self.assert_refused(self.prewarm("http://127.0.0.1:1/x"), "cache", "a directory first")
        result = self.prewarm("own", "http://127.0.0.1:1/x", flags=["--push"])
        self.assertEqual(result.code, 2)
        self.assertIn("attnsmith: error: --push: ", result.err)
        self.assertIn("--trust-key", result.err)
        for key in ("ATTNSMITH_CACHE_TRUST_KEYS", "ATTNSMITH_CACHE_SIGN_KEY"):
            result = self.prewarm("own", "http://127.0.0.1:1/x", env={key: "/nowhere/key"})
            self.assert_refused(result, key, "/nowhere/key")


if __name__ == "__main__":
    main()
