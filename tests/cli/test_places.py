"""Lists of cache places whose addresses hold a password, in every spelling that people write: no command shows it."""

from support import SMALL, CliTest, main

SECRET = "hush"
# Of a user and a password, as they stand in an address. Every one has a letter that ends the host, the port or a
# part of a list; the secret comes before it, after it or both.
PASSWORDS = ("hush/hush", "/hush", "hush?hush", "?hush", "hush#hush", "#hush", "hush:hush/hush", "hush:/hush", ":/hush",
             "./hush", "hush@hush", "a:./hush", "a:../hush", "12/hush", "12:/hush", "12/a:/hush", "hush:a/b:/c:/hush")
USERS = ("user", "me@corp.invalid")
HOSTS = ("host.invalid/k", "host.invalid:8080/k", "[::1]:1/k", "host.invalid")
# Written wrong, whatever the password is.
SCHEMES = ("https:/", "http:", "HTTP://", "Https://", "s3:/", "S3://", " http://", "\thttps://", "http:/")
COMMANDS = (["doctor"], ["doctor", "--json"], ["cache", "dir"], ["cache", "dir", "--json"],
            ["cache", "stat"], ["cache", "stat", "--json"], ["cache", "stat", "--prometheus"], ["-v", "-v", "cache", "dir"],
            ["plan", *SMALL, "--sm", "90"], ["plan", *SMALL, "--sm", "90", "--json", "-v", "-v"],
            ["prewarm", *SMALL, "--sm", "90", "--dry-run"], ["prewarm", *SMALL, "--sm", "90", "--dry-run", "--json", "-v", "-v"])
REMEDIES = ("%2F", "%3A", "ATTNSMITH_CACHE_USER")


def unreadable():
    """Addresses that cannot be read, each of which means a remote with a password."""
    for number, password in enumerate(PASSWORDS):
        yield f"http{'s' * (number % 2)}://{USERS[number % 2]}:{password}@{HOSTS[number % len(HOSTS)]}"
    for number, scheme in enumerate(SCHEMES):
        yield f"{scheme}{USERS[number % 2]}:{SECRET}@{HOSTS[number % len(HOSTS)]}"
        yield f"{scheme}user:/{SECRET}@host.invalid/k"
    yield "s3://AKIA:hush/hush@bucket/team"
    yield "s3://AKIA:/hush@bucket/team"
    yield "http://me@corp.invalid:hush@host.invalid/k"
    yield "http://user:hush@host.invalid/x@1"


