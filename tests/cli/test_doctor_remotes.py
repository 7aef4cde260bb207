"""What attnsmith doctor says of remotes, that behave and that do not."""

import shutil
import subprocess
import time
import unittest

import remote_server
from remote_server import RemoteServer
from support import CliTest, main

MERGES = ["--op", "merge", "--head-dim-vo", "64", "--q-heads", "8", "--sm", "80,90"]


class DoctorRemotes(CliTest):
    def setUp(self):
        super().setUp()
        self.server = RemoteServer(self.folder / "www")
        self.server.__enter__()
        self.addCleanup(self.server.__exit__)
        self.assert_ok(self.run_cli("cache", "keygen", "-o", "key"))
        self.trusting = {"ATTNSMITH_CACHE_TRUST_KEYS": "key.pub"}

    def key_id(self, name):
        return self.assert_ok(self.run_cli("cache", "keygen", "-o", name, "--json")).json()["key_id"]

    def doctor(self, *flags, env=None, remote=None):
        """The checks of the remote, by name, and the exit code."""
        result = self.run_cli("doctor", "--json", "--cache", "own", "--cache", remote or self.server.address, *flags,
                              env=self.trusting if env is None else env)
        checks = result.json()["checks"]
        for check in checks:
            self.assertEqual("remedy" in check, check["state"] != "ok", check)
        return {check["name"]: check for check in checks if check["name"].startswith("remote")}, result.code

    def push(self, **env):
        self.assert_ok(self.run_cli("prewarm", *MERGES, "--cache", "own", "--json"))
        result = self.run_cli("cache", "push", "--cache", "own", "--cache", self.server.address, "--json",
                              "--cache-trust", "all", env=env)
        self.assertEqual(result.code, 0, result)

    def states(self, checks):
        return {name: check["state"] for name, check in checks.items()}

    def test_no_remote_no_word(self):
        result = self.run_cli("doctor", "--cache", "own")
        self.assertNotIn("remote", result.out)
        self.assert_refused(self.run_cli("doctor", "--cache", "own", "--write"), "--write is for remotes")

    def test_a_good_one(self):
        self.push(ATTNSMITH_CACHE_SIGN_KEY="key")
        requests = len(self.server.requests)
        checks, _ = self.doctor()
        self.assertEqual(self.states(checks), {"remote": "ok", "remote keys": "ok", "remote clock": "ok"})
        self.assertEqual({method for method, _ in self.server.requests[requests:]}, {"GET"})
        remote, keys = checks["remote"], checks["remote keys"]
        self.assertEqual((remote["reachable"], remote["used"], remote["tls"], remote["http_status"]),
                         (True, True, False, 404))
        self.assertRegex(remote["text"], r"answered in \d+ ms, without TLS")
        self.assertEqual((keys["trusted"], [keys["signed_by"]]), (True, keys["trusted_keys"]))
        self.assertEqual(keys["looked_for"], 1)
        self.assertLessEqual(abs(checks["remote clock"]["clock_ahead_s"]), 5)
        text = self.run_cli("doctor", "--cache", "own", "--cache", self.server.address, env=self.trusting).out
        self.assertIn(f"signed by key {keys['signed_by']}; trusted is key {keys['signed_by']}", text)

    def test_nothing_to_look_at(self):
        checks, _ = self.doctor()
        self.assertEqual(self.states(checks), {"remote": "ok", "remote keys": "ok", "remote clock": "ok"})
        self.assertIn("no manifest to look at, since the cache has no kernel", checks["remote keys"]["text"])
        self.assert_ok(self.run_cli("prewarm", *MERGES, "--cache", "own", "--json"))
        checks, _ = self.doctor()
        self.assertRegex(checks["remote keys"]["text"], r"it has none of \d+ kernels? that the cache has")

    def test_signed_by_another_or_by_nobody(self):
        self.push(ATTNSMITH_CACHE_SIGN_KEY="key")
        other = self.key_id("other")
        checks, _ = self.doctor(env={"ATTNSMITH_CACHE_TRUST_KEYS": "other.pub"})
        keys = checks["remote keys"]
        self.assertEqual((keys["state"], keys["trusted"], keys["trusted_keys"]), ("warn", False, [other]))
        self.assertIn(keys["signed_by"], keys["text"])
        self.assertIn("push again", keys["remedy"])

        shutil.rmtree(self.server.folder)
        self.push()
        checks, _ = self.doctor()
        keys = checks["remote keys"]
        self.assertEqual((keys["state"], keys["signed_by"]), ("warn", None))
        self.assertIn("not signed", keys["text"])
        anybody, _ = self.doctor("--cache-trust", "all", env={})
        self.assertEqual((anybody["remote"]["state"], anybody["remote keys"]["state"]), ("ok", "ok"))

    def test_one_that_nobody_trusts(self):
        checks, _ = self.doctor(env={})
        remote = checks["remote"]
        self.assertEqual((remote["state"], remote["used"], remote["reachable"]), ("warn", False, True))
        self.assertIn("ATTNSMITH_CACHE_TRUST_KEYS", remote["remedy"])

    def test_a_server_that_is_no_remote(self):
        """It answers everything with a page, as a proxy's login does."""
        def page(handler):
            handler.answer(200, b"<html>Welcome</html>")
            return True
        self.server.manner = page
        checks, code = self.doctor("--write")
        self.assertEqual((checks["remote"]["state"], checks["remote write"]["state"], code), ("warn", "fail", 1))
        for name in ("remote", "remote write"):
            self.assertIn("something else than what was asked for", checks[name]["text"])

    def test_a_key_that_signs(self):
        def sign_key(**env):
            result = self.run_cli("doctor", "--json", "--cache", "own", "--cache", self.server.address,
                                  env={**self.trusting, **env})
            return next(check for check in result.json()["checks"] if check["name"] == "sign key")
        good = sign_key(ATTNSMITH_CACHE_SIGN_KEY="key")
        self.assertEqual(good["state"], "ok")
        self.assertIn(good["signs_as"], good["text"])
        other = self.key_id("other")
        self.assertIn(f"key {other}, which is not trusted here", sign_key(ATTNSMITH_CACHE_SIGN_KEY="other")["text"])
        missing = sign_key(ATTNSMITH_CACHE_SIGN_KEY="nothere")
        self.assertEqual(missing["state"], "warn")
        self.assertIn("nothere", missing["text"])

    def test_what_stops_pushing_fails_where_writing_is_asked_for(self):
        other = self.key_id("other")
        for given, words in (({}, "nothing is pushed"), ({"ATTNSMITH_CACHE_SIGN_KEY": "other"}, f"key {other}, which is not trusted"),
                             ({"ATTNSMITH_CACHE_SIGN_KEY": "nothere"}, "nothere")):
            with self.subTest(**given):
                result = self.run_cli("doctor", "--json", "--write", "--cache", "own", "--cache", self.server.address,
                                      env={**self.trusting, **given})
                check = next(check for check in result.json()["checks"] if check["name"] == "sign key")
                self.assertEqual((check["state"], result.code), ("fail", 1))
                self.assertIn(words, check["text"])
        result = self.run_cli("doctor", "--json", "--write", "--cache", "own", "--cache", self.server.address,
                              env={**self.trusting, "ATTNSMITH_CACHE_SIGN_KEY": "key"})
        self.assertEqual({check["state"] for check in result.json()["checks"] if check["name"] == "sign key"}, {"ok"})

    def test_variables_that_nobody_reads(self):
        result = self.run_cli("doctor", "--json", "--cache", "own", env={"ATTNSMITH_CACHE_TRUST_KEY": "key.pub"})
        check = next(check for check in result.json()["checks"] if check.get("variable") == "ATTNSMITH_CACHE_TRUST_KEY")
        self.assertEqual(check["state"], "warn")
        self.assertIn("perhaps ATTNSMITH_CACHE_TRUST_KEYS is meant", check["remedy"])

    def test_clocks(self):
        for ahead, state, words in ((0, "ok", "to the minute"), (-30, "ok", "to the minute"),
                                    (3600, "warn", "s ahead of"), (-7200, "warn", "s behind")):
            with self.subTest(ahead):
                self.server.clock_ahead = ahead
                check = self.doctor()[0]["remote clock"]
                self.assertEqual(check["state"], state)
                self.assertIn(words, check["text"])
                self.assertLess(abs(check["clock_ahead_s"] - ahead), 5)

    def test_writing(self):
        checks, _ = self.doctor("--write")
        self.assertEqual((checks["remote write"]["state"], checks["remote write"]["writable"]), ("ok", True))
        (put,) = self.server.files("cas")
        self.assertEqual(len(put.read_bytes().splitlines()), 1)
        # As often as one likes: it is the same file.
        self.doctor("--write")
        self.assertEqual(self.server.files("cas"), [put])
        self.assertEqual(self.doctor()[0]["remote"]["http_status"], 200)

        self.server.manner = remote_server.lets_nobody_write
        checks, code = self.doctor("--write")
        self.assertEqual((checks["remote write"]["state"], code), ("fail", 1))
        self.assertIn("the server answered 403", checks["remote write"]["text"])
        self.assertEqual(checks["remote"]["state"], "ok")

    def test_servers_that_do_not_answer(self):
        self.push(ATTNSMITH_CACHE_SIGN_KEY="key")
        for manner in (remote_server.hangs, remote_server.drips):
            with self.subTest(manner.__name__):
                self.server.manner = manner
                began = time.monotonic()
                checks, _ = self.doctor()
                took = time.monotonic() - began
                self.assertLess(took, 15)  # five, and what looking at the rest takes
                self.assertEqual((checks["remote"]["state"], checks["remote"]["reachable"]), ("warn", False))
                self.assertIn("no answer within 5 s", checks["remote"]["text"])
                self.assertEqual(list(checks), ["remote"])
        self.server.manner = remote_server.closes
        self.assertFalse(self.doctor()[0]["remote"]["reachable"])
        gone, _ = self.doctor(remote="http://127.0.0.1:1/cache")
        self.assertIn("whether the server runs", gone["remote"]["remedy"])
        unknown, _ = self.doctor(remote="http://no-such-name.invalid/cache")
        self.assertEqual(unknown["remote"]["state"], "warn")
        # One that cannot be reached cannot be written.
        checks, code = self.doctor("--write", remote="http://127.0.0.1:1/cache")
        self.assertEqual((checks["remote write"]["state"], code), ("fail", 1))

    def test_a_server_that_hangs_later(self):
        """All that is asked of it takes five seconds together."""
        self.push(ATTNSMITH_CACHE_SIGN_KEY="key")
        self.server.manner = lambda handler: "/ac/" in handler.path and remote_server.hangs(handler)
        began = time.monotonic()
        checks, _ = self.doctor()
        self.assertLess(time.monotonic() - began, 15)
        self.assertEqual((checks["remote"]["state"], checks["remote keys"]["state"]), ("ok", "warn"))

    def test_servers_that_answer_with_errors(self):
        for status, words in ((401, "ATTNSMITH_CACHE_TOKEN"), (403, "S3 answers 403"), (500, "the server's log")):
            self.server.manner = remote_server.answers(status)
            remote = self.doctor()[0]["remote"]
            self.assertEqual((remote["state"], remote["http_status"]), ("warn", status))
            self.assertIn(words, remote["remedy"])

    @unittest.skipUnless(shutil.which("openssl"), "openssl is not installed")
    def test_certificates(self):
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-keyout", "tls.pem",
                        "-out", "authority.pem", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"],
                       cwd=self.folder, check=True, capture_output=True, timeout=60)
        whole = self.folder / "tls.pem"
        whole.write_bytes(whole.read_bytes() + (self.folder / "authority.pem").read_bytes())
        with RemoteServer(self.folder / "tls", tls=whole) as server:
            stranger = self.doctor(remote=server.address)[0]["remote"]
            self.assertEqual((stranger["state"], stranger["reachable"]), ("warn", False))
            self.assertIn("ATTNSMITH_CACHE_CA", stranger["remedy"])
            known, _ = self.doctor(remote=server.address,
                                   env={**self.trusting, "ATTNSMITH_CACHE_CA": str(self.folder / "authority.pem")})
            self.assertEqual((known["remote"]["state"], known["remote"]["tls"]), ("ok", True))
            self.assertIn("by TLS with a good certificate", known["remote"]["text"])

    def test_tls_that_fails(self):
        """A server that speaks no TLS, where TLS is asked for."""
        remote = self.doctor(remote=self.server.address.replace("http:", "https:"))[0]["remote"]
        self.assertEqual((remote["state"], remote["tls"], remote["reachable"]), ("warn", True, False))
        self.assertTrue(remote["remedy"])

    def test_passwords_are_seen_by_nobody(self):
        place = self.server.address.replace("http://", "http://hush-user:hush-password@") + "?hush-query=1"
        env = {**self.trusting, "ATTNSMITH_CACHE_TOKEN": "hush-token", "ATTNSMITH_LOG": "debug",
               "ATTNSMITH_CACHE_DIR": f"own:{place}"}
        for manner in (None, remote_server.answers(403), remote_server.closes):
            self.server.manner = manner
            for flags in ([], ["--json"], ["--write"]):
                result = self.run_cli("doctor", *flags, env=env)
                self.assertIn(self.server.address, result.out)
                self.assertNotIn("hush", result.out + result.err)


if __name__ == "__main__":
    main()
