"""--help of every command says all of its flags and has examples, which work."""

import json
import re
import shutil

from remote_server import RemoteServer
from support import REPOSITORY, SMALL_LLAMA, CliTest, examples, main, on_terminal


def commands_of(text):
    """The commands that a help lists."""
    block = re.search(r"^Commands:\n((?:  .*\n)+)", text, re.MULTILINE)
    return re.findall(r"^  (\S+)", block.group(1), re.MULTILINE) if block else []


class Help(CliTest):
    def helps(self):
        """The help of every command that there is, by its words."""
        helps, open_ends = {}, [[]]
        while open_ends:
            command = open_ends.pop(0)
            text = helps[tuple(command)] = self.assert_ok(self.run_cli(*command, "--help")).out
            open_ends[:0] = [[*command, name] for name in commands_of(text)]
        return helps

    def test_every_command(self):
        helps = self.helps()
        self.assertGreaterEqual(len(helps), 20)
        self.write("config.json", json.dumps(SMALL_LLAMA))
        seen = []
        with RemoteServer(self.folder / "www") as remote:
            for command, text in helps.items():
                with self.subTest(command=command):
                    self.assertLessEqual(max(map(len, text.splitlines())), 80)
                    self.assert_every_flag_has_a_help(text)
                    self.assertTrue(examples(text), "there is no example")
                for example in examples(text):
                    if example not in seen:  # commands that hold others show an example of theirs
                        seen.append(example)
                        self.run_example([word.replace("https://cache.example/kernels", remote.address)
                                          for word in example])

    def assert_every_flag_has_a_help(self, text):
        flags = re.findall(r"^  ((?:-\w, )?--\S+(?: \S+)?)((?: {2,}\S.*)?\n(?: {6,}\S.*\n)*)", text, re.MULTILINE)
        self.assertEqual(len(flags), len(re.findall(r"^  -", text, re.MULTILINE)))
        self.assertGreaterEqual(len(flags), 3)
        for flag, said in flags:
            self.assertGreater(len(said.split()), 1, flag)

    def run_example(self, example):
        with self.subTest(example=" ".join(example)):
            result = self.run_cli(*example)
            if example[0] in ("check", "tune") or example[:2] == ["bench", "attention"]:
                self.assertRegex(result.err, "(?i)cuda driver")  # they need a GPU
                return
            if example[:2] == ["cache", "rm"]:
                self.assert_failed(result, "no entry has the key")  # the key is made up
                return
            self.assertEqual(result.code, 0, result.err)
            self.assertNotIn("error", result.err)
            if "--json" in example:
                self.assertTrue(result.json())

    def test_ways_to_ask_for_it(self):
        whole = self.assert_ok(self.run_cli("--help")).out
        self.assertEqual(self.assert_ok(self.run_cli()).out, whole)
        self.assertEqual(self.assert_ok(self.run_cli("help")).out, whole)
        of_export = self.assert_ok(self.run_cli("cache", "export", "--help")).out
        self.assertIn("Usage: attnsmith cache export", of_export)
        self.assertEqual(self.assert_ok(self.run_cli("help", "cache", "export")).out, of_export)
        self.assertEqual(self.assert_ok(self.run_cli("cache", "export", "-h")).out, of_export)
        self.assertNotIn("__", whole)
        for command in ("cache", "bench"):
            of_group = self.assert_ok(self.run_cli(command, "--help")).out
            self.assertEqual(self.assert_ok(self.run_cli("help", command)).out, of_group)
            self.assert_refused(self.run_cli(command), f"attnsmith {command} needs a command", "--help")
        self.assert_refused(self.run_cli("cache", "--nothing"), "--nothing")

    def test_width(self):
        for columns in (40, 64, 100):
            text = self.assert_ok(self.run_cli("plan", "--help", env={"COLUMNS": str(columns)})).out
            lines = text.splitlines()
            self.assertLessEqual(max(map(len, lines)), columns)
            self.assertGreater(max(map(len, lines)), columns - 12)
            self.assertEqual(examples(text), examples(self.run_cli("plan", "--help").out))
        code, drawn = on_terminal(self, "plan", "--help", output=True)
        lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in drawn.splitlines()]
        self.assertEqual((code, max(map(len, lines))), (0, 80))

    def test_what_defaults_are(self):
        text = " ".join(self.run_cli("plan", "--help").out.split())
        for words in ("(default dense; with --model paged)", "(default with --model 16)", "(default 1; with --model 8)",
                      "(default 1; with --model 1024)", "(default 1; with --model 4096)"):
            self.assertIn(words, text)
        text = " ".join(self.run_cli("check", "--help").out.split())
        for words in ("are stored (default paged)", "paged kv (default 16)", "to plan for (default 4096)"):
            self.assertIn(words, text)

        text = " ".join(self.run_cli("tune", "--help").out.split())
        for words in ("(default 4; with --model 8)", "(default 4096; with --model 1024)", "(default 4096)"):
            self.assertIn(words, text)
        self.assertNotIn("default 1;", text)

    def test_lists_that_are_taken_are_shown(self):
        for command, shown in ((["cache", "export"], True), (["plan"], True), (["check"], False)):
            text = self.run_cli(*command, "--help").out
            self.assertEqual("--kv dense|ragged|paged[,...]" in text, shown, command)

    def test_words_that_nothing_serves(self):
        """Said of exactly those that planning refuses, whatever they stand beside."""
        text = self.run_cli("plan", "--help").out
        request = re.search(r"^Request:\n((?:  .*\n)+)", text, re.MULTILINE).group(1)
        fields = re.findall(r"^  --(\S+) (\S+\|[^\s\[]+)\S*((?:\n {6,}\S.*)*)", request, re.MULTILINE)
        self.assertIn("consistency", [flag for flag, _, _ in fields])
        pages = ["--page-size", "16"]
        latents = ["--head-dim-ckv", "512", "--head-dim-kpe", "64", "--scale", "1"]
        append = ["--op", "append"]
        beside = ([], pages, ["--kv", "paged", *pages], ["--dtype", "fp16"], ["--kv-dtype", "e4m3"], append,
                  [*append, "--rope", "half"])
        for flag, words, help_text in fields:
            unserved = re.search(r"nothing serves (.*?) yet", " ".join(help_text.split()))
            unserved = re.findall(r"\w+", unserved.group(1).replace(" or ", " ")) if unserved else []
            for word in words.split("|"):
                with self.subTest(flag=flag, word=word):
                    heads = ["--q-heads", "8", *(latents if word == "mla" else ["--head-dim", "128"])] if word != "top_k" else []
                    results = [self.run_cli("plan", *heads, f"--{flag}", word, *more, "--sm", "90")
                               for more in beside]
                    planned = any(result.code == 0 for result in results)
                    self.assertEqual(planned, word not in unserved, [result.err for result in results])

    def test_colours(self):
        def coloured(**env):
            return "\x1b[" in self.run_cli("doctor", env=env).out

        self.assertFalse(coloured())
        self.assertTrue(coloured(CLICOLOR_FORCE="1"))
        self.assertFalse(coloured(CLICOLOR_FORCE="0"))
        self.assertFalse(coloured(CLICOLOR_FORCE="1", NO_COLOR="1"))
        drawn = [on_terminal(self, "plan", "--nothing", env=env)[1] for env in
                 ({}, {"NO_COLOR": "1"}, {"TERM": "dumb"}, {"TERM": None})]
        self.assertIn("attnsmith: \x1b[1;31merror:\x1b[0m --nothing", drawn[0])
        for plain in drawn[1:]:
            self.assertIn("attnsmith: error: --nothing", plain)

    def test_version(self):
        version = self.assert_ok(self.run_cli("--version")).out
        self.assertRegex(version, r"^attnsmith \d+\.\d+\.\d+\n$")
        self.assertEqual(self.assert_ok(self.run_cli("-V")).out, version)

    def test_what_is_required(self):
        for command, usage in (("rm", "rm [OPTIONS] KEY\n"), ("import", "import [OPTIONS] FILE\n"),
                               ("explain", "explain [OPTIONS] [KEY]\n")):
            self.assertIn(f"Usage: attnsmith cache {usage}", self.run_cli("cache", command, "--help").out)
        self.assertIn("Usage: attnsmith help [OPTIONS] [COMMAND]...\n", self.run_cli("help", "help").out)

    def test_exit_codes(self):
        text = " ".join(self.run_cli("--help").out.split())
        self.assertIn("130, 143 ended by Ctrl-C (SIGINT) and by SIGTERM", text)

    def test_variables(self):
        """Those that the library reads are explained, and no others."""
        read = set(re.findall(r'"((?:ATTNSMITH|AWS)_\w+)"', (REPOSITORY / "runtime/settings/environment.cpp").read_text()))
        self.assertEqual(set(re.findall(r"(?m)^  ((?:ATTNSMITH|AWS)_\w+)", self.run_cli("--help").out)), read)

    def test_verbosity(self):
        def lines(*arguments):
            shutil.rmtree(self.folder / "kernels", ignore_errors=True)
            result = self.run_cli(*arguments, "--op", "merge", "--head-dim", "64", "--q-heads", "8", "--sm", "90",
                                  "--cache", "kernels")
            self.assertEqual(result.code, 0, result.err)
            return result.err.count("\n")

        quiet, usual, verbose, everything = (lines("prewarm", *flags) for flags in (["-q"], [], ["-v"], ["-vv"]))
        self.assertEqual((quiet, usual), (0, 1))
        self.assertGreater(verbose, usual)
        self.assertGreaterEqual(everything, verbose)
        self.assertEqual(lines("-v", "prewarm", "--verbose"), everything)
        self.assertIn("--nothing", self.run_cli("plan", "-q", "--nothing").err)


if __name__ == "__main__":
    main()
