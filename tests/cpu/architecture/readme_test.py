"""What the README tells a reader to run is what the tests run."""

import os
import pathlib
import re
import unittest

REPOSITORY = pathlib.Path(__file__).resolve().parents[3]
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")


def first_block(language):
    return re.search(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL).group(1)


class Readme(unittest.TestCase):
    def test_the_first_program_is_the_one_that_is_built(self):
        program = (REPOSITORY / "examples/cpp/first_program.cpp").read_text(encoding="utf-8")
        self.assertEqual(first_block("cpp"), program)
        self.assertLessEqual(len(program.splitlines()), 24)

    def test_it_is_short(self):
        self.assertLessEqual(len(README.splitlines()), 160)

    def test_the_first_shell_block_is_the_two_commands(self):
        commands = first_block("sh").splitlines()
        self.assertEqual(len(commands), 2)
        for command in commands:
            self.assertTrue(os.access(REPOSITORY / command, os.X_OK), command)


if __name__ == "__main__":
    unittest.main()
