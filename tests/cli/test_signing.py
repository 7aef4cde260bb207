"""attnsmith cache keygen, export --sign-key, import --trust-key, and layers that have to be signed."""

import os
import re
import shutil
import subprocess

from remote_server import RemoteServer
from support import SMALL, CliTest, main

MERGES = ["prewarm", "--op", "merge", "--head-dim-vo", "64", "--q-heads", "8", "--sm", "90"]
KEY_ID = re.compile(r"[0-9a-f]{16}")


class Signing(CliTest):
    def setUp(self):
        super().setUp()
        self.assert_ok(self.run_cli(*MERGES, "--cache", "kernels", "--json"))

    def keygen(self, name):
        return self.assert_ok(self.run_cli("cache", "keygen", "-o", name, "--json")).json()["key_id"]

    def export(self, bundle, *flags, env=None):
        return self.run_cli("cache", "export", "--cache", "kernels", "-o", bundle, "--json", *flags, env=env)

    def import_(self, bundle, *trusted, env=None):
        """Into a directory of its own each time."""
        shutil.rmtree(self.folder / "into", ignore_errors=True)
        flags = [word for key in trusted for word in ("--trust-key", key)]
        return self.run_cli("cache", "import", bundle, "--cache", "into", "--json", *flags, env=env)

    def assert_not_imported(self, result, *words):
        self.assert_failed(result, "the import failed", *words)
        self.assertFalse((self.folder / "into").exists())

    def test_keygen(self):
        result = self.assert_ok(self.run_cli("cache", "keygen", "-o", "release.key"))
        found = re.fullmatch(r"key ([0-9a-f]{16})\nsecret  release.key\npublic  release.key.pub\n", result.out)
        self.assertTrue(found, result.out)
        modes = [(self.folder / name).stat().st_mode & 0o777 for name in ("release.key", "release.key.pub")]
        self.assertEqual(modes, [0o600, 0o644])
        self.assertNotIn("BEGIN", result.out)
        made = self.assert_ok(self.run_cli("cache", "keygen", "--output", "other.key", "--json")).json()
        self.assertEqual(made, {"schema": "attnsmith.cache-keygen/1", "key_id": made["key_id"],
                                "secret_key_file": "other.key", "public_key_file": "other.key.pub"})
        self.assertRegex(made["key_id"], KEY_ID)
        self.assertNotEqual(made["key_id"], found[1])

    def test_keygen_refuses(self):
        keygen = ["cache", "keygen"]
        self.assert_refused(self.run_cli(*keygen), "--output (-o) is missing")
        self.assert_refused(self.run_cli(*keygen, "-o"), "value is missing")
        self.assert_refused(self.run_cli(*keygen, "-o", ""), "needs the name of a file")
        self.assert_refused(self.run_cli(*keygen, "-o", "-", "--json"), "not a pipe")
        self.assert_refused(self.run_cli(*keygen, "a.key"), "takes flags only")
        self.assert_failed(self.run_cli(*keygen, "-o", "no/such/a.key"), "no/such", "No such file")
        self.assert_failed(self.run_cli(*keygen, "-o", "a.key.pub"), "without .pub")
        self.assert_failed(self.run_cli(*keygen, "-o", "kernels/"), "not the name of a file")
        self.keygen("a.key")
        before = (self.folder / "a.key").read_bytes()
        self.assert_failed(self.run_cli(*keygen, "-o", "a.key"), "no key is made", "already", "another file", "a.key")
        (self.folder / "a.key").rename(self.folder / "b.key")
        self.assert_failed(self.run_cli(*keygen, "-o", "a.key"), "already", "a.key.pub")
        self.assertEqual((self.folder / "b.key").read_bytes(), before)
        self.assertFalse((self.folder / "a.key").exists())
        self.assertEqual(list(self.folder.glob("*.partial")), [])

    def test_a_signed_bundle(self):
        key = self.keygen("release.key")
        report = self.assert_ok(self.export("all.bundle", "--sign-key", "release.key")).json()
        self.assertEqual((report["signature_file"], report["signed_by"]), ("all.bundle.sig", key))
        imported = self.assert_ok(self.import_("all.bundle", "release.key.pub")).json()
        self.assertEqual((imported["imported"], imported["signed_by"]), (report["entries"], key))
        # In words, and without a key.
        shown = self.assert_ok(self.run_cli("cache", "export", "--cache", "kernels", "-o", "x", "--sign-key", "release.key"))
        self.assertIn(f", signed by key {key}\n", shown.out)
        shown = self.assert_ok(self.run_cli("cache", "import", "x", "--cache", "own", "--trust-key", "release.key.pub"))
        self.assertIn(f", signed by key {key}\n", shown.out)
        self.assertNotIn("signed_by", self.assert_ok(self.import_("all.bundle")).json())
        self.assertNotIn("signed_by", self.assert_ok(self.export("plain.bundle")).json())
        self.assertFalse((self.folder / "plain.bundle.sig").exists())

    def test_variables(self):
        key = self.keygen("release.key")
        self.keygen("other.key")
        report = self.assert_ok(self.export("all.bundle", env={"ATTNSMITH_CACHE_SIGN_KEY": "release.key"})).json()
        self.assertEqual(report["signed_by"], key)

        def trusting(keys, *flags):
            return self.import_("all.bundle", *flags, env={"ATTNSMITH_CACHE_TRUST_KEYS": keys})
        self.assertEqual(self.assert_ok(trusting("other.key.pub:release.key.pub")).json()["signed_by"], key)
        self.assert_not_imported(trusting("other.key.pub"), key)
        self.assertEqual(self.assert_ok(trusting("other.key.pub", "release.key.pub")).json()["signed_by"], key)
        self.assertEqual(self.assert_ok(trusting("")).json()["imported"], report["entries"])
        for wrong in (":", "release.key.pub:none.pub", "release.key"):
            self.assert_refused(trusting(wrong), "ATTNSMITH_CACHE_TRUST_KEYS: ")
        for wrong in ("none.key", "release.key.pub"):
            self.assert_refused(self.export("no.bundle", env={"ATTNSMITH_CACHE_SIGN_KEY": wrong}),
                                "ATTNSMITH_CACHE_SIGN_KEY: ", wrong)
        self.assertFalse((self.folder / "no.bundle").exists())
        doctor = self.run_cli("doctor", env={"ATTNSMITH_CACHE_TRUST_KEYS": "none.pub"})
        self.assertIn("unset ATTNSMITH_CACHE_TRUST_KEYS", doctor.out)

    def test_keys_that_are_none(self):
        self.keygen("release.key")
        self.export("all.bundle", "--sign-key", "release.key")
        for name, said in (("release.key.pub", "this is the public key; the secret one is the file without .pub"),
                           ("none.key", "No such file"), ("", "No such file"), ("kernels", "not a regular file")):
            result = self.export("no.bundle", "--sign-key", name)
            self.assert_refused(result, "--sign-key: ", said)
        for name, said in (("release.key", "this is the secret key; the public one is the file with .pub"),
                           ("none.pub", "No such file"), ("", "No such file"), ("kernels", "not a regular file")):
            self.assert_refused(self.import_("all.bundle", "release.key.pub", name), "--trust-key: ", said)
        os.chmod(self.folder / "release.key", 0o640)
        self.assert_refused(self.export("no.bundle", "--sign-key", "release.key"), "mode 0640", "chmod 600 release.key")
        self.assertFalse((self.folder / "no.bundle").exists())
        self.assertFalse((self.folder / "into").exists())

    def test_bundles_that_are_not_trusted(self):
        mine, theirs = self.keygen("mine.key"), self.keygen("theirs.key")
        self.assert_ok(self.export("all.bundle"))
        self.assert_not_imported(self.import_("all.bundle", "mine.key.pub"), "it is not signed", "all.bundle.sig",
                                 "--sign-key")
        self.assert_ok(self.export("all.bundle", "--sign-key", "theirs.key"))
        self.assert_not_imported(self.import_("all.bundle", "mine.key.pub"), f"key {theirs} signed it", mine)
        # Rotated: either will do.
        for signer, key in (("mine", mine), ("theirs", theirs)):
            self.assert_ok(self.export("all.bundle", "--sign-key", f"{signer}.key"))
            imported = self.assert_ok(self.import_("all.bundle", "mine.key.pub", "theirs.key.pub")).json()
            self.assertEqual(imported["signed_by"], key)
        # Their signature with my name on it.
        text = (self.folder / "all.bundle.sig").read_text()
        self.write("all.bundle.sig", text.replace(theirs, mine))
        self.assert_not_imported(self.import_("all.bundle", "mine.key.pub"), "the signature in all.bundle.sig is wrong")
        self.write("all.bundle.sig", "text")
        self.assert_not_imported(self.import_("all.bundle", "mine.key.pub"), "not a bundle's signature")
        # One of another bundle.
        self.assert_ok(self.run_cli("prewarm", "--op", "merge", "--head-dim-vo", "64", "--q-heads", "8", "--sm", "80",
                                    "--cache", "kernels", "--json"))
        self.assert_ok(self.export("both.bundle", "--sign-key", "mine.key"))
        shutil.copy(self.folder / "both.bundle.sig", self.folder / "all.bundle.sig")
        self.assert_not_imported(self.import_("all.bundle", "mine.key.pub"), "signed another manifest")
        # A signed bundle whose kernels were changed is not sound.
        bundle = bytearray((self.folder / "both.bundle").read_bytes())
        bundle[-3000] ^= 1
        self.write("both.bundle", bytes(bundle))
        self.assert_not_imported(self.import_("both.bundle", "mine.key.pub"), "not a sound bundle")

    def test_openssl_verifies_a_signature_as_the_format_says(self):
        if shutil.which("openssl") is None:
            self.skipTest("there is no openssl command")
        self.keygen("release.key")
        self.assert_ok(self.export("all.bundle", "--sign-key", "release.key"))
        script = r"""head -n 3 all.bundle.sig > signed &&
            sed -n 's/^ed25519 //p' all.bundle.sig | tr -d '\n' | python3 -c '
import sys; sys.stdout.buffer.write(bytes.fromhex(sys.stdin.read()))' > signature &&
            openssl pkeyutl -verify -pubin -inkey release.key.pub -rawin -in signed -sigfile signature &&
            test "$(tar xOf all.bundle manifest.json | sha256sum | cut -d' ' -f1)" = \
                 "$(sed -n 's/^manifest-sha256 //p' all.bundle.sig)" &&
            test "$(openssl pkey -pubin -in release.key.pub -outform DER | tail -c 32 | sha256sum | cut -c1-16)" = \
                 "$(sed -n 's/^key //p' all.bundle.sig)"
        """
        done = subprocess.run(["sh", "-c", script], cwd=self.folder, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_keys_of_openssl(self):
        made = subprocess.run("openssl genpkey -algorithm ed25519 -out o.key && chmod 600 o.key && "
                              "openssl pkey -in o.key -pubout -out o.pub", shell=True, cwd=self.folder,
                              capture_output=True, check=False)
        if made.returncode != 0:
            self.skipTest("there is no openssl command that knows Ed25519")
        self.assert_ok(self.export("all.bundle", "--sign-key", "o.key"))
        self.assertRegex(self.assert_ok(self.import_("all.bundle", "o.pub")).json()["signed_by"], KEY_ID)

    def test_layers(self):
        self.prewarm_small("kernels")
        self.keygen("mine.key")
        self.keygen("theirs.key")
        self.assert_ok(self.export("all.bundle", "--sign-key", "mine.key"))

        def states(*flags, env=None):
            plan = self.run_cli("plan", *SMALL, "--sm", "90", "--cache", "own", "--cache", "all.bundle", "--json", *flags,
                                env=env)
            self.assertEqual(plan.code, 0, plan.err)
            return {kernel["cache"]["state"] for kernel in plan.json()["kernels"]}, plan.err
        self.assertEqual(states("--trust-key", "mine.key.pub"), ({"hit"}, ""))
        self.assertEqual(states(), ({"hit"}, ""))
        for flags, env in ((("--trust-key", "theirs.key.pub"), {}), ((), {"ATTNSMITH_CACHE_TRUST_KEYS": "theirs.key.pub"})):
            found, said = states(*flags, env=env)
            self.assertNotIn("hit", found)
            self.assertIn("is not trusted", said)
            self.assertEqual(said.count("\n"), 1, said)
        listed = self.run_cli("cache", "ls", "--cache", "own", "--cache", "all.bundle", "--trust-key", "theirs.key.pub")
        self.assert_failed(listed, "the bundle is not trusted", "all.bundle")
        (self.folder / "all.bundle.sig").unlink()
        stat = self.run_cli("cache", "stat", "--cache", "own", "--cache", "all.bundle", "--trust-key", "mine.key.pub",
                            "--json").json()
        self.assertIn("it is not signed", stat["layers"][0]["not_usable_because"])

    def test_what_is_loaded(self):
        """The table of SECURITY.md: by place, by who signed, by whom the reader trusts."""
        for key in ("old", "new", "other"):
            self.keygen(key)
        trusted = {"nobody": "", "new": "new.pub", "old and new": "old.pub:new.pub"}
        loaded = {  # under each of `trusted`, in order
            "unsigned": "yes no no", "by other": "yes no no", "by old": "yes no yes", "by new": "yes yes yes",
        }
        for signer, expected in loaded.items():
            sign = [] if signer == "unsigned" else ["--sign-key", signer.removeprefix("by ")]
            bundle = self.folder / "some.bundle"
            for old in (bundle, self.folder / "some.bundle.sig"):
                old.unlink(missing_ok=True)
            self.assert_ok(self.export("some.bundle", *sign))
            with RemoteServer(self.folder / f"www {signer}".replace(" ", "-")) as server:
                self.assert_ok(self.run_cli(*MERGES, "--json", "--cache", "kernels", "--cache", server.address, "--push",
                                            "--cache-trust", "all", *sign))
                for (whom, keys), answer in zip(trusted.items(), expected.split()):
                    env = {"ATTNSMITH_CACHE_TRUST_KEYS": keys} if keys else {}
                    with self.subTest(signer=signer, trusted=whom):
                        self.assertEqual(self.import_("some.bundle", env=env).code == 0, answer == "yes")
                        self.assertEqual(self.hits(bundle, env=env), answer == "yes")
                        # Nobody's signature is asked for where anybody's kernels will do, which is not said of a remote
                        # by trusting nobody.
                        self.assertEqual(self.hits(server.address, env=env), answer == "yes" and whom != "nobody")
                        if whom == "nobody":
                            self.assertTrue(self.hits(server.address, "--cache-trust", "all", env=env))
        # Entries of directories are not signed. Once keys are trusted it counts who may write to them.
        for mode, expected in ((0o644, "yes yes yes"), (0o666, "yes no no")):
            for entry in (self.folder / "kernels").glob("??/*.entry"):
                entry.chmod(mode)
            for (whom, keys), answer in zip(trusted.items(), expected.split()):
                env = {"ATTNSMITH_CACHE_TRUST_KEYS": keys} if keys else {}
                with self.subTest(mode=oct(mode), trusted=whom):
                    self.assertEqual(self.hits("kernels", "--cache-trust", "all", env=env), answer == "yes")

    def hits(self, layer, *flags, env):
        """Whether a pre-warm with an empty directory takes all from the layer, or else compiles all."""
        shutil.rmtree(self.folder / "empty", ignore_errors=True)
        result = self.run_cli(*MERGES, "--cache", "empty", "--cache", layer, *flags, "--json", env=env)
        self.assertEqual(result.code, 0, result.err)
        summary = result.json()["summary"]
        taken = summary["hits"] + summary["remote"]
        self.assertEqual(taken + summary["compiled"], summary["total"])
        self.assertIn(taken, (0, summary["total"]))
        return taken > 0


if __name__ == "__main__":
    main()
