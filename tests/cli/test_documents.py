"""Completion for shells and man pages, as an installation has them."""

import shutil
import subprocess

from support import CliTest, main

COMPLETE = r"""
compopt() { :; }
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_attnsmith
printf '%s\n' "${COMPREPLY[@]}"
"""


class Documents(CliTest):
    def setUp(self):
        super().setUp()
        self.assert_ok(self.run_cli("__documents", "share"))
        self.share = self.folder / "share"

    def check(self, *command, text=None):
        result = subprocess.run(list(map(str, command)), cwd=self.folder, input=text, capture_output=True, text=True,
                                timeout=60, check=False)
        self.assertEqual((result.returncode, result.stderr), (0, ""), result.stdout)
        return result.stdout

    def complete(self, *words):
        script = self.share / "bash-completion/completions/attnsmith"
        return self.check("bash", "--norc", "-c", COMPLETE, "bash", script, *words).split()

    def test_bash(self):
        self.check("bash", "-n", self.share / "bash-completion/completions/attnsmith")
        self.assertEqual(self.complete("attnsmith", "pre"), ["prewarm"])
        self.assertEqual(self.complete("attnsmith", "cache", "ex"), ["export", "explain"])
        self.assertEqual(self.complete("attnsmith", "-v", "cache", "cl"), ["clear"])
        self.assertEqual(self.complete("attnsmith", "cache", "ls", "--cache-t"), ["--cache-trust"])
        self.assertEqual(self.complete("attnsmith", "cache", "ls", "--head"), [])
        self.assertEqual(self.complete("attnsmith", "plan", "--mask", ""), ["full", "causal"])
        self.assertEqual(self.complete("attnsmith", "plan", "--mask", "=", "c"), ["causal"])
        self.assertEqual(self.complete("attnsmith", "plan", "--kv", "="), ["dense", "ragged", "paged"])
        self.assertEqual(self.complete("attnsmith", "plan", "--sm", "80,12"), ["80,120", "80,121"])
        self.assertEqual(self.complete("attnsmith", "plan", "--sm", "120,12"), ["120,121"])
        self.assertEqual(self.complete("attnsmith", "plan", "--kv", "dense,paged,"), ["dense,paged,ragged"])
        self.assertEqual(self.complete("attnsmith", "plan", "--o-dtype", "bf16,"), ["bf16,fp16", "bf16,fp32"])
        self.assertEqual(self.complete("attnsmith", "plan", "--q-heads", ""), [])
        self.assertEqual(self.complete("attnsmith", "help", "pl"), ["plan"])
        self.assertEqual(self.complete("attnsmith", "help", "cache", "ex"), ["export", "explain"])
        self.assertIn("export", self.complete("attnsmith", "help", "cache", ""))
        self.assertNotIn("--cache", self.complete("attnsmith", "help", "cache", ""))
        self.assertEqual(self.complete("attnsmith", "help", "cache", "export", ""), [])
        self.assertIn("all", self.complete("attnsmith", "prewarm", "--sm", ""))
        self.write("kernels.bundle", "")
        (self.folder / "kernels").mkdir()
        self.assertEqual(self.complete("attnsmith", "plan", "--cache", "ker"), ["kernels"])
        self.assertEqual(self.complete("attnsmith", "cache", "import", "ker"), ["kernels.bundle", "kernels"])
        self.assertNotIn("__documents", self.complete("attnsmith", ""))

    def test_every_command_is_known_to_each_shell(self):
        pages = list((self.share / "man/man1").glob("attnsmith-*.1"))
        self.assertGreaterEqual(len(pages), 15)
        for file in ("bash-completion/completions/attnsmith", "zsh/site-functions/_attnsmith",
                     "fish/vendor_completions.d/attnsmith.fish"):
            text = (self.share / file).read_text(encoding="utf-8")
            for page in pages:
                with self.subTest(shell=file, command=page.stem):
                    self.assertIn(f"'{page.stem.replace('-', ' ')}'", text)

    def test_zsh(self):
        if shutil.which("zsh") is None:
            self.skipTest("zsh is not installed")
        self.check("zsh", "-n", self.share / "zsh/site-functions/_attnsmith")

    def test_fish(self):
        if shutil.which("fish") is None:
            self.skipTest("fish is not installed")
        script = self.share / "fish/vendor_completions.d/attnsmith.fish"
        said = self.check("fish", "--no-config", "-c", f"source {script}; complete -C 'attnsmith cache ls --cache-t'")
        self.assertTrue(said.startswith("--cache-trust"), said)
        for typed, words in (("plan --kv dense,paged,", ["dense,paged,ragged"]),
                             ("plan --kv ", ["dense", "paged", "ragged"]), ("help cache ex", ["explain", "export"])):
            said = self.check("fish", "--no-config", "-c", f"source {script}; complete -C 'attnsmith {typed}'")
            self.assertEqual(sorted(line.split()[0] for line in said.splitlines()), words)

    def test_man_pages(self):
        pages = sorted((self.share / "man/man1").glob("*.1"))
        self.assertGreaterEqual(len(pages), 20)
        self.assertFalse([page for page in pages if "__" in page.name])
        for page in pages:
            with self.subTest(page=page.name):
                text = page.read_text(encoding="utf-8")
                command = page.stem.split("-")[1:]
                self.assertEqual(page.stem, "-".join(["attnsmith", *command]))
                for section in ("NAME", "SYNOPSIS", "DESCRIPTION", "COMMON OPTIONS", "EXAMPLES", "EXIT STATUS",
                                "ENVIRONMENT", *["SEE ALSO"] * (len(command) > 0)):
                    self.assertIn(f'.SH "{section}"', text)
                if shutil.which("groff"):
                    self.check("groff", "-man", "-Tascii", "-ww", "-z", page)

    def test_what_man_pages_say(self):
        page = (self.share / "man/man1/attnsmith-prewarm.1").read_text(encoding="utf-8")
        description = page[page.index('.SH "DESCRIPTION"'):page.index('.SH "OPTIONS"')]
        self.assertEqual(description.lower().count("needs no gpu"), 1, description)
        self.assertRegex(page, r"\.TP\n\\fBATTNSMITH_NVRTC_PATH\\fR\n\w+")
        self.assertIn("\\fBattnsmith\\-plan\\fR(1)", page[page.index('.SH "SEE ALSO"'):])
        plan = (self.share / "man/man1/attnsmith-plan.1").read_text(encoding="utf-8")
        shown = plan[plan.index('.SH "EXAMPLES"'):plan.index('.SH "EXIT STATUS"')].replace("\\-", "-").replace("\\e", "\\")
        self.assertLessEqual(max(map(len, shown.splitlines())), 72)

    def test_a_man_page_says_what_help_says(self):
        if shutil.which("man") is None:
            self.skipTest("man is not installed")
        page = self.check("man", "-l", self.share / "man/man1/attnsmith-cache-gc.1")
        self.assertIn("--max-bytes", page)
        self.assertIn("attnsmith-cache-gc - Keep the limit", " ".join(page.split()))


if __name__ == "__main__":
    main()
