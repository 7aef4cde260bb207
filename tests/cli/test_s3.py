"""Remotes of S3: prewarm --push and what is fetched, with a server that checks every signature."""

import datetime
import shutil

import remote_server
import s3_server
from remote_server import RemoteServer
from s3_server import S3Server
from support import CliTest, main

PREWARM = ["prewarm", "--op", "merge", "--head-dim-vo", "64", "--q-heads", "8", "--sm", "80,86,89,90", "--json",
           "--cache-trust", "all"]
PLACE = "s3://kernels/team"
# More of them than the failures in a row after which a remote is left alone.
KERNELS = 4


class S3(CliTest):
    def prewarm(self, disk, place, env, push=False):
        return self.run_cli(*PREWARM, "--cache", disk, "--cache", place, *(["--push"] if push else []), env=env)

    def summary(self, result):
        self.assertEqual(result.code, 0, result)
        self.assertEqual(result.err, "")
        return result.json()["summary"]

    def fill(self, place, env):
        summary = self.summary(self.prewarm("own", place, env, push=True))
        self.assertEqual((summary["total"], summary["pushed"]), (KERNELS, KERNELS))

    def counts(self, disk):
        counters = self.run_cli("cache", "stat", "--json", "--cache", disk).json()["counters"]
        return counters["remote_hits"], counters["remote_misses"], counters["remote_failures"]

    def test_pushed_and_fetched_with_every_request_signed(self):
        for token in (None, "to/k+en=="):
            for place in (PLACE, "s3://kernels", "s3://kernels/a b+c%20/\u00fc=@/"):
                with self.subTest(token=token, place=place), S3Server(self.folder / "www", token) as server:
                    self.fill(place, server.environment())
                    prefix = place.removeprefix("s3://kernels").strip("/")
                    folders = {key.rpartition("/")[0] for key in server.keys()}
                    self.assertEqual(folders, {f"{prefix}/{kind}".lstrip("/") for kind in ("ac", "cas")})
                    self.assertEqual(len(server.keys()), 3 * KERNELS)
                    fetched = self.summary(self.prewarm("empty", place, server.environment()))
                    self.assertEqual((fetched["remote"], fetched["compiled"]), (KERNELS, 0))
                    again = self.summary(self.prewarm("own", place, server.environment(), push=True))
                    self.assertEqual(again["pushed"], 0)
                    # Only for what was not there, before it was put.
                    self.assertEqual(set(server.refusals), {"NoSuchKey"})
                    self.assertTrue(all(headers["Authorization"].startswith("AWS4-HMAC-SHA256 ")
                                        for headers in server.headers))
                for folder in ("own", "empty", "www"):
                    shutil.rmtree(self.folder / folder)

    def test_other_servers_access_is_not_for_s3(self):
        """And S3's is not for others."""
        others = {"ATTNSMITH_CACHE_TOKEN": "bearer", "ATTNSMITH_CACHE_USER": "name:word",
                  "ATTNSMITH_CACHE_HEADERS": "X-Amz-Request-Payer: requester\nX-Team: a\nAuthorization: Basic eDp5"}
        with S3Server(self.folder / "www") as server, RemoteServer(self.folder / "other") as other:
            env = {**server.environment(), **others}
            result = self.run_cli(*PREWARM, "--cache", "own", "--cache", PLACE, "--cache", other.address, "--push",
                                  env=env)
            self.assertEqual(self.summary(result)["pushed"], KERNELS)
            self.assertEqual(set(server.refusals), {"NoSuchKey"})
            for headers in server.headers:
                self.assertEqual(headers["X-Team"], "a")
                self.assertIn("x-amz-request-payer,", headers["Authorization"])
            for headers in other.headers:
                self.assertEqual(headers["Authorization"], "Bearer bearer")
                self.assertNotIn("x-amz-date", headers)
                self.assertNotIn(s3_server.KEY_ID, str(headers))

    def test_what_a_server_refuses_is_said(self):
        """One warning, kernels that are compiled, and a push that fails with the same words."""
        cases = [
            ({"AWS_SECRET_ACCESS_KEY": "hush"}, "403 (SignatureDoesNotMatch)", "the secret"),
            ({"AWS_ACCESS_KEY_ID": "hush"}, "403 (InvalidAccessKeyId)", "access key"),
            ({"AWS_SESSION_TOKEN": "hush"}, "400 (InvalidToken)", ""),
            ({"AWS_REGION": "eu-test-2"}, "400 (AuthorizationHeaderMalformed)", "region"),
        ]
        for changes, answer, meaning in cases:
            with self.subTest(answer), S3Server(self.folder / "www") as server:
                self.refused_with(server, PLACE, server.environment(**changes), answer, meaning)
        with self.subTest("bucket"), S3Server(self.folder / "www") as server:
            self.refused_with(server, "s3://none/team", server.environment(), "404 (NoSuchBucket)", "no such bucket")
        for minutes in (-20, 20):
            with self.subTest(minutes=minutes), S3Server(self.folder / "www") as server:
                server.clock_is_off_by = datetime.timedelta(minutes=minutes)
                self.refused_with(server, PLACE, server.environment(), "403 (RequestTimeTooSkewed)", "clock")
        with self.subTest("minutes that do not matter"), S3Server(self.folder / "www") as server:
            server.clock_is_off_by = datetime.timedelta(minutes=10)
            self.fill(PLACE, server.environment())

    def refused_with(self, server, place, env, answer, meaning):
        pulled = self.prewarm("empty", place, env)
        self.assertEqual((pulled.code, pulled.json()["summary"]["compiled"]), (0, KERNELS))
        self.assertEqual(pulled.err.count("attnsmith: cache: "), 1, pulled.err)
        pushed = self.prewarm("own", place, env, push=True)
        self.assertEqual((pushed.code, pushed.json()["summary"]["pushed"]), (1, 0))
        for told in (pulled.err, pushed.err):
            self.assertIn(f"{place}: the server answered {answer}", told)
            self.assertIn(meaning, told)
            self.assertNotIn("hush", (pulled.out + pushed.out + told).lower())
        self.assertEqual(server.keys(), [])
        for folder in ("own", "empty"):
            shutil.rmtree(self.folder / folder)

    def test_without_credentials_nothing_is_signed(self):
        unsigned = {"AWS_ACCESS_KEY_ID": None, "AWS_SECRET_ACCESS_KEY": None}
        with S3Server(self.folder / "www", open_to_all=True) as server:
            self.fill(PLACE, server.environment())
            asked = len(server.headers)
            summary = self.summary(self.prewarm("empty", PLACE, server.environment(**unsigned)))
            self.assertEqual(summary["remote"], KERNELS)
            for headers in server.headers[asked:]:
                self.assertNotIn("Authorization", headers)
            server.open_to_all = False
            refused = self.prewarm("own", PLACE, server.environment(**unsigned), push=True)
            self.assertEqual(refused.code, 1)
            self.assertIn("the server answered 403 (AccessDenied)", refused.err)

    def test_a_key_that_is_not_there_is_a_miss_where_nobody_may_list(self):
        with S3Server(self.folder / "www", may_list=False) as server:
            missed = self.prewarm("empty", PLACE, {**server.environment(), "ATTNSMITH_LOG": "info"})
            self.assertEqual(missed.json()["summary"]["compiled"], KERNELS)
            self.assertEqual(missed.err.count("AccessDenied"), 1, missed.err)
            self.assertIn("s3:ListBucket", missed.err)
            # All were asked for: nothing was taken for a server that fails.
            self.assertEqual(self.counts("empty"), (0, KERNELS, 0))
            self.assertEqual(len(server.requests), KERNELS)
            self.fill(PLACE, server.environment())
            summary = self.summary(self.prewarm("another", PLACE, server.environment()))
            self.assertEqual(summary["remote"], KERNELS)

            server.refused_writes = True
            for file in (self.folder / "www").rglob("ac/*"):
                file.unlink()
            refused = self.prewarm("own", PLACE, server.environment(), push=True)
            self.assertEqual(refused.code, 1)
            self.assertIn("the server answered 403 (AccessDenied)", refused.err)

    def test_a_push_waits_for_a_busy_server(self):
        with S3Server(self.folder / "www") as server:
            seen = set()

            def once_each(handler):
                first = (handler.command, handler.path) not in seen
                seen.add((handler.command, handler.path))
                return first

            self.summary(self.run_cli(*PREWARM, "--cache", "own"))
            server.busy = once_each
            self.fill(PLACE, server.environment())
            self.assertGreater(server.refusals.count("SlowDown"), 3 * KERNELS)

            # Who can compile does not wait.
            server.busy = lambda handler: True
            result = self.prewarm("empty", PLACE, server.environment())
            self.assertEqual(result.json()["summary"]["compiled"], KERNELS)
            self.assertIn("the server answered 503 (SlowDown)", result.err)

    def test_a_redirect_takes_no_signature_to_another_host(self):
        with S3Server(self.folder / "www") as server, RemoteServer(self.folder / "else") as elsewhere:
            server.token = "hush"
            server.manner = remote_server.redirects_to(elsewhere.address)
            result = self.prewarm("empty", PLACE, server.environment())
            self.assertEqual(result.json()["summary"]["compiled"], KERNELS)
            self.assertEqual(len(elsewhere.headers), len(server.headers))
            self.assertEqual(len(server.headers), KERNELS)
            for headers in elsewhere.headers:
                self.assertFalse([name for name in headers if name.lower().startswith(("x-amz", "authorization"))])

    def test_a_redirect_on_the_same_host_is_signed_anew(self):
        with S3Server(self.folder / "www") as server:
            self.fill(PLACE, server.environment())

            def moved(handler):
                if not handler.path.startswith("/kernels/old/"):
                    return server.serve_s3(handler)
                handler.send_response(307)
                handler.send_header("Location", handler.path.replace("/old/", "/team/") + "?versionId=a%20b&x")
                handler.send_header("Content-Length", "0")
                handler.end_headers()
                return True

            server.manner = moved
            summary = self.summary(self.prewarm("empty", "s3://kernels/old", server.environment()))
            self.assertEqual(summary["remote"], KERNELS)
            self.assertEqual(set(server.refusals), {"NoSuchKey"})  # before it was filled

    def test_half_of_the_variables_is_told_by_name(self):
        with S3Server(self.folder / "www") as server:
            cases = [
                ({"AWS_SECRET_ACCESS_KEY": None}, "AWS_SECRET_ACCESS_KEY is not set"),
                ({"AWS_ACCESS_KEY_ID": None}, "AWS_ACCESS_KEY_ID is not set"),
                ({"AWS_REGION": None, "AWS_ENDPOINT_URL": None}, "AWS_REGION is not set"),
                ({"AWS_ENDPOINT_URL": "http://hush@x"}, "AWS_ENDPOINT_URL"),
                ({"AWS_REGION": "x/hush"}, "AWS_REGION"),
            ]
            for changes, words in cases:
                with self.subTest(words):
                    env = server.environment(**changes)
                    result = self.prewarm("own", PLACE, env)
                    self.assertEqual(result.code, 0, result)
                    self.assertEqual(result.err.count("attnsmith: cache: "), 1, result.err)
                    self.assertIn(f"cache: {PLACE}: not used: {words}", result.err)
                    pushed = self.prewarm("own", PLACE, env, push=True)
                    self.assertEqual(pushed.code, 1)
                    self.assertIn(words, pushed.err)
                    doctor = self.run_cli("doctor", "--cache", "own", "--cache", PLACE, "--cache-trust", "all", "--json",
                                          env=env)
                    self.assertIn(words, doctor.out)
                    self.assertNotIn("hush", (result.err + pushed.err + doctor.out + doctor.err).lower())
            self.assertEqual(server.requests, [])
            # Whoever uses no S3 may have half of them for somebody else.
            for env in (server.environment(AWS_SECRET_ACCESS_KEY=None), {"AWS_SESSION_TOKEN": "x"}):
                self.assertEqual(self.assert_ok(self.run_cli(*PREWARM, "--cache", "own", env=env)).err, "")

    def test_secrets_are_seen_by_nobody(self):
        with S3Server(self.folder / "www", token="hush-token") as server:
            place = PLACE.replace("s3://", "s3://hush-id:hush-word@")
            recorded = {"ATTNSMITH_RECORD": "record.jsonl"}
            for where in (PLACE, place):
                for secret in (s3_server.SECRET, "hush-wrong"):
                    env = {**server.environment(AWS_SECRET_ACCESS_KEY=secret), **recorded, "ATTNSMITH_LOG": "debug",
                           "ATTNSMITH_CACHE_DIR": f"own:{where}"}
                    for command in (PREWARM, [*PREWARM, "--push"], ["cache", "stat", "--json"], ["cache", "dir"],
                                    ["cache", "dir", "--json"], ["cache", "ls", "--json"], ["doctor", "--json"],
                                    ["doctor"], ["cache", "explain", "--op", "merge", "--head-dim-vo", "64",
                                                 "--q-heads", "8", "--sm", "90"]):
                        result = self.run_cli(*command, env=env)
                        self.assertNotIn("hush", (result.out + result.err).lower(), command)
                    for file in self.folder.rglob("*"):
                        if file.is_file() and "www" not in file.parts:
                            self.assertNotIn(b"hush", file.read_bytes().lower(), file)
            told = self.assert_ok(self.run_cli("cache", "dir", "--json", "--cache", "own", "--cache", PLACE)).json()
            self.assertEqual(told["remotes"], [PLACE])

    def test_an_address_that_leads_nowhere(self):
        env = {"AWS_REGION": s3_server.REGION}
        for place, words in (("s3://", "a bucket's name"), (f"{PLACE}?x=1", "no query"), (f"{PLACE}/../x", ".."),
                             ("s3://user@kernels/x", "no user")):
            with self.subTest(place):
                result = self.prewarm("own", place, env, push=True)
                self.assertEqual(result.code, 1)
                self.assertIn("not used: ", result.err)
                self.assertIn(words, result.err)


if __name__ == "__main__":
    main()
