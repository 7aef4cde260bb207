"""What the README shows of the command is what the command does."""

import re
import shlex

from support import MODELS, REPOSITORY, CliTest, main


class Readme(CliTest):
    def test_its_session(self):
        block = re.search(r"^```\n\$ attnsmith (.*?)^```$", (REPOSITORY / "README.md").read_text(encoding="utf-8"),
                          re.MULTILINE | re.DOTALL).group(1)
        command, *shown = block.splitlines()
        arguments = [word.replace("tests/models", str(MODELS)) for word in shlex.split(command)]
        result = self.run_cli(*arguments)
        self.assertEqual(result.code, 0, result.err)

        def general(line):
            line = re.sub(r"\bin /\S+/", "in /HERE/", re.sub(r"^\[\d+/", "[n/", line))  # where, and who was first
            return re.sub(r"[0-9.]+ s\b", "N s", line)

        said = [general(line) for line in (result.err + result.out).splitlines()]
        for line in shown:
            if line != "...":
                self.assertIn(general(line), said)


if __name__ == "__main__":
    main()
