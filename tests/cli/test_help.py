"""--help of every command has examples, and they work."""

import shutil

from support import LLAMA, CliTest, examples, main

COMMANDS = [[], ["plan"], ["prewarm"], ["check"], ["doctor"], ["bench"], ["bench", "jit"], ["bench", "attention"],
            ["bench", "cache"], ["tune"],
            ["cache"], ["cache", "ls"], ["cache", "explain"], ["cache", "stat"], ["cache", "verify"], ["cache", "gc"],
            ["cache", "export"], ["cache", "import"],
            ["cache", "clear"], ["cache", "rm"], ["cache", "dir"]]


class Help(CliTest):
    def test_examples_run(self):
        shutil.copy(LLAMA, self.folder / "config.json")
        seen = []
        for command in COMMANDS:
            help_text = self.assert_ok(self.run_cli(*command, "--help")).out
            found = examples(help_text)
            self.assertTrue(found, f"{command} has no example")
            for example in found:
                if example not in seen:  # commands that hold others show an example of theirs
                    seen.append(example)
                    self.run_example(example)

    def run_example(self, example):
        with self.subTest(example=" ".join(example)):
            result = self.run_cli(*example)
            if example[0] in ("check", "tune") or example[:2] == ["bench", "attention"]:
                self.assert_failed(result)  # they need a GPU
                return
            if example[:2] == ["cache", "rm"]:
                self.assert_failed(result, "no entry has the key")  # the key is made up
                return
            self.assertEqual(result.code, 0, result.err)
            self.assertNotIn("error", result.err)
            if "--json" in example:
                self.assertTrue(result.json())

    def test_every_flag_has_a_help(self):
        for command in COMMANDS:
            text = self.run_cli(*command, "--help").out
            for line in text.splitlines():
                if line.startswith("  --"):
                    self.assertRegex(line, r"^  --\S+( \S+)? +[^ ].+$")

    def test_version(self):
        version = self.assert_ok(self.run_cli("--version")).out
        self.assertRegex(version, r"^attnsmith \d+\.\d+\.\d+\n$")


if __name__ == "__main__":
    main()
