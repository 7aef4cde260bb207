"""Remote layers: prewarm --push, and what is fetched from servers that behave and from those that do not."""

import hashlib
import json
import shutil
import subprocess
import time
import unittest

import remote_server
from remote_server import RemoteServer
from support import FAKE_NVRTC, CliTest, main

# Kernels that compile in no time.
PREWARM = ["prewarm", "--op", "merge", "--head-dim-vo", "64", "--q-heads", "8", "--sm", "80,86,89,90", "--json"]


class Remote(CliTest):
    def prewarm(self, cache, *places, flags=(), env=None):
        command = [*PREWARM, "--cache", cache]
        for place in places:
            command += ["--cache", place]
        return self.run_cli(*command, *flags, env=env or {})

    def summary(self, result):
        """What a run says that did its work, with whatever warnings."""
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

    def test_nothing_is_pushed_that_its_pusher_would_not_take(self):
        mine, theirs = self.keys("mine"), self.keys("theirs")
        with RemoteServer(self.folder / "www") as server:
            total = self.filled(server, mine)
            requests = len(server.requests)
            for signs, words in (({}, "no key"), (theirs[0], "key ")):
                for command in (lambda env: self.prewarm("own", server.address, flags=["--push"], env=env),
                                lambda env: self.run_cli("cache", "push", "--cache", "own", "--cache", server.address,
                                                         "--json", env=env)):
                    result = command({**signs, **mine[1]})
                    self.assert_refused(result, "sign", words, "trusted here, too")
                shutil.rmtree(self.folder / "again", ignore_errors=True)
                asked = self.prewarm("again", env={**signs, **mine[1], "ATTNSMITH_CACHE_PUSH": "1",
                                                   "ATTNSMITH_CACHE_DIR": f"again:{server.address}"})
                self.assertEqual(self.summary(asked)["total"], total)
            self.assertNotIn("PUT", {method for method, _ in server.requests[requests:]})

    def test_a_push_repairs_what_is_damaged(self):
        signing = self.keys()
        with RemoteServer(self.folder / "www") as server:
            total = self.filled(server, signing)
            versions = ",".join(f'"{number}.0.0"' for number in range(100, 116))

            def cut(file):
                file.write_bytes(file.read_bytes()[:100])

            def change(file):
                data = bytearray(file.read_bytes())
                data[len(data) // 2] ^= 1
                file.write_bytes(data)

            def poison(file):
                text = file.read_text()
                if "hint" in text:
                    file.write_text(text[:text.index("[")] + f"[{versions}]}}\n")

            for number, (kind, damage) in enumerate((("cas", cut), ("cas", change), ("ac", poison))):
                with self.subTest(damage.__name__):
                    for file in server.files(kind):
                        damage(file)
                    env = {**signing[0], **signing[1]}
                    self.summary(self.prewarm("own", server.address, flags=["--push"], env=env))
                    fetched = self.summary(self.prewarm(f"disk{number}", server.address, env=signing[1]))
                    self.assertEqual(fetched["remote"], total)

    def test_programs_push_what_they_compile_when_asked(self):
        signs, trusts = self.keys()
        with RemoteServer(self.folder / "www") as server:
            env = {**signs, **trusts, "ATTNSMITH_CACHE_PUSH": "1"}
            summary = self.summary(self.prewarm("own", server.address, env=env))
            self.assertEqual((summary["compiled"], summary["pushed"]), (summary["total"], summary["total"]))
            self.assertEqual(self.summary(self.prewarm("empty", server.address, env=trusts))["remote"],
                             summary["total"])
            # A server that takes nothing costs a warning.
            server.manner = lambda handler: handler.command == "PUT" and remote_server.answers(507)(handler)
            result = self.run_cli("prewarm", "--op", "merge", "--head-dim-vo", "72", "--q-heads", "8", "--sm", "80,90",
                                  "--json", "--cache", "own", "--cache", server.address, env=env)
            summary = self.summary(result)
            self.assertEqual((summary["compiled"], summary["pushed"]), (summary["total"], 0))
            self.assertEqual(result.err.count("attnsmith: cache:"), 1, result.err)
            self.assertIn("could not be pushed: the server answered 507", result.err)
        self.assert_refused(self.prewarm("own", env={"ATTNSMITH_CACHE_PUSH": "yes"}), "ATTNSMITH_CACHE_PUSH", "yes")

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
                    # Against the same without a remote; again where a machine had other work meanwhile.
                    for _ in range(4):
                        took = self.seconds_to_compile(total, server.address, env=signing[1])
                        if took < self.seconds_to_compile(total) + 3:
                            break
                    else:
                        self.fail("three seconds are the most that a server may cost")

    def seconds_to_compile(self, total, *remotes, env=None):
        """How long a pre-warm into an empty directory takes, which has to be sound then."""
        shutil.rmtree(self.folder / "empty", ignore_errors=True)
        began = time.monotonic()
        summary = self.summary(self.prewarm("empty", *remotes, env=env))
        took = time.monotonic() - began
        self.assertEqual((summary["compiled"], summary["remote"]), (total, 0))
        self.assert_ok(self.run_cli("cache", "verify", "--cache", "empty"))
        return took

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

    def toolchains(self, cache):
        return {entry["toolchain"] for entry in self.run_cli("cache", "ls", "--json", "--cache", cache).json()["entries"]}

    @unittest.skipUnless(FAKE_NVRTC, "ATTNSMITH_FAKE_NVRTC names no stub of libnvrtc")
    def test_two_toolchains_share_a_remote(self):
        """Newest first for who takes any; for who takes its own only, its own or none."""
        signs, trusts = self.keys()

        def nvrtc(version, build):
            return {**trusts, "ATTNSMITH_NVRTC_PATH": FAKE_NVRTC, "FAKE_NVRTC_VERSION": version, "FAKE_NVRTC_BUILD": build}

        older, newer, third = nvrtc("12090", "86"), nvrtc("13000", "88"), nvrtc("13010", "1")
        exact = ["--toolchain", "exact"]
        with RemoteServer(self.folder / "www") as server:
            # The newer one first: who comes later takes nothing from the hint.
            for name, env in (("newer", newer), ("older", older)):
                pushed = self.summary(self.prewarm(name, server.address, flags=["--push", *exact], env={**env, **signs}))
                self.assertEqual((pushed["compiled"], pushed["pushed"]), (pushed["total"], pushed["total"]))
            total = pushed["total"]
            self.assertEqual((len(server.files("cas")), len(server.files("ac"))), (2 * total, 3 * total))
            # Who asks, how, and whose entries come. A pre-warm makes anew what is older than its own NVRTC would.
            cases = [
                (older, [], "13.0.88"), (newer, [], "13.0.88"), ({**trusts, "ATTNSMITH_NVRTC_PATH": "/nowhere"}, [], "13.0.88"),
                (older, exact, "12.9.86"), (newer, exact, "13.0.88"), (third, [], None), (third, exact, None),
            ]
            for number, (env, flags, comes) in enumerate(cases):
                with self.subTest(env=env, flags=flags):
                    summary = self.summary(self.prewarm(f"empty{number}", server.address, flags=flags, env=env))
                    self.assertEqual((summary["remote"], summary["compiled"]), (total, 0) if comes else (0, total))
                    self.assertEqual(self.toolchains(f"empty{number}"), {comes or "13.1.1"})

    def signed(self, line, key):
        """A manifest of this line, signed by openssl."""
        (self.folder / "line").write_bytes(line)
        done = subprocess.run(f"openssl pkeyutl -sign -inkey {key} -rawin -in line -out signature && "
                              f"openssl pkey -in {key} -pubout -outform DER | tail -c 32 | sha256sum | cut -c1-16",
                              shell=True, cwd=self.folder, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            self.skipTest(f"there is no openssl command that knows Ed25519: {done.stderr.strip()}")
        signature = (self.folder / "signature").read_bytes().hex()
        return line + f"ed25519 {done.stdout.strip()} {signature}\n".encode()

    def test_what_another_release_left_there(self):
        """Documents and entries of formats to come, rightly signed: passed over by name, and no push replaces them."""
        signs, trusts = signing = self.keys()
        with RemoteServer(self.folder / "www") as server:
            total = self.filled(server, signing)
            original = {file: file.read_bytes() for kind in ("ac", "cas") for file in server.files(kind)}
            hints = [file for file, content in original.items() if content.startswith(b'{"schema":"attnsmith.hint/1"')]
            manifests = [file for file, content in original.items() if content.startswith(b'{"schema":"attnsmith.manifest/1"')]
            self.assertEqual((len(hints), len(manifests)), (total, total))

            def line_of(file):
                return original[file].splitlines(keepends=True)[0]

            def later_hint(file):
                return original[file].replace(b"hint/1", b"hint/2")

            def later_manifest(file):
                return self.signed(line_of(file).replace(b"manifest/1", b"manifest/2"), "key")

            for what, files, change in (("the hint is of another release", hints, later_hint),
                                        ("the manifest is of another release", manifests, later_manifest)):
                with self.subTest(what):
                    for file in files:
                        file.write_bytes(change(file))
                    now = {file: file.read_bytes() for file in original}
                    shutil.rmtree(self.folder / "empty", ignore_errors=True)
                    result = self.prewarm("empty", server.address, env=trusts)
                    self.assertEqual((self.summary(result)["compiled"], self.summary(result)["remote"]), (total, 0))
                    self.assertIn(what, result.err)
                    pushed = self.prewarm("own", server.address, flags=["--push"], env={**signs, **trusts})
                    self.assertEqual((pushed.code, pushed.json()["summary"]["pushed"]), (1, 0))
                    self.assertIn(what, pushed.err)
                    self.assertEqual({file: file.read_bytes() for file in original}, now)
                    for file, content in original.items():
                        file.write_bytes(content)

            # A hint may say more than is understood, a manifest may not: what is signed is what is read.
            for file in hints:
                file.write_bytes(original[file].replace(b'"toolchains"', b'"mirrors":["elsewhere"],"toolchains"'))
            self.assertEqual(self.summary(self.prewarm("a", server.address, env=trusts))["remote"], total)
            for file in manifests:
                file.write_bytes(self.signed(line_of(file).replace(b',"key_fields"', b',"driver":"999","key_fields"'), "key"))
            result = self.prewarm("b", server.address, env=trusts)
            self.assertEqual(self.summary(result)["compiled"], total)
            self.assertIn("the manifest is not written as manifests are", result.err)

            # An entry of a later format, promised by a manifest of this one.
            for file in manifests:
                manifest = json.loads(line_of(file))
                entry = bytearray(original[server.folder / "cache/cas" / manifest["sha256"]])
                entry[8] = 2  # the format version; the checksum is wrong then, too, as it would be of bytes not understood
                self.put_entry(server, file, manifest, bytes(entry))
            result = self.prewarm("c", server.address, env=trusts)
            self.assertEqual((self.summary(result)["compiled"], self.summary(result)["remote"]), (total, 0))
            self.assertIn("what it has is no entry", result.err)
            self.assert_ok(self.run_cli("cache", "verify", "--cache", "c"))

    def put_entry(self, server, file, manifest, entry):
        """An entry, and in a manifest's file one that promises it."""
        digest = hashlib.sha256(entry).hexdigest()
        (server.folder / "cache/cas" / digest).write_bytes(entry)
        line = json.dumps({**manifest, "sha256": digest, "bytes": len(entry)}, separators=(",", ":"), ensure_ascii=False)
        file.write_bytes(self.signed(line.encode() + b"\n", "key"))

    def test_a_manifest_that_openssl_signed_is_taken(self):
        """What the tests above change in manifests is all that keeps them from being taken."""
        signing = self.keys()
        with RemoteServer(self.folder / "www") as server:
            total = self.filled(server, signing)
            for file in server.files("ac"):
                content = file.read_bytes()
                if b"attnsmith.manifest/1" in content:
                    manifest = json.loads(content.splitlines()[0])
                    entry = (server.folder / "cache/cas" / manifest["sha256"]).read_bytes()
                    self.put_entry(server, file, manifest, entry)
                    self.assertEqual(file.read_bytes(), content)  # Ed25519 signs in one way
            self.assertEqual(self.summary(self.prewarm("empty", server.address, env=signing[1]))["remote"], total)

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
                self.assertEqual(self.prewarm("own", server.address, flags=flags, env=env).code, 1)

    def test_what_cannot_be_is_refused(self):
        self.assert_refused(self.prewarm("own", flags=["--push"]), "there is no remote", "--cache https://HOST/PATH")
        for place in ("HTTP://host/x", "htps://host/x", "s3:/bucket/x", "own:http://host/x", "http://", "https:///x"):
            with self.subTest(place):
                self.assert_refused(self.prewarm("own", place), "cache", "each named on its own", "s3://BUCKET/PREFIX")
        listed = self.run_cli(*PREWARM, env={"ATTNSMITH_CACHE_DIR": "own, http://127.0.0.1:1/x"})
        self.assert_refused(listed, "ATTNSMITH_CACHE_DIR", "divided by ':'")
        self.assertEqual([path.name for path in self.folder.iterdir()], [])
        self.assert_refused(self.prewarm("http://127.0.0.1:1/x"), "cache", "a directory first")
        result = self.prewarm("own", "http://127.0.0.1:1/x", flags=["--push"])
        self.assert_refused(result, "http://127.0.0.1:1/x: not used", "--trust-key")
        for key in ("ATTNSMITH_CACHE_TRUST_KEYS", "ATTNSMITH_CACHE_SIGN_KEY"):
            result = self.prewarm("own", "http://127.0.0.1:1/x", env={key: "/nowhere/key"})
            self.assert_refused(result, key, "/nowhere/key")


if __name__ == "__main__":
    main()