class Places(CliTest):
    def assert_secret(self, result, what):
        self.assertNotIn(SECRET, (result.out + result.err).lower(), what)

    def assert_unread(self, command, name, **given):
        """Refused by name, with the remedy; the doctor reports it and goes on."""
        result = self.run_cli(*command, **given)
        self.assert_secret(result, (command, given))
        if command[0] == "doctor" and name == "ATTNSMITH_CACHE_DIR":
            self.assertEqual(result.code, 1, result)
        else:
            self.assert_refused(result, name)
        for words in (name, *REMEDIES):
            self.assertIn(words, result.out + result.err, (command, given))
        self.assertNotIn("invalid/", result.out + result.err)

    def test_what_cannot_be_read_is_refused_and_not_shown(self):
        for number, address in enumerate(unreadable()):
            # Every command meets every third list, and every list four commands.
            for command in COMMANDS[number % 3::3]:
                with self.subTest(address=address, command=command):
                    env = {"ATTNSMITH_CACHE_DIR": f"own:{address}", "ATTNSMITH_LOG": "debug", "ATTNSMITH_RECORD": "record"}
                    self.assert_unread(command, "ATTNSMITH_CACHE_DIR", env=env)
        self.assertEqual([path.name for path in self.folder.iterdir()], [])

    def test_nor_as_a_flag(self):
        for number, address in enumerate(unreadable()):
            command = COMMANDS[number % len(COMMANDS)]
            with self.subTest(address=address, command=command):
                self.assert_unread([*command, "--cache", "own", "--cache", address], "cache", env={"ATTNSMITH_LOG": "debug"})
        for address in ("/own:http://user:hush@host.invalid/k", "own:http://user:hush@host.invalid/k",
                        "/own:http:user:hush@host.invalid"):
            with self.subTest(address):
                self.assert_unread(["cache", "dir", "--cache", address], "cache")
        self.assertEqual([path.name for path in self.folder.iterdir()], [])

    def test_what_can_be_read_is_used_and_not_shown(self):
        addresses = ("http://hush-user:hush@127.0.0.1:1/k", "https://me%40hush.invalid:hush%2Fa%3Ab@[::1]:1",
                     "http://hush@127.0.0.1:1/k?hush=1", "s3://AKIAHUSH:hush@bucket/team")
        for command in COMMANDS:
            env = {"ATTNSMITH_CACHE_DIR": "own:" + ":".join(f"{address}" for address in addresses[::3]),
                   "ATTNSMITH_LOG": "debug", "AWS_REGION": "us-east-1"}
            for given in ({"env": env}, {"env": {"ATTNSMITH_LOG": "debug", "ATTNSMITH_CACHE_DIR": f"own:{addresses[1]}"}}):
                with self.subTest(command=command, given=given):
                    result = self.run_cli(*command, **given)
                    self.assert_secret(result, command)
                    self.assertNotIn("ATTNSMITH_CACHE_USER", result.err)
        told = self.assert_ok(self.run_cli("cache", "dir", "--json", "--cache", "own",
                                           *(part for one in addresses for part in ("--cache", one + "/")))).json()
        self.assertEqual(told["remotes"], ["http://127.0.0.1:1/k/", "https://[::1]:1/", "http://127.0.0.1:1/k",
                                           "s3://bucket/team/"])

    def test_a_stray_address_is_not_shown(self):
        for command in (["doctor"], ["cache", "stat"], ["cache"], ["plan", *SMALL, "--sm", "90"]):
            result = self.run_cli(*command, "http://user:hush@host.invalid/k")
            self.assert_refused(result, "not shown")
            self.assert_secret(result, command)

    def test_a_directory_may_have_any_name(self):
        for place in ("a@b", "user:x@y"):
            (self.folder / place).mkdir()
        here = str(self.folder.resolve())
        for places in ([f"{here}/a@b"], ["./a@b"], [f"{here}/x", "./a@b"], [f"{here}/x", "https://host.invalid/k", f"{here}/a@b"]):
            listed = self.run_cli("cache", "dir", "--json", env={"ATTNSMITH_CACHE_DIR": ":".join(places)})
            self.assertEqual(len(self.assert_ok(listed).json()["directories"]), len([p for p in places if "://" not in p]))
        flag = self.assert_ok(self.run_cli("cache", "dir", "--json", "--cache", "./user:x@y")).json()
        self.assertTrue(flag["directories"][0].endswith("user:x@y"))
        self.assert_refused(self.run_cli("cache", "dir", "--cache", "a@b"), "./")

    def test_an_address_without_a_path_and_then_an_at_sign(self):
        for after in ("/hush@host.invalid/k", "./hush@x", "a/hush@x", "http://user:hush@host.invalid/k"):
            result = self.run_cli("cache", "dir", env={"ATTNSMITH_CACHE_DIR": f"/own:http://user:{after}"})
            self.assert_refused(result, "ATTNSMITH_CACHE_DIR", *REMEDIES)
            self.assert_secret(result, after)
        told = self.assert_ok(self.run_cli("cache", "dir", "--json", env={
            "ATTNSMITH_CACHE_DIR": "/own:http://one.invalid/:http://user:hush@two.invalid/k"})).json()
        self.assertEqual(told["remotes"], ["http://one.invalid/", "http://two.invalid/k"])


if __name__ == "__main__":
    main()
